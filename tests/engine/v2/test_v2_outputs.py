"""On V2, too, greedy output equals that without speculation, token for token."""

import numpy as np
import pytest
from tiny_models import document, ids_of
from wandering import Wanderer, check_sound, random_policy

TOKENS = 32
CHUNKED = {"max_num_batched_tokens": 96, "max_num_seqs": 5, "block_size": 32}


THOROUGH = pytest.mark.thorough
HEADS = [
    pytest.param("eagle", marks=THOROUGH),
    "eagle3",
    pytest.param("draft", marks=THOROUGH),
    None,
]


@pytest.mark.parametrize("head", HEADS)
def test_whatever_is_decided_leaves_the_output_as_it_was(served, prompts, truth, head):
    expected = truth(TOKENS)
    engine = served(head)
    for seed in (1, 2):
        wanderer = Wanderer(engine, seed, evidence=head is not None)
        assert engine.greedy(prompts, TOKENS) == expected
        check_sound(wanderer.worker)
    assert wanderer.taken["ngram"] > 0
    if head is not None:
        assert min(wanderer.taken.values()) > 0, wanderer.taken


@pytest.mark.parametrize("head", [pytest.param("eagle3", marks=THOROUGH), None])
def test_drafts_of_one_length_leave_it_too(served, prompts, truth, head):
    expected = truth(TOKENS)
    engine = served(head, trims=False)
    wanderer = Wanderer(engine, evidence=head is not None)
    assert engine.greedy(prompts, TOKENS) == expected
    check_sound(wanderer.worker)
    assert wanderer.taken["ngram"] > 0


@pytest.mark.thorough
def test_the_policy_itself_leaves_it_too(served, prompts, truth):
    expected = truth(TOKENS)
    engine = served("eagle3")
    from adaspec.vllm.v2.attachment import serve_by

    for seed in range(3):
        worker = serve_by(engine.runner, random_policy(seed, True))
        assert engine.greedy(prompts, TOKENS) == expected
        check_sound(worker)


@pytest.mark.parametrize("head", ["eagle3", None])
def test_it_is_left_by_the_kernels_that_accelerators_run(served, prompts, truth, head, monkeypatch):
    expected = [one[:10] for one in truth(TOKENS)[:3]]
    engine = served(head)
    monkeypatch.setattr("adaspec.vllm.v2.drafting.KERNELS_ON_CPU", True)
    wanderer = Wanderer(engine, evidence=head is not None)
    assert type(wanderer.worker.drafting.predictor).__name__ == "FusedPredictor"
    assert engine.greedy(prompts[:3], 10) == expected
    check_sound(wanderer.worker)
    assert sum(wanderer.taken.values()) > 0


@pytest.mark.parametrize("head", [pytest.param("eagle", marks=THOROUGH), None])
def test_chunked_prefill_and_prefix_hits(served, prompts, truth, head):
    expected = truth(TOKENS)
    engine = served(head, enable_prefix_caching=True, **CHUNKED)
    wanderer = Wanderer(engine, evidence=head is not None)
    assert engine.greedy(prompts, TOKENS) == expected
    assert engine.greedy(prompts, TOKENS) == expected
    check_sound(wanderer.worker)


@pytest.mark.parametrize("head", [pytest.param("eagle", marks=THOROUGH), None])
def test_steps_that_only_read_a_prompt(served, engines, head):
    """While a prompt is read in pieces and nothing else runs, no row is drafted for."""
    asked = [ids_of(document(70 + at, 9))[:250] for at in range(2)]
    expected = [one for each in asked for one in engines().greedy([each], 12)]
    engine = served(head, enable_prefix_caching=True, **CHUNKED)
    wanderer = Wanderer(engine, evidence=head is not None)
    assert [one for each in asked for one in engine.greedy([each], 12)] == expected
    check_sound(wanderer.worker)


@pytest.mark.parametrize("head", [pytest.param("eagle3", marks=THOROUGH), None])
def test_preemption_and_resumption(served, prompts, truth, head):
    expected = truth(64)
    engine = served(head, num_gpu_blocks_override=14, block_size=32, enable_prefix_caching=False)
    wanderer = Wanderer(engine, evidence=head is not None)
    assert engine.greedy(prompts, 64) == expected
    assert engine.preempted > 0
    check_sound(wanderer.worker)


def test_requests_that_reach_the_longest_length(served, engines, prompts):
    asked = [ids_of(document(50 + at, 9))[: 130 + 3 * at] for at in range(6)]
    expected = engines(max_model_len=160).greedy(asked, 200)
    engine = served("eagle", max_model_len=160)
    wanderer = Wanderer(engine)
    assert engine.greedy(asked, 200) == expected
    check_sound(wanderer.worker)


@pytest.mark.thorough
def test_stops_and_minimal_lengths(served, engines, prompts):
    from vllm import SamplingParams

    newline = ids_of("\n")[0]
    params = [
        SamplingParams(temperature=0, max_tokens=40, stop_token_ids=[newline], min_tokens=least)
        for least in (0, 7, 21)
        for _ in prompts
    ]
    asked = prompts * 3
    expected = engines().outputs(asked, params)
    engine = served("eagle3")
    wanderer = Wanderer(engine)
    assert engine.outputs(asked, params) == expected
    check_sound(wanderer.worker)


def test_logprobs_are_those_without_speculation(served, engines, prompts):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2)

    def values(engine):
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        found = engine.llm.generate(asked, params, use_tqdm=False)
        return [
            [step[token].logprob for step, token in zip(one.logprobs, one.token_ids, strict=True)]
            for one in (each.outputs[0] for each in found)
        ]

    expected = values(engines())
    engine = served("eagle3")
    wanderer = Wanderer(engine)
    for one, other in zip(values(engine), expected, strict=True):
        assert np.allclose(one, other, atol=1e-3)
    check_sound(wanderer.worker)


def test_structured_output(served, engines, prompts):
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    asked = StructuredOutputsParams(regex="(table|row|north)\\.(update|insert)\\([a-z]{2,6}\\);")
    params = SamplingParams(temperature=0, max_tokens=40, structured_outputs=asked)
    expected = engines().outputs(prompts, params)
    engine = served("eagle3")
    wanderer = Wanderer(engine)
    assert engine.outputs(prompts, params) == expected
    check_sound(wanderer.worker)

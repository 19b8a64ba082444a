"""Greedy output equals that without speculation, token for token, whatever is decided."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit" / "policy"))

from random_models import random_policy
from tiny_models import document, ids_of

from adaspec.predict.tables import packed
from policies import Wanderer

HEADS = ("eagle", "eagle3", "draft")
MOST_HEADS = ("eagle", pytest.param("eagle3", marks=pytest.mark.thorough), "draft")
"""Where an engine must be started for each: both kinds of EAGLE skip and resume in the same way."""
CHUNKED = {"max_num_batched_tokens": 48, "max_num_seqs": 8, "block_size": 32}
POLICIES = (
    "none",
    "fixed:ngram:8:2",
    "fixed:ngram-vllm:6:2:5",
    "fixed:neural:4",
    "hybrid:4:16:3",
    "hybrid-splice:4:20:3:2:5",
    "hybrid-agree:3:12:2:2:5",
    "ema",
    "budget:4",
)


def asked(head, policy="hybrid-splice", cap=24):
    config = {"method": "adaspec", "policy": policy, "num_speculative_tokens": cap}
    return config if head is None else {**config, "model": head}


def check_sound(session):
    assert not session.breaker.counts
    assert not session.breaker.off


@pytest.mark.parametrize("head", HEADS)
def test_every_path_of_a_wandering_policy_leaves_the_output_as_it_was(
    engines, prompts, truth, head
):
    expected = truth()
    engine = engines(asked(head))
    policy = Wanderer()
    session = engine.put(policy)
    assert engine.greedy(prompts, 48) == expected
    assert engine.greedy(prompts, 48) == expected
    check_sound(session)
    assert min(policy.taken.values()) > 0, policy.taken
    assert policy.learned > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_static_and_adaptive_policies_leave_the_output_as_it_was(engines, prompts, truth, policy):
    expected = truth()
    engine = engines(asked("eagle"))
    session = engine.put(policy)
    assert engine.greedy(prompts, 48) == expected
    check_sound(session)


@pytest.mark.parametrize("head", ["eagle3", None])
def test_learned_policies_leave_the_output_as_it_was(engines, prompts, truth, head):
    expected = truth()
    engine = engines(asked(head, "hybrid-splice" if head else "fixed:ngram:8:2"))
    none = np.empty(0, np.float32)
    tables = packed(np.empty(0, np.uint64), none, none, none, (0.5, 0.5, 1.0, 1.0), 1)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        policy = random_policy(
            rng, tables, evidence=head is not None, cap=24, neural_cap=8 if head else 0
        )
        session = engine.put(policy)
        assert engine.greedy(prompts, 48) == expected
        check_sound(session)


@pytest.mark.parametrize(
    ("head", "policy"), [(None, "fixed:ngram:1000:1"), ("eagle", "hybrid-splice:9:9:4:1:900")]
)
def test_drafts_as_long_as_vllm_verifies_leave_the_output_as_it_was(
    engines, prompts, truth, head, policy
):
    expected = truth(tokens=96)
    config = {"method": "adaspec", "policy": policy}
    engine = engines(config if head is None else {**config, "model": head})
    engine.judged.clear()
    assert engine.greedy(prompts, 96) == expected
    assert max(drafted for one in engine.judged.values() for drafted, _ in one) > 64
    check_sound(engine.session)


@pytest.mark.parametrize("policy", ["hybrid:4:16:0", "fixed:ngram:8:2", "none"])
def test_ngram_alone_leaves_the_output_as_it_was(engines, prompts, truth, policy):
    expected = truth()
    engine = engines(asked(None, "hybrid:4:16:0"))
    session = engine.put(policy)
    assert engine.greedy(prompts, 48) == expected
    check_sound(session)


@pytest.mark.parametrize("head", MOST_HEADS)
def test_chunked_prefill_and_prefix_hits_leave_the_output_as_it_was(engines, prompts, truth, head):
    expected = truth()
    engine = engines(asked(head), enable_prefix_caching=True, **CHUNKED)
    session = engine.put(Wanderer())
    assert engine.greedy(prompts, 48) == expected
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
    again = engine.llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
    )
    assert [list(each.outputs[0].token_ids) for each in again] == expected
    assert sum(each.num_cached_tokens or 0 for each in again) > 0
    check_sound(session)


@pytest.mark.parametrize("head", MOST_HEADS)
def test_preemption_and_resumption_leave_the_output_as_it_was(engines, prompts, truth, head):
    expected = truth(tokens=96)
    engine = engines(
        asked(head), num_gpu_blocks_override=28, block_size=32, enable_prefix_caching=False
    )
    session = engine.put(Wanderer())
    assert engine.greedy(prompts, 96) == expected
    assert engine.preempted > 0
    check_sound(session)


@pytest.fixture(scope="module")
def to_the_end(engines, prompts):
    """Asks an engine for outputs up to the longest length; and those without speculation."""
    longest = [ids_of(document(50 + at, 9))[: 130 + 3 * at] for at in range(6)]
    mixed = [*longest, *prompts[:4]]

    def outputs(engine):
        return engine.greedy(mixed, 200)

    return outputs, outputs(engines(max_model_len=160))


@pytest.mark.parametrize("head", [*MOST_HEADS, None])
def test_requests_that_reach_the_longest_length_end_as_they_did(engines, to_the_end, head):
    outputs, expected = to_the_end
    assert len({len(one) for one in expected}) > 1
    engine = engines(asked(head, "hybrid-splice" if head else "fixed:ngram:8:2"), max_model_len=160)
    session = engine.put(Wanderer() if head else "fixed:ngram:8:2")
    assert outputs(engine) == expected
    check_sound(session)


@pytest.mark.parametrize("head", ["eagle", "draft", None])
def test_greedy_rows_beside_sampled_ones_and_many_samples_stay_as_they_were(
    engines, prompts, truth, head
):
    from vllm import SamplingParams

    expected = truth()
    engine = engines(asked(head, "hybrid-splice" if head else "fixed:ngram:8:2"))
    session = engine.put(Wanderer() if head else "fixed:ngram:8:2")
    greedy = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
    sampled = SamplingParams(temperature=0.8, n=3, max_tokens=48, ignore_eos=True)
    params = [greedy if at % 2 else sampled for at in range(len(prompts))]
    found = engine.outputs(prompts, params)
    assert [one[0] for one in found[1::2]] == expected[1::2]
    assert all(len(one) == 3 and {len(each) for each in one} == {48} for one in found[::2])
    check_sound(session)


def test_log_probabilities_are_those_without_speculation(engines, prompts):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, logprobs=2)

    def logprobs(engine):
        found = engine.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
        )
        return [
            [step[token].logprob for step, token in zip(one.logprobs, one.token_ids, strict=True)]
            for one in (each.outputs[0] for each in found)
        ]

    expected = logprobs(engines())
    engine = engines(asked("eagle"))
    engine.put(Wanderer())
    np.testing.assert_allclose(logprobs(engine), expected, atol=1e-4)


def test_structured_output_is_that_without_speculation(engines, prompts):
    from vllm.sampling_params import StructuredOutputsParams

    rules = StructuredOutputsParams(regex=r"(row\.update\((row|table), [0-9]\);\n){3}")
    expected = engines().greedy(prompts, 60, structured_outputs=rules)
    for head in ("eagle", None):
        engine = engines(asked(head, "hybrid-splice" if head else "fixed:ngram:8:2"))
        session = engine.put(Wanderer() if head else "fixed:ngram:8:2")
        assert engine.greedy(prompts, 60, structured_outputs=rules) == expected
        check_sound(session)


def test_aborted_requests_leave_the_others_as_they_were(engines, prompts, truth):
    from vllm import SamplingParams

    expected = truth()
    engine = engines(asked("eagle"))
    session = engine.put(Wanderer())
    core = engine.llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
    names = [f"abort{at}" for at in range(len(prompts))]
    for name, prompt in zip(names, prompts, strict=True):
        core.add_request(name, {"prompt_token_ids": prompt}, params)
    found, steps = {}, 0
    while core.has_unfinished_requests():
        steps += 1
        if steps in (3, 6):
            core.abort_request(names[steps // 3 - 1 :: 4])
        for out in core.step():
            if out.finished:
                found[out.request_id] = list(out.outputs[0].token_ids)
    kept = [at for at in range(len(prompts)) if at % 4 > 1]
    assert [found[names[at]] for at in kept] == [expected[at] for at in kept]
    engine.greedy(prompts[:1], 4)  # whoever left is noticed in the next step
    assert len(session._running.requests) <= 1
    check_sound(session)

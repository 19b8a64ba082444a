"""Earlier answers on V2: they are copied from on the device, change no output, and stay apart."""

import pytest
from copied import Copied
from wandering import Wanderer, check_sound

TOKENS = 32


@pytest.fixture
def remembering(served):
    """Makes a wanderer with memory on an engine, and counts what it copies."""

    def make(head=None, nbytes=1 << 20, **arguments):
        engine = served(head, **arguments)
        wanderer = Wanderer(engine, evidence=head is not None, memory=True, memory_bytes=nbytes)
        copied = Copied()
        wanderer.session.observers.add(copied)
        return engine, wanderer.session, copied

    return make


def run(engine, prompts, salts):
    """The outputs of these prompts, each under its salt."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    asked = [
        {"prompt_token_ids": prompt, **({} if salt is None else {"cache_salt": salt})}
        for prompt, salt in zip(prompts, salts, strict=True)
    ]
    done = engine.llm.generate(asked, params, use_tqdm=False)
    return [list(each.outputs[0].token_ids) for each in done]


def test_what_was_answered_is_copied_and_changes_no_output(remembering, prompts, truth):
    engine, session, copied = remembering("eagle3")
    for _ in range(2):
        assert run(engine, prompts, [None] * 6) == truth(TOKENS)
    check_sound(session)
    assert copied.counts[1] > 25
    assert session.memory.index.tokens > 6 * TOKENS  # the last ones are stored a step later


def test_an_answer_under_one_salt_is_never_seen_under_another(remembering, prompts, truth):
    engine, session, copied = remembering()
    for salt in ("one", "two", "ONE", "one "):
        assert run(engine, prompts[:1], [salt]) == truth(TOKENS)[:1]
        assert copied.counts[0] == 0, salt
    assert run(engine, prompts[:1], ["one"]) == truth(TOKENS)[:1]
    assert copied.counts[1] > 10
    check_sound(session)


def test_the_kernels_copy_from_answers_too(remembering, prompts, truth, monkeypatch):
    monkeypatch.setattr("adaspec.vllm.session.drafting.KERNELS_ON_CPU", True)
    engine, session, copied = remembering()
    assert type(session.drafting.predictor).__name__ == "FusedPredictor"
    for _ in range(2):
        assert run(engine, prompts[:2], [None] * 2) == truth(TOKENS)[:2]
    check_sound(session)
    assert copied.counts[1] > 10


def test_a_memory_that_is_full_aborts_and_preemption_are_no_harm(remembering, prompts, truth):
    from vllm import SamplingParams

    engine, session, copied = remembering(
        nbytes=1024 * 44, num_gpu_blocks_override=14, block_size=32, enable_prefix_caching=False
    )
    core = engine.llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    names = [f"cut-{at}" for at in range(len(prompts))]
    for name, prompt in zip(names, prompts, strict=True):
        core.add_request(name, {"prompt_token_ids": prompt}, params)
    for _ in range(8):
        core.step()
    core.abort_request(names)
    for _ in range(6):
        assert run(engine, prompts, [None] * 6) == truth(TOKENS)
    assert engine.preempted > 0
    assert session.memory.index.tokens < session.memory.index.capacity
    assert copied.counts[1] > 50
    check_sound(session)

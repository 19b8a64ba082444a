"""Earlier answers on V2: they are copied from on the device, change no output, and stay apart."""

import numpy as np
import pytest
from copied import copied_tokens
from heard import Heard
from wandering import Wanderer, check_sound

TOKENS = 32


@pytest.fixture
def remembering(served):
    """Makes a wanderer with memory on an engine, and hears what it verifies."""

    def make(head=None, nbytes=1 << 20, **arguments):
        engine = served(head, **arguments)
        wanderer = Wanderer(engine, evidence=head is not None, memory=True, memory_bytes=nbytes)
        return engine, wanderer.session, Heard(wanderer.session)["verified"]

    return make


@pytest.mark.parametrize("by_kernels", [False, True])
def test_what_was_answered_is_copied_and_changes_no_output(
    remembering, prompts, truth, by_kernels, monkeypatch
):
    monkeypatch.setattr("adaspec.vllm.session.drafting.KERNELS_ON_CPU", by_kernels)
    engine, session, verified = remembering(None if by_kernels else "eagle3")
    is_fused = type(session.drafting.predictor).__name__ == "FusedPredictor"
    assert is_fused == by_kernels
    asked = prompts[: 2 if by_kernels else 6]  # the interpreter takes its time
    for _ in range(2):
        assert engine.greedy(asked, TOKENS) == truth(TOKENS)[: len(asked)]
    check_sound(session)
    assert copied_tokens(verified)[1] > 4 * len(asked)
    # The last ones are stored a step later.
    assert session.memory.index.tokens >= len(asked) * TOKENS


def test_an_answer_under_one_salt_is_never_seen_under_another(remembering, prompts, truth):
    engine, session, verified = remembering()
    for salt in ("one", "two", "ONE", "one "):
        assert engine.greedy(prompts[:1], TOKENS, salts=[salt]) == truth(TOKENS)[:1]
        assert copied_tokens(verified)[0] == 0, salt
    assert engine.greedy(prompts[:1], TOKENS, salts=["one"]) == truth(TOKENS)[:1]
    assert copied_tokens(verified)[1] > 10
    check_sound(session)


def test_a_memory_that_is_full_aborts_and_preemption_are_no_harm(remembering, prompts, truth):
    cramped = {"num_gpu_blocks_override": 14, "block_size": 32, "enable_prefix_caching": False}
    engine, session, verified = remembering("eagle3", nbytes=1024 * 44, **cramped)
    index = session.memory.index
    for _ in range(2):  # of somebody else: little room is left
        index.add(np.arange(index.capacity // 2) % 90, index.owner("another"))
    engine.abort(prompts, TOKENS, steps=8)
    for _ in range(3):
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert engine.preempted > 0
    assert index.tokens < index.capacity
    assert copied_tokens(verified)[1] > 25
    check_sound(session)

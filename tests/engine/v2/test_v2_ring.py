"""The ring on V2: what ended is copied on the device, changes no output, and salts keep out."""

import numpy as np
import pytest
from wandering import Wanderer, check_sound

TOKENS = 32


def accepted(engine):
    """How many drafted tokens were accepted since the last call."""
    count = sum(accepted for one in engine.judged.values() for _, accepted in one)
    engine.judged.clear()
    return count


@pytest.mark.parametrize("by_kernels", [False, True])
def test_what_was_answered_is_copied_and_changes_no_output(
    served, prompts, truth, by_kernels, monkeypatch
):
    monkeypatch.setattr("adaspec.vllm.session.drafting.KERNELS_ON_CPU", by_kernels)
    engine = served(None)
    session = engine.put("fixed:ngram:8:2", ring_tokens=2048)
    is_fused = type(session.drafting.predictor).__name__ == "FusedPredictor"
    assert is_fused == by_kernels
    asked = prompts[: 2 if by_kernels else 6]  # the interpreter takes its time
    counts = []
    engine.judged.clear()
    for salt in ("one", None, "one", None):
        salts = [salt] * len(asked)
        assert engine.greedy(asked, TOKENS, salts=salts) == truth(TOKENS)[: len(asked)]
        counts.append(accepted(engine))
    assert abs(counts[2] - counts[0]) < 4  # what a step has room for depends on when it comes
    assert counts[3] > counts[1] + len(asked)
    check_sound(session)


def test_a_ring_that_is_full_aborts_and_preemption_are_no_harm(served, prompts, truth):
    cramped = {"num_gpu_blocks_override": 14, "block_size": 32, "enable_prefix_caching": False}
    engine = served("eagle3", **cramped)
    session = Wanderer(engine, ring_tokens=1024).session
    for _ in range(4):  # of somebody else: there is room for three
        session.ring.take([np.arange(600) % 90])
    assert session.ring.ring.moves
    engine.abort(prompts, TOKENS, steps=8)
    for _ in range(3):
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert engine.preempted > 0
    check_sound(session)

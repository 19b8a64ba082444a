import numpy as np
from test_either_runner import check_ring
from wandering import Wanderer, check_sound

TOKENS = 32


def test_what_was_answered_is_copied_by_kernels(serve, prompts, truth, monkeypatch):
    monkeypatch.setattr("adaspec.vllm.session.drafting.KERNELS_ON_CPU", True)
    engine, session = serve(None, "fixed:ngram:8:2", ring_tokens=2048)
    assert type(session.drafting.predictor).__name__ == "FusedPredictor"
    check_ring(engine, session, prompts[:2], truth(TOKENS)[:2])  # the interpreter takes its time


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

"""On V2, too, a fault of ours costs a draft and never an output."""

import pytest
from wandering import Wanderer, breaking

PLACES = [
    ("decider", "holds_drafter"),
    ("decider", "decide"),
    ("decider", "note"),
    ("decider", "learn"),
    ("decider", "budget"),
    ("drafting", "begin"),
    ("drafting", "revise"),
    ("drafting", "finish"),
]


@pytest.mark.parametrize(("part", "name"), PLACES)
def test_a_fault_now_and_then_costs_only_its_step(served, prompts, truth, monkeypatch, part, name):
    engine = served("eagle3")
    session = Wanderer(engine).session
    failed = breaking(monkeypatch, getattr(session, part), name, 3)
    assert engine.greedy(prompts[:3], 16) == truth(16)[:3]
    assert failed
    assert sum(session.breaker.counts.values()) >= len(failed)
    assert not session.breaker.off

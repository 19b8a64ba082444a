"""The guard of a V1 engine holds speculation off where it is slow, and lets it back in."""

import pytest
from guarded_engine import check_guard
from wandering import check_sound

from adaspec.vllm.metrics import Counters, MetricsObserver

TOKENS = 128


# make test has the guard of a V2 engine, of which the scheduler's part is the same.
@pytest.mark.thorough
def test_speculation_is_held_off_while_it_is_slow_and_comes_back(
    engines, truth, prompts, monkeypatch
):
    expected = truth(TOKENS)
    engine = engines({"method": "adaspec", "model": "eagle", "guard": True})
    session = engine.put("hybrid-splice:4:20:3:2:5")
    counters = Counters(None, {})
    session.observers.add(MetricsObserver(counters))

    def ask():
        assert engine.greedy(prompts, TOKENS) == expected

    check_guard(engine, session, "V1", ask, monkeypatch)
    assert counters["guard_steps/hold"] > 32
    assert all(counters[f"guard_tokens_per_second/{key}"] > 0 for key in ("with", "without"))
    check_sound(session)

"""The guard of a V1 engine holds speculation off where it is slow, and lets it back in."""

import pytest
from guarded_engine import SlowSteps

from adaspec.vllm.metrics import Counters, MetricsObserver

KEYS = ("ngram", "neural", "splice")
TOKENS = 128


@pytest.fixture
def guarded(engines):
    """An engine with a guard, and its counters."""
    engine = engines({"method": "adaspec", "model": "eagle", "guard": True})
    session = engine.put("hybrid-splice:4:20:3:2:5")
    counters = Counters(None, {})
    session.observers.add(MetricsObserver(counters))
    return engine, session, counters


def drafted(counters):
    return sum(counters[f"drafted_tokens/{key}"] for key in KEYS)


def test_speculation_is_held_off_while_it_is_slow_and_comes_back(guarded, truth, prompts):
    expected = truth(TOKENS)
    engine, session, counters = guarded
    with SlowSteps(engine, "V1", 15.0) as steps:
        for _ in range(8):  # nothing is held off in the first steps
            assert engine.greedy(prompts, TOKENS) == expected
            if steps.words.count("hold") > 64:
                break
        assert {"plan", "probe", "hold"} == set(steps.words)
        assert steps.words.count("hold") >= 32
        assert counters["guard_switches"] >= 2
        assert counters["guard_steps/hold"] == steps.words.count("hold")
        rates = [counters[f"guard_tokens_per_second/{key}"] for key in ("with", "without")]
        assert 0 < rates[0] < rates[1]
        before, steps.slow_s = drafted(counters), 0.1
        for _ in range(12):
            steps.words = []
            assert engine.greedy(prompts, TOKENS) == expected
            if steps.words.count("plan") > 0.6 * len(steps.words):
                break
        assert steps.words.count("plan") > 0.6 * len(steps.words)
        assert drafted(counters) > before
    assert counters["drafter_forwards/draft"] > 0
    assert not session.breaker.counts


def test_probes_cost_requests_nothing_but_the_step(guarded, truth, prompts):
    engine, session, _ = guarded
    with SlowSteps(engine, "V1", 0.1) as steps:
        assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert 0 < steps.words.count("probe") < 0.3 * len(steps.words)
    assert "hold" not in steps.words
    assert not session.breaker.counts

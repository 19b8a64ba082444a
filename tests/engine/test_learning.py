"""A V1 engine learns while it serves what its steps take; outputs stay what they were."""

import sys
from pathlib import Path

from costly_steps import COSTLY, CostlySteps

sys.path.append(str(Path(__file__).parent / "v2"))

from wandering import random_policy

TOKENS = 96


def test_what_verified_tokens_take_is_learned(engines, truth, prompts):
    from adaspec.vllm.metrics import Counters, MetricsObserver

    expected = truth(TOKENS)
    engine = engines({"method": "adaspec", "model": "eagle", "guard": True})
    session = engine.put(random_policy(2, True))
    counters = Counters(None, {})
    session.observers.add(MetricsObserver(counters))
    with CostlySteps(engine, "V1", session) as steps:
        for _ in range(4):
            assert engine.greedy(prompts, TOKENS) == expected
        assert COSTLY / 2 < steps.token_over_step < COSTLY * 1.5
    assert counters["cost_factor/token"] == steps.refit.factors[1] != 1
    assert not session.breaker.counts


def test_costs_stay_as_they_were_given_where_nothing_is_to_be_learned(engines, truth, prompts):
    truth(TOKENS)
    engine = engines({"method": "adaspec", "model": "eagle", "guard": True, "learn": False})
    session = engine.put(random_policy(2, True))
    assert session.clocked is None
    engine.greedy(prompts[:2], 16)
    assert session.policy.refit is None

"""A server as it is by default: it measures its costs as it starts, decides by them, and its guard
holds speculation off where it is slow, and lets it back in.
"""

import pytest
from guarded_engine import check_guard
from test_startup import check_measured
from wandering import Wanderer, check_sound

from adaspec.cost.load import cost_from_document
from adaspec.cost.model import plain_seconds
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE

TOKENS = 32
BY_DEFAULT = {"cost": None, "guard": True}


@pytest.mark.parametrize("head", ["eagle3", pytest.param(None, marks=pytest.mark.thorough)])
def test_costs_are_measured_at_start_and_outputs_are_as_they_were(
    served, prompts, truth, monkeypatch, head
):
    engine, cost = check_measured(lambda: served(head, config=BY_DEFAULT), monkeypatch)
    assert (cost.forward_s + cost.forward_per_row_s > 0) is (head is not None)
    # The guard, in the process that schedules, asks the same costs.
    options = getattr(engine.runner.vllm_config.speculative_config, OPTIONS_ATTRIBUTE)
    assert cost_from_document(options.costs, "costs") == cost
    guard = engine.scheduler.adaspec_timed.guard
    assert guard._plain_s(4, 300, 0) == plain_seconds(cost)(4, 300, 0)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert not engine.session.breaker.counts
    assert sum(drafted for each in engine.judged.values() for drafted, _ in each) > 0


def test_speculation_is_held_off_while_it_is_slow_and_comes_back(
    served, truth, prompts, monkeypatch
):
    expected = truth(2 * TOKENS)[:2]
    engine = served("eagle3", config=BY_DEFAULT)
    session = Wanderer(engine).session

    def ask():
        assert engine.greedy(prompts[:2], 2 * TOKENS) == expected

    check_guard(engine, session, "V2", ask, monkeypatch)
    check_sound(session)

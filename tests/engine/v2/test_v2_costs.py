"""A server without a cost file measures its costs as it starts, and decides by them."""

import pytest
from test_startup import check_measured

from adaspec.cost.load import cost_from_document
from adaspec.cost.model import plain_seconds
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE

TOKENS = 32


@pytest.mark.parametrize("head", ["eagle3", pytest.param(None, marks=pytest.mark.thorough)])
def test_costs_are_measured_at_start_and_outputs_are_as_they_were(
    served, prompts, truth, monkeypatch, head
):
    config = {"cost": None, "guard": True}
    engine, cost = check_measured(lambda: served(head, config=config), monkeypatch)
    assert (cost.forward_s + cost.forward_per_row_s > 0) is (head is not None)
    # The guard, in the process that schedules, asks the same costs.
    options = getattr(engine.runner.vllm_config.speculative_config, OPTIONS_ATTRIBUTE)
    assert cost_from_document(options.costs, "costs") == cost
    guard = engine.scheduler.adaspec_timed.guard
    assert guard._plain_s(4, 300, 0) == plain_seconds(cost)(4, 300, 0)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert not engine.session.breaker.counts
    assert sum(drafted for each in engine.judged.values() for drafted, _ in each) > 0

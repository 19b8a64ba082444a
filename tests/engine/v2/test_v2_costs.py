"""A server without a cost file measures its costs as it starts, and decides by them."""

import pytest
from wandering import CAP

from adaspec.cost.engine import ASYNC
from adaspec.cost.load import check_cost, cost_from_document
from adaspec.cost.model import plain_seconds
from adaspec.vllm import measuring
from adaspec.vllm.patching import ATTRIBUTE

TOKENS = 32


@pytest.mark.parametrize("head", ["eagle3", pytest.param(None, marks=pytest.mark.thorough)])
def test_costs_are_measured_at_start_and_outputs_are_as_they_were(
    served, prompts, truth, monkeypatch, head
):
    monkeypatch.setattr(measuring, "ROUNDS", 1)
    monkeypatch.setattr(measuring, "MOST_S", 600.0)
    engine = served(head, config={"cost": None, "guard": True})
    session = engine.runner.adaspec_session
    cost = session.serving.setup.cost
    check_cost(cost, "measured")
    assert cost.name == measuring.NAME
    # Without graphs, as far as eight rows with drafts go.
    longest = 8 * (1 + CAP)
    assert (cost.tokens[0], cost.tokens[-1], cost.largest_graph) == (1, longest, 0)
    assert (cost.forward_s + cost.forward_per_row_s > 0) is (head is not None)
    table_s = session.host._policy.planner.costs.table_s
    assert table_s[longest] == pytest.approx(cost.seconds[-1])
    # The guard, in the process that schedules, asks the same costs.
    options = getattr(engine.runner.vllm_config.speculative_config, ATTRIBUTE)
    assert cost_from_document(options.costs, "costs") == cost
    guard = engine.scheduler.adaspec_timed.guard
    assert guard._plain_s(4, 300, 0) == plain_seconds(cost.under(ASYNC))(4, 300, 0)
    assert engine.greedy(prompts, TOKENS) == truth(TOKENS)
    assert not session.breaker.counts
    assert sum(drafted for each in engine.judged.values() for drafted, _ in each) > 0

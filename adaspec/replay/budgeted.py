"""`budget:K` at full speed: its compiled formulas in one compiled closed loop."""

from __future__ import annotations

import numpy as np

from adaspec.cost.model import CostModel, Costs, step_shape
from adaspec.jit import compiled
from adaspec.policy import budgeted
from adaspec.policy.budgeted import Array, Budgeted, Ints
from adaspec.replay import closed_loop
from adaspec.replay.closed_loop import ClosedLoop, Result
from adaspec.replay.recording import Recording


@compiled
def _run(loop: ClosedLoop, depth: int, state: Array, costs: Costs) -> None:
    """Run the closed loop to its end."""
    columns, concurrency = loop.columns, loop.request.shape[0]
    shows_confidences = columns.confidence.shape[1] >= depth
    odds = np.zeros((concurrency if shows_confidences else 0, depth))
    accepted = np.zeros(concurrency, np.int64)
    while closed_loop.goes_on(loop):
        context = closed_loop.context_tokens(loop)
        for row in range(odds.shape[0]):
            at = columns.offset[loop.request[row]] + loop.position[row]
            for j in range(depth):
                odds[row, j] = columns.confidence[at, j]
        drafted = step_shape(concurrency, context, 0, depth, True)
        lengths = budgeted.choose(state, drafted, odds, costs)
        tokens = taken = 0
        for row in range(concurrency):
            request, position = loop.request[row], loop.position[row]
            left = columns.length[request] - position
            accepted[row] = min(columns.neural[columns.offset[request] + position], lengths[row])
            loop.emitted[row] = min(accepted[row] + 1, left)
            tokens += lengths[row]
            taken += min(accepted[row], left)
        budgeted.learn(state, odds, lengths, accepted)
        shape = step_shape(concurrency, context, tokens, depth, True)
        closed_loop.finish_step(loop, costs, shape, taken)


def run_budgeted(
    recording: Recording, policy: Budgeted, order: Ints, concurrency: int, cost: CostModel, cap: int
) -> Result:
    """One run of the closed loop under a budget."""
    depth, costs = min(policy.draft_len, cap), cost.without_deciding().constants()
    loop = closed_loop.start(recording.columns, order, concurrency, True)
    _run(loop, depth, budgeted.begin(), costs)
    return closed_loop.result_of(loop)

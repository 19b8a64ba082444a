"""`budget:K` at full speed: its compiled formulas in one compiled closed loop."""

from __future__ import annotations

import numpy as np

from adaspec.cost.model import CostModel, Costs, decoding_shape
from adaspec.jit import compiled
from adaspec.policy import budgeted
from adaspec.policy.budgeted import Array, Budgeted, Ints
from adaspec.replay import closed_loop
from adaspec.replay.closed_loop import Result
from adaspec.replay.recording import Columns, Recording


@compiled
def _run(
    columns: Columns, order: Ints, concurrency: int, depth: int, state: Array, costs: Costs
) -> closed_loop.ClosedLoop:
    """The closed loop, run to its end."""
    loop = closed_loop.start(columns, order, concurrency, True)
    shows_confidences = columns.confidence.shape[1] >= depth
    while closed_loop.goes_on(loop):
        context = closed_loop.context_tokens(loop)
        at = columns.offset[loop.request] + loop.position
        confidence = columns.confidence[at if shows_confidences else at[:0]]
        drafted = decoding_shape(concurrency, context, 0, depth, True)
        lengths = budgeted.choose(state, drafted, confidence, costs)
        accepted = np.minimum(columns.neural[at], lengths)
        budgeted.learn(state, confidence, lengths, accepted)
        left = columns.length[loop.request] - loop.position
        loop.emitted[:] = np.minimum(accepted + 1, left)
        shape = decoding_shape(concurrency, context, lengths.sum(), depth, True)
        closed_loop.finish_step(loop, costs, shape, np.minimum(accepted, left).sum())
    return loop


def run_budgeted(
    recording: Recording, policy: Budgeted, order: Ints, concurrency: int, cost: CostModel, cap: int
) -> Result:
    """One run of the closed loop under a budget."""
    depth, costs = min(policy.draft_len, cap), cost.without_deciding().constants()
    run = order, concurrency, depth, budgeted.begin(), costs
    return closed_loop.result_of(_run(recording.columns, *run))

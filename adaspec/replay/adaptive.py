"""The adaptive baselines at full speed: their compiled formulas inside one compiled closed loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, Costs, StepShape, deciding_s, step_s
from adaspec.jit import compiled
from adaspec.policy.adaptive import (
    BUDGET_DEPTH,
    Budget,
    Ema,
    budget_learn,
    budget_lengths,
    budget_state,
    ema_learn,
    ema_length,
    ema_state,
)
from adaspec.replay.closed_loop import (
    ClosedLoop,
    advance,
    context_tokens,
    count_step,
    goes_on,
    result_of,
    start,
)
from adaspec.replay.recording import Columns, Recording
from adaspec.replay.result import Result

Array = NDArray[np.float64]
Ints = NDArray[np.int32]


@compiled
def _run(
    columns: Columns,
    order: Ints,
    concurrency: int,
    refills: bool,
    is_budget: bool,
    state: Array,
    tiers: NDArray[np.int64],
    alpha: float,
    costs: Costs,
) -> ClosedLoop:
    """The closed loop, run to its end; for `budget:K` the one tier is K."""
    loop = start(columns, order, concurrency, refills, True)
    most = tiers.max()
    known = columns.confidence.shape[1] >= most and is_budget
    confidence = np.zeros((concurrency, most))
    lengths = np.zeros(concurrency, np.int32)
    accepted = np.zeros(concurrency, np.int32)
    while goes_on(loop):
        rows, context = loop.state[0].rows, context_tokens(loop)
        if is_budget:
            depth = most
            if known:
                for row in range(rows):
                    i = columns.offset[loop.request[row]] + loop.position[row]
                    confidence[row] = columns.confidence[i, :most]
            budget_lengths(state, depth, confidence, known, rows, context, costs, lengths)
        else:
            depth = ema_length(state, tiers, rows)
            lengths[:rows] = depth
        total = taken = 0
        for row in range(rows):
            r, p = loop.request[row], loop.position[row]
            left = columns.length[r] - p
            accepted[row] = min(columns.neural[columns.offset[r] + p], lengths[row])
            loop.emitted[row] = min(accepted[row] + 1, left)
            total += lengths[row]
            taken += min(accepted[row], left)
        if is_budget:
            budget_learn(state, confidence, known, rows, lengths, accepted)
        else:
            ema_learn(state, tiers, alpha, rows, accepted[:rows])
        shape = StepShape(rows, context, 0, total, 0, depth, True, 0)
        count_step(loop, shape, step_s(costs, shape), deciding_s(costs, shape), taken)
        advance(loop, True)
    return loop


def run_adaptive(
    recording: Recording,
    policy: Budget | Ema,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    refills: bool = True,
) -> Result:
    """What the loop for any policy would say of this policy, compiled."""
    if isinstance(policy, Budget):
        assert policy.depth <= BUDGET_DEPTH
        is_budget, state, alpha = True, budget_state(), 0.0
        tiers = np.array([min(policy.depth, cap)], dtype=np.int64)
    else:
        is_budget, alpha, tiers = False, policy.alpha, np.minimum(policy.tiers, cap)
        state = ema_state(len(tiers))
    costs = cost.charged_to(policy.deciding).constants()
    return result_of(
        _run(recording.columns, order, concurrency, refills, is_budget, state, tiers, alpha, costs)
    )

"""The adaptive baselines at full speed: their compiled formulas inside one compiled closed loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, step_s
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
from adaspec.replay.result import Result
from adaspec.replay.rows import advance, enter, new_latency, seconds_per_token
from adaspec.replay.tape import Columns, Tape

Array = NDArray[np.float64]

_BUDGET, _EMA = 0, 1


@compiled
def _loop(
    columns: Columns,
    order: NDArray[np.int32],
    concurrency: int,
    refills: bool,
    kind: int,
    state: Array,
    tiers: NDArray[np.int64],
    alpha: float,
    cost: Array,
    sums: Array,
    latency: Array,
) -> None:
    """The closed loop; for budget `tiers` holds the one K."""
    rows = following = concurrency
    running, time = enter(columns, order, concurrency, refills, True)
    most = tiers.max()
    known = columns.confidence.shape[1] >= most and kind == _BUDGET
    confidence = np.zeros((concurrency, most))
    lengths = np.zeros(concurrency, np.int32)
    accepted = np.zeros(concurrency, np.int32)
    emitted = np.zeros(concurrency, np.int64)
    tokens = steps = row_steps = drafted = taken = 0
    ended = False
    while rows > 0 and not ended:
        context = 0
        for row in range(rows):
            r = running.request[row]
            i = columns.offset[r] + running.position[row]
            context += columns.prompt[r] + running.position[row]
            if known:
                for j in range(most):
                    confidence[row, j] = columns.confidence[i, j]
        if kind == _BUDGET:
            depth = most
            budget_lengths(state, depth, confidence, known, rows, context, cost, lengths)
        else:
            depth = ema_length(state, tiers, rows)
            lengths[:rows] = depth
        total = 0
        for row in range(rows):
            r, p = running.request[row], running.position[row]
            accepted[row] = min(columns.neural[columns.offset[r] + p], lengths[row])
            left = columns.length[r] - p
            emitted[row] = min(accepted[row] + 1, left)
            total += lengths[row]
            tokens += emitted[row]
            taken += min(accepted[row], left)
        if kind == _BUDGET:
            budget_learn(state, confidence, known, rows, lengths, accepted)
        else:
            ema_learn(state, tiers, alpha, rows, accepted[:rows])
        time += step_s(cost, rows + total, context, depth, True)
        steps += 1
        row_steps += rows
        drafted += total
        rows, following, time, ended = advance(
            columns, order, refills, True, running, rows, following, emitted, time, latency
        )
    sums[0], sums[1], sums[2], sums[3], sums[4], sums[5] = (
        tokens,
        time,
        steps,
        row_steps,
        taken,
        drafted,
    )


def run_adaptive(
    tape: Tape,
    policy: Budget | Ema,
    order: NDArray[np.int32],
    concurrency: int,
    cost: CostModel,
    cap: int,
    refills: bool = True,
) -> Result:
    """What the generic loop would say of this policy, compiled."""
    if isinstance(policy, Budget):
        assert policy.depth <= BUDGET_DEPTH
        kind, state, alpha = _BUDGET, budget_state(), 0.0
        tiers = np.array([min(policy.depth, cap)], dtype=np.int64)
    else:
        kind, alpha, tiers = _EMA, policy.alpha, np.minimum(policy.tiers, cap)
        state = ema_state(len(tiers))
    sums = np.zeros(6)
    latency = new_latency(order)
    _loop(
        tape.columns,
        order,
        concurrency,
        refills,
        kind,
        state,
        tiers,
        alpha,
        cost.constants(),
        sums,
        latency,
    )
    tokens, time, steps, row_steps, accepted, drafted = sums
    return Result(
        tokens=tokens,
        time_s=time,
        steps=steps,
        row_steps=row_steps,
        accepted=accepted,
        drafted=drafted,
        neural_steps=steps,
        token_s=seconds_per_token(tape.columns, order, latency),
    )

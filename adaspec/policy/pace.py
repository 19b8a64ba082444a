"""The running rate at which tokens are traded against time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import step_s
from adaspec.jit import compiled
from adaspec.policy.desk import PACE, PRIOR, PRIOR_STEPS, STEPS, SUM_TIME, SUM_TOKENS, Desk
from adaspec.predict.features import Rows

Array = NDArray[np.float64]


@compiled
def context_of(rows: Rows) -> int:
    """Known tokens of all rows."""
    total = 0
    for row in range(rows.slots.shape[0]):
        total += rows.prompt_tokens[row] + rows.position[row]
    return total


@compiled
def rate_of(desk: Desk, knobs: Array, cost: Array, rows: int, context: int) -> float:
    """Tokens per second at the running pace, at first a guess from what no speculation would do."""
    plain = rows / step_s(cost, rows, context, 0, False)
    steps = min(desk.pace[STEPS], knobs[PACE])
    guess = knobs[PRIOR_STEPS] * rows / plain
    tokens = desk.pace[SUM_TOKENS] + knobs[PRIOR] * plain * guess
    return tokens / (desk.pace[SUM_TIME] + guess) if steps > 0 else knobs[PRIOR] * plain


@compiled
def keep_pace(desk: Desk, knobs: Array, tokens: int, seconds: float) -> None:
    """Take a step into the running rate."""
    at = int(desk.pace[STEPS]) % int(knobs[PACE])
    desk.pace[SUM_TOKENS] += tokens - desk.ring[at, 0]
    desk.pace[SUM_TIME] += seconds - desk.ring[at, 1]
    desk.ring[at, 0], desk.ring[at, 1] = tokens, seconds
    desk.pace[STEPS] += 1.0

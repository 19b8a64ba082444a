"""The running throughput, at which tokens are traded against time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, plain_step_s
from adaspec.jit import compiled
from adaspec.policy.planner.memory import PRIOR_SPEEDUP, PRIOR_STEPS, RATE_STEPS, Memory
from adaspec.predict.features import RowFacts

Array = NDArray[np.float64]


@compiled
def context_of(rows: RowFacts) -> int:
    """Known tokens of all rows."""
    total = 0
    for row in range(rows.slots.shape[0]):
        total += rows.prompt_tokens[row] + rows.position[row]
    return total


@compiled
def rate_of(memory: Memory, knobs: Array, costs: Costs, rows: int, context: int) -> float:
    """Tokens per second of the last steps; at first a guess from what no speculation would do."""
    throughput = memory.throughput[0]
    plain = rows / plain_step_s(costs, rows, context)
    steps = min(throughput.steps, knobs[RATE_STEPS])
    prior_s = knobs[PRIOR_STEPS] * rows / plain
    tokens = throughput.tokens + knobs[PRIOR_SPEEDUP] * plain * prior_s
    return tokens / (throughput.seconds + prior_s) if steps > 0 else knobs[PRIOR_SPEEDUP] * plain


@compiled
def count_step(memory: Memory, knobs: Array, tokens: int, seconds: float) -> None:
    """Take a step into the running throughput."""
    throughput = memory.throughput[0]
    oldest = memory.recent_steps[int(throughput.steps) % int(knobs[RATE_STEPS])]
    throughput.tokens += tokens - oldest[0]
    throughput.seconds += seconds - oldest[1]
    oldest[0], oldest[1] = tokens, seconds
    throughput.steps += 1.0

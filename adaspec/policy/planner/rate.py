"""The running throughput, at which tokens are traded against time."""

from __future__ import annotations

from adaspec.cost.model import Costs, plain_step_s
from adaspec.jit import compiled
from adaspec.policy.planner.memory import RATE_STEPS, Memory
from adaspec.predict.features import RowFacts

_PRIOR_SPEEDUP = 2.0
_PRIOR_STEPS = 10.0
"""The throughput begins as so many steps at so much more than no speculation would emit."""


@compiled
def context_of(rows: RowFacts) -> int:
    """Known tokens of all rows."""
    total = 0
    for row in range(rows.slots.shape[0]):
        total += rows.prompt_tokens[row] + rows.position[row]
    return total


@compiled
def rate_of(memory: Memory, costs: Costs, rows: int, context: int) -> float:
    """Tokens per second of the last steps; at first a guess from what no speculation would do."""
    throughput = memory.throughput[0]
    plain = rows / plain_step_s(costs, rows, context)
    if throughput.steps == 0:
        return _PRIOR_SPEEDUP * plain
    prior_s = _PRIOR_STEPS * rows / plain
    tokens = throughput.tokens + _PRIOR_SPEEDUP * plain * prior_s
    return tokens / (throughput.seconds + prior_s)


@compiled
def count_step(memory: Memory, tokens: int, seconds: float) -> None:
    """Take a step into the running throughput."""
    throughput = memory.throughput[0]
    oldest = memory.recent_steps[int(throughput.steps) % RATE_STEPS]
    throughput.tokens += tokens - oldest[0]
    throughput.seconds += seconds - oldest[1]
    oldest[0], oldest[1] = tokens, seconds
    throughput.steps += 1.0

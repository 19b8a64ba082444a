"""The step-time formula, and the one compiled function that computes it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import inlined

Array = NDArray[np.float64]

_FIXED, PER_TOKEN, _PER_KV, _OVERHEAD = 0, 1, 2, 3
_DRAFT_FIXED, _DRAFT_PER_KV, _KEEP_ALIVE, DRAFT_PROMPT, _SIZES = 4, 5, 6, 7, 8


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds per engine step:

    step_s = fixed + per_token * tokens + per_kv * context_tokens + overhead
             + forwards * (draft_fixed + draft_per_kv * context_tokens)

    tokens = sum(1 + draft_len), padded up to the next captured size where there are any;
    context_tokens is summed over the running rows; forwards = neural drafter forwards, at least
    `keep_alive_forwards` in a step where any running request holds the neural drafter. Where
    prefill counts, a request that enters with the drafter takes `draft_prompt_s` per prompt token
    more.
    """

    name: str
    fixed_s: float
    per_token_s: float
    per_kv_s: float
    overhead_s: float
    draft_fixed_s: float
    draft_per_kv_s: float
    keep_alive_forwards: int = 1
    captured_sizes: tuple[int, ...] = field(default=())
    target: str | None = None
    hardware: str | None = None
    draft_prompt_s: float = 0.0

    def constants(self) -> Array:
        """The model as one flat row, for compiled code."""
        row = [
            self.fixed_s,
            self.per_token_s,
            self.per_kv_s,
            self.overhead_s,
            self.draft_fixed_s,
            self.draft_per_kv_s,
            float(self.keep_alive_forwards),
            self.draft_prompt_s,
            *(float(size) for size in self.captured_sizes),
        ]
        return np.array(row, dtype=np.float64)

    def step_s(
        self, tokens: int, context_tokens: int, forwards: int = 0, holds_neural: bool = False
    ) -> float:
        """Seconds of a step that verifies `tokens` and runs the neural drafter `forwards` times."""
        return float(step_s(self.constants(), tokens, context_tokens, forwards, holds_neural))


@inlined
def captured_sizes(cost: Array) -> Array:
    """The captured batch sizes in tokens, ascending; empty where cost is linear."""
    return cost[_SIZES:]


@inlined
def padded(cost: Array, tokens: int) -> float:
    """`tokens`, or the smallest captured size that holds them."""
    for at in range(_SIZES, cost.shape[0]):
        if cost[at] >= tokens:
            return cost[at]
    return float(tokens)


@inlined
def padded_below(cost: Array, size: float) -> float:
    """The largest captured size smaller than this one; 0 where there is none."""
    below = 0.0
    for at in range(_SIZES, cost.shape[0]):
        if cost[at] < size:
            below = cost[at]
    return below


@inlined
def verify_s(cost: Array, tokens: int, context_tokens: int) -> float:
    """Seconds of a step without its drafting."""
    return (
        cost[_FIXED]
        + cost[PER_TOKEN] * padded(cost, tokens)
        + cost[_PER_KV] * context_tokens
        + cost[_OVERHEAD]
    )


@inlined
def forward_s(cost: Array, context_tokens: int) -> float:
    """Seconds of one forward of the neural drafter over the running rows."""
    return cost[_DRAFT_FIXED] + cost[_DRAFT_PER_KV] * context_tokens


@inlined
def paid_forwards(cost: Array, forwards: int, holds_neural: bool) -> int:
    """Forwards a step pays for: the keep-alive counts where any request holds the drafter."""
    if holds_neural:
        return max(forwards, int(cost[_KEEP_ALIVE]))
    return forwards


@inlined
def step_s(
    cost: Array, tokens: int, context_tokens: int, forwards: int, holds_neural: bool
) -> float:
    """Seconds of one whole step."""
    return verify_s(cost, tokens, context_tokens) + paid_forwards(
        cost, forwards, holds_neural
    ) * forward_s(cost, context_tokens)

"""The step-time formula, in compiled functions: what a step takes, and what one more token would.

A step is described by its `StepShape`, which has the drafted tokens by source. `verified_tokens`
says what they are charged as, and `token_price` what planners take one more of them to cost; tokens
of all sources cost alike today.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled, inlined

Array = NDArray[np.float64]
Ints = NDArray[np.int32]


class StepShape(NamedTuple):
    """What one engine step does, as far as its duration depends on it."""

    rows: int
    """Running requests: each verifies one token beside its draft."""
    context_tokens: int
    """Known tokens, summed over the rows."""
    copied: int = 0
    """Drafted tokens that continue the known text by n-gram look-up."""
    neural: int = 0
    """Drafted tokens of the neural drafter that are verified."""
    spliced: int = 0
    """Drafted tokens that were copied behind neural ones."""
    forwards: int = 0
    """Forwards of the neural drafter."""
    holds_neural: bool = False
    """Whether any row holds the neural drafter, and so its keep-alive is paid."""


class Costs(NamedTuple):
    """The constants of a `CostModel`, for compiled code."""

    fixed_s: float
    per_token_s: float
    per_kv_s: float
    overhead_s: float
    draft_fixed_s: float
    draft_per_kv_s: float
    keep_alive_forwards: int
    draft_prompt_s: float
    captured_sizes: Array
    """The captured batch sizes in tokens, ascending; empty where cost is linear."""


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

    def constants(self) -> Costs:
        """The model's numbers, for compiled code."""
        return Costs(
            fixed_s=float(self.fixed_s),
            per_token_s=float(self.per_token_s),
            per_kv_s=float(self.per_kv_s),
            overhead_s=float(self.overhead_s),
            draft_fixed_s=float(self.draft_fixed_s),
            draft_per_kv_s=float(self.draft_per_kv_s),
            keep_alive_forwards=int(self.keep_alive_forwards),
            draft_prompt_s=float(self.draft_prompt_s),
            captured_sizes=np.array(self.captured_sizes, dtype=np.float64),
        )

    def step_s(self, shape: StepShape) -> float:
        """Seconds of a step."""
        return float(step_s(self.constants(), shape))


@compiled
def batch_shape(
    rows: int,
    context_tokens: int,
    drafted: Ints,
    neural_drafted: Ints,
    forwards: int,
    holds_neural: bool,
) -> StepShape:
    """The shape of a step in which every row drafted so many tokens, so many of them neural."""
    copied = neural = spliced = 0
    for row in range(drafted.shape[0]):
        neural += neural_drafted[row]
        if neural_drafted[row] > 0:
            spliced += drafted[row] - neural_drafted[row]
        else:
            copied += drafted[row]
    return StepShape(rows, context_tokens, copied, neural, spliced, forwards, holds_neural)


@inlined
def verified_tokens(shape: StepShape) -> int:
    """Tokens that the target model verifies in a step, each charged alike."""
    return shape.rows + shape.copied + shape.neural + shape.spliced


@inlined
def token_s(costs: Costs) -> float:
    """Seconds that one more verified token takes, of whichever source, padding left out."""
    return costs.per_token_s


@inlined
def token_price(costs: Costs, rate: float) -> float:
    """Tokens that the time of one more verified token is worth, at `rate` tokens per second."""
    return rate * token_s(costs)


@inlined
def padded(costs: Costs, tokens: int) -> float:
    """`tokens`, or the smallest captured size that holds them."""
    for size in costs.captured_sizes:
        if size >= tokens:
            return size
    return float(tokens)


@inlined
def padded_below(costs: Costs, tokens: float) -> float:
    """The largest captured size smaller than `tokens`; 0 where there is none."""
    below = 0.0
    for size in costs.captured_sizes:
        if size < tokens:
            below = size
    return below


@inlined
def verify_s(costs: Costs, shape: StepShape) -> float:
    """Seconds of a step without its drafting."""
    return (
        costs.fixed_s
        + costs.per_token_s * padded(costs, verified_tokens(shape))
        + costs.per_kv_s * shape.context_tokens
        + costs.overhead_s
    )


@inlined
def plain_step_s(costs: Costs, rows: int, context_tokens: int) -> float:
    """Seconds of a step in which nothing is drafted and nobody holds the neural drafter."""
    return verify_s(costs, StepShape(rows, context_tokens, 0, 0, 0, 0, False))


@inlined
def forward_s(costs: Costs, context_tokens: int) -> float:
    """Seconds of one forward of the neural drafter over the running rows."""
    return costs.draft_fixed_s + costs.draft_per_kv_s * context_tokens


@inlined
def paid_forwards(costs: Costs, forwards: int, holds_neural: bool) -> int:
    """Forwards a step pays for: the keep-alive counts where any request holds the drafter."""
    return max(forwards, costs.keep_alive_forwards) if holds_neural else forwards


@inlined
def drafting_s(costs: Costs, shape: StepShape) -> float:
    """Seconds that a step spends in the neural drafter."""
    forwards = paid_forwards(costs, shape.forwards, shape.holds_neural)
    return forwards * forward_s(costs, shape.context_tokens)


@inlined
def step_s(costs: Costs, shape: StepShape) -> float:
    """Seconds of one whole step."""
    return verify_s(costs, shape) + drafting_s(costs, shape)

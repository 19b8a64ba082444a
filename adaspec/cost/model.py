"""The step-time formula, in compiled functions: the time of a step, and of one more token.

A step is described by its `StepShape`, which has the drafted tokens by source. `verified_tokens`
is the number of tokens that are charged, and `token_price` is what planners count for one more
token. Tokens of all sources cost the same today.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import SYNC
from adaspec.jit import compiled, inlined

Array = NDArray[np.float64]
Ints = NDArray[np.int32]


class StepShape(NamedTuple):
    """The properties of an engine step on which its duration depends."""

    rows: int
    """The running requests, each of which verifies one token beside its draft."""
    context_tokens: int
    """The known tokens, summed over the rows."""
    copied: int = 0
    """The drafted tokens that continue the known text by n-gram look-up."""
    neural: int = 0
    """The neural drafter's tokens that are verified."""
    spliced: int = 0
    """The drafted tokens that were copied behind neural ones."""
    forwards: int = 0
    """The forwards of the neural drafter."""
    holds_neural: bool = False
    """Whether any row holds the neural drafter, so that its keep-alive is paid."""
    idle: int = 0
    """The further tokens that the target runs on although no draft fills them."""


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
    """The captured batch sizes in tokens, ascending; empty if the cost is linear."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds per engine step:

    step_s = fixed + per_token * tokens + per_kv * context_tokens + overhead
             + forwards * (draft_fixed + draft_per_kv * context_tokens)

    tokens = sum(1 + draft_len), padded up to the next captured size if there are any;
    context_tokens is summed over the running rows; forwards = neural drafter forwards, at least
    `keep_alive_forwards` in a step in which any running request holds the neural drafter. If
    prefill is counted, a request that enters with the drafter takes `draft_prompt_s` more per
    prompt token. An async engine leaves `async_overhead_s` of the overhead, or all of it where
    that is None.
    """

    name: str
    fixed_s: float = 0.0
    per_token_s: float = 0.0
    per_kv_s: float = 0.0
    overhead_s: float = 0.0
    draft_fixed_s: float = 0.0
    draft_per_kv_s: float = 0.0
    keep_alive_forwards: int = 1
    captured_sizes: tuple[int, ...] = ()
    target: str | None = None
    hardware: str | None = None
    draft_prompt_s: float = 0.0
    async_overhead_s: float | None = None

    def under(self, engine: str) -> CostModel:
        """The step costs in that engine, one of `engine.ENGINES`."""
        if engine == SYNC or self.async_overhead_s is None:
            return self
        return replace(self, overhead_s=self.async_overhead_s)

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
        """The seconds that a step takes."""
        return float(step_s(self.constants(), shape))


@compiled
def batch_shape(
    rows: int,
    context_tokens: int,
    drafted: Ints,
    neural_drafted: Ints,
    forwards: int,
    holds_neural: bool,
    budget: int = 0,
) -> StepShape:
    """The shape of a step in which row i drafted drafted[i] tokens, neural_drafted[i] of neural.

    The target runs on `budget` tokens beside one a row, even if fewer were drafted.
    """
    copied = neural = spliced = 0
    for row in range(drafted.shape[0]):
        neural += neural_drafted[row]
        if neural_drafted[row] > 0:
            spliced += drafted[row] - neural_drafted[row]
        else:
            copied += drafted[row]
    idle = max(budget - copied - neural - spliced, 0)
    return StepShape(rows, context_tokens, copied, neural, spliced, forwards, holds_neural, idle)


@inlined
def verified_tokens(shape: StepShape) -> int:
    """The number of tokens that the target model verifies in a step; all are charged the same."""
    return shape.rows + shape.copied + shape.neural + shape.spliced + shape.idle


@inlined
def token_s(costs: Costs) -> float:
    """The seconds that one more verified token of any source takes, without padding."""
    return costs.per_token_s


@inlined
def token_price(costs: Costs, rate: float) -> float:
    """The price of one more verified token, in tokens lost at `rate` tokens per second."""
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
    """The largest captured size smaller than `tokens`; 0 if there is none."""
    below = 0.0
    for size in costs.captured_sizes:
        if size < tokens:
            below = size
    return below


@inlined
def verify_s(costs: Costs, shape: StepShape) -> float:
    """The seconds of a step without its drafting."""
    return (
        costs.fixed_s
        + costs.per_token_s * padded(costs, verified_tokens(shape))
        + costs.per_kv_s * shape.context_tokens
        + costs.overhead_s
    )


@inlined
def plain_step_s(costs: Costs, rows: int, context_tokens: int) -> float:
    """The seconds of a step in which nothing is drafted and no request holds the neural drafter."""
    return verify_s(costs, StepShape(rows, context_tokens, 0, 0, 0, 0, False, 0))


@inlined
def forward_s(costs: Costs, context_tokens: int) -> float:
    """The seconds of one forward of the neural drafter over the running rows."""
    return costs.draft_fixed_s + costs.draft_per_kv_s * context_tokens


@inlined
def paid_forwards(costs: Costs, forwards: int, holds_neural: bool) -> int:
    """The forwards that a step pays for, with the keep-alive if any request holds the drafter."""
    return max(forwards, costs.keep_alive_forwards) if holds_neural else forwards


@inlined
def drafting_s(costs: Costs, shape: StepShape) -> float:
    """The seconds that a step spends in the neural drafter."""
    forwards = paid_forwards(costs, shape.forwards, shape.holds_neural)
    return forwards * forward_s(costs, shape.context_tokens)


@inlined
def step_s(costs: Costs, shape: StepShape) -> float:
    """The seconds of one full step."""
    return verify_s(costs, shape) + drafting_s(costs, shape)

"""The step-time formula, in compiled functions: the time of a step, and of one more token.

A step is described by its `StepShape`, which has the drafted tokens by source. `verified_tokens`
is the number of tokens that are charged, and `token_price` is what planners count for one more
token. Tokens of all sources cost the same today.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

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
    """Tokens that the target runs on besides: of prompts, or for drafts that do not fill them."""


class Deciding(Enum):
    """What a contender does to decide, and so what its steps are charged for it."""

    NOTHING = "nothing"
    """One length for all, or what no engine has to work out."""
    LOOKUP = "look-up"
    """A static rule that looks up what to copy."""
    THRESHOLD = "threshold"
    """The same, and each forward is read before the next one is launched."""
    PLAN = "plan"
    """It looks up, predicts and plans before drafting."""
    REVISION = "revision"
    """It plans, reads each forward, and plans again."""


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
    decide_s: float
    """Deciding, per step."""
    decide_per_row_s: float
    revise_s: float
    """Reading a forward and deciding again, per forward."""
    revise_per_row_s: float
    captured_sizes: Array
    """The captured batch sizes in tokens, ascending; empty if the cost is linear."""


DECIDING = (
    "lookup_s",
    "lookup_per_row_s",
    "decide_s",
    "decide_per_row_s",
    "listen_s",
    "revise_s",
    "revise_per_row_s",
)
"""The constants of deciding: all of them have an entry per contender in `CostModel.charged_to`."""
ASYNC_DECIDING = ("async_lookup_s", "async_decide_s", "async_revise_s")


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds per engine step:

    step_s = fixed + per_token * tokens + per_kv * context_tokens + overhead
             + decide + decide_per_row * rows
             + forwards * (draft_fixed + draft_per_kv * context_tokens
                           + listen + revise + revise_per_row * rows)

    tokens = sum(1 + draft_len), padded up to the next captured size if there are any;
    context_tokens is summed over the running rows; forwards = neural drafter forwards, at least
    `keep_alive_forwards` in a step in which any running request holds the neural drafter. If
    prefill is counted, a request that enters takes `per_token_s` per prompt token, and with the
    drafter `draft_prompt_s` more.

    What is not done is not charged: see `charged_to`. An async engine leaves the `async_` constant
    in the place of the one without that prefix, and then nothing per row; where it is None, all.
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
    lookup_s: float = 0.0
    lookup_per_row_s: float = 0.0
    decide_s: float = 0.0
    decide_per_row_s: float = 0.0
    listen_s: float = 0.0
    revise_s: float = 0.0
    revise_per_row_s: float = 0.0
    async_lookup_s: float | None = None
    async_decide_s: float | None = None
    async_revise_s: float | None = None

    def under(self, engine: str) -> CostModel:
        """The step costs in that engine, one of `engine.ENGINES`."""
        if engine == SYNC:
            return self
        changed: dict[str, Any] = dict.fromkeys(("async_overhead_s", *ASYNC_DECIDING))
        if self.async_overhead_s is not None:
            changed |= {"overhead_s": self.async_overhead_s}
        if self.async_lookup_s is not None:
            changed |= {"lookup_s": self.async_lookup_s, "lookup_per_row_s": 0.0}
        if self.async_decide_s is not None:
            changed |= {"decide_s": self.async_decide_s, "decide_per_row_s": 0.0}
        if self.async_revise_s is not None:
            changed |= {"revise_s": self.async_revise_s, "revise_per_row_s": 0.0, "listen_s": 0.0}
        return replace(self, **changed)

    @property
    def charges_deciding(self) -> bool:
        """Whether it says what deciding takes."""
        return any(getattr(self, name) for name in DECIDING)

    def without_deciding(self) -> CostModel:
        """The same costs, but deciding takes no time."""
        return self.with_deciding(dict.fromkeys(DECIDING, 0.0) | dict.fromkeys(ASYNC_DECIDING))

    def with_deciding(self, constants: Mapping[str, float | None]) -> CostModel:
        """The same costs with these constants, named in `DECIDING` and `ASYNC_DECIDING`."""
        changed: dict[str, Any] = dict(constants)
        return replace(self, **changed)

    def charged_to(self, deciding: Deciding) -> CostModel:
        """The costs of whoever decides so: what it does not do takes no time.

        They are those of the engine it runs in: `under` comes first.
        """
        if deciding is Deciding.REVISION:
            return self
        left = replace(self, revise_s=0.0, revise_per_row_s=0.0)
        if deciding is not Deciding.THRESHOLD:
            left = replace(left, listen_s=0.0)
        if deciding is Deciding.PLAN:
            return left
        free = deciding is Deciding.NOTHING
        each = (0.0, 0.0) if free else (self.lookup_s, self.lookup_per_row_s)
        return replace(left, decide_s=each[0], decide_per_row_s=each[1])

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
            decide_s=float(self.decide_s),
            decide_per_row_s=float(self.decide_per_row_s),
            revise_s=float(self.listen_s + self.revise_s),
            revise_per_row_s=float(self.revise_per_row_s),
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
def forward_s(costs: Costs, rows: int, context_tokens: int) -> float:
    """The seconds of one forward of the neural drafter over the running rows, and of reading it."""
    reading_s = costs.revise_s + costs.revise_per_row_s * rows
    return costs.draft_fixed_s + costs.draft_per_kv_s * context_tokens + reading_s


@inlined
def paid_forwards(costs: Costs, forwards: int, holds_neural: bool) -> int:
    """The forwards that a step pays for, with the keep-alive if any request holds the drafter."""
    return max(forwards, costs.keep_alive_forwards) if holds_neural else forwards


@inlined
def drafting_s(costs: Costs, shape: StepShape) -> float:
    """The seconds that a step spends in the neural drafter."""
    forwards = paid_forwards(costs, shape.forwards, shape.holds_neural)
    return forwards * forward_s(costs, shape.rows, shape.context_tokens)


@inlined
def plan_s(costs: Costs, rows: int) -> float:
    """The seconds that a step spends on deciding before it drafts."""
    return costs.decide_s + costs.decide_per_row_s * rows


@inlined
def deciding_s(costs: Costs, shape: StepShape) -> float:
    """The seconds that a step spends on deciding, before and between forwards."""
    forwards = paid_forwards(costs, shape.forwards, shape.holds_neural)
    each = costs.revise_s + costs.revise_per_row_s * shape.rows
    return plan_s(costs, shape.rows) + forwards * each


@inlined
def step_s(costs: Costs, shape: StepShape) -> float:
    """The seconds of one full step."""
    return verify_s(costs, shape) + plan_s(costs, shape.rows) + drafting_s(costs, shape)

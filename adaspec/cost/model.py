"""What a step takes: a measured table over the tokens that it verifies, and what comes beside.

    step_s = table(tokens) + context_s * context_tokens
             + forwards
                 * (forward_s + forward_per_row_s * rows + forward_context_s * context_tokens)
             + outside_graphs_s, where the drafter runs in a step outside the graphs
             + draft_prompt_s * prompt tokens that the drafter reads
             + decide_s + decide_per_row_s * rows, of whoever decides anew in each step

Steps of up to `largest_graph` tokens run in CUDA graphs: a batch is padded up to the next size that
was captured, and takes what that takes. Larger ones run outside of them, and their times are
interpolated. What a whole step takes is `step_s`, of the `StepShape` of a step; who weighs a part
asks for that: `target_s` of a budget, `forward_s` of one more forward, `plain_step_s` of none.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta, Struct, structs
from numpy.typing import NDArray

from adaspec.errors import CostError, shown
from adaspec.jit import inlined
from adaspec.records import Text, check

Array = NDArray[np.float64]
Ints = NDArray[np.int32]


class StepShape(NamedTuple):
    """The properties of an engine step on which its duration depends."""

    rows: int
    """The running requests, each of which verifies one token beside its draft."""
    context_tokens: int
    drafted: int = 0
    """The drafted tokens that are verified, of all sources: they take the same time."""
    forwards: int = 0
    holds_neural: bool = False
    """Whether any row holds the neural drafter, so that it runs at least once."""
    budget: int = 0
    """Tokens that the target runs on for drafts, even if these do not fill them."""
    prompt_tokens: int = 0
    draft_prompt_tokens: int = 0
    """Those of them that the drafter reads too."""


@inlined
def step_shape(
    rows: int,
    context_tokens: int,
    drafted: int,
    forwards: int,
    holds_neural: bool,
    budget: int = 0,
    prompt_tokens: int = 0,
    draft_prompt_tokens: int = 0,
) -> StepShape:
    """The shape of a step by what it verifies: compiled code knows no defaults of a tuple."""
    prompts = prompt_tokens, draft_prompt_tokens
    return StepShape(rows, context_tokens, drafted, forwards, holds_neural, budget, *prompts)


class Costs(NamedTuple):
    """The numbers of a `CostModel`, for compiled code."""

    table_s: Array
    """Seconds by tokens, from 0 on: the target alone, without context."""
    beyond_s: float
    """Seconds of each token behind the table's end."""
    largest_graph: int
    context_s: float
    forward_s: float
    forward_per_row_s: float
    forward_context_s: float
    outside_graphs_s: float
    draft_prompt_s: float
    decide_s: float
    decide_per_row_s: float
    mean_token_s: float
    """Seconds of one more token, on average over the table inside the graphs."""
    captured_sizes: Array
    """The captured batch sizes in tokens, ascending; empty if there are no graphs."""
    bends: Array
    """The tokens outside the graphs at which another line begins, ascending."""
    longest_s: float
    """No step is planned that takes longer; infinite where the operator names no bound."""


Tokens = Annotated[int, Meta(ge=0, le=10_000_000)]
Seconds = Annotated[
    float, Meta(ge=0, le=100, description="seconds from 0 to 100 (is it in another unit?)")
]


class CostModel(Struct, frozen=True, forbid_unknown_fields=True):
    """What steps of one machine take, in seconds; see the module for how it is read."""

    name: Text
    tokens: tuple[Tokens, ...]
    """Verified tokens of the steps in the table, ascending: captured sizes up to the largest, one
    more token than that, and more."""
    seconds: tuple[Seconds, ...]
    """What each takes: the target alone, without context."""
    largest_graph: Tokens = 0
    """The largest captured size; 0 where steps run in no graphs."""
    context_s: Seconds = 0.0
    forward_s: Seconds = 0.0
    """Seconds of a forward of the neural drafter, and of each row and context token in it."""
    forward_per_row_s: Seconds = 0.0
    forward_context_s: Seconds = 0.0
    outside_graphs_s: Seconds = 0.0
    """What the drafter takes more in a step that runs outside all graphs."""
    draft_prompt_s: Seconds = 0.0
    decide_s: Seconds = 0.0
    """Seconds of deciding a step, and each of its rows, as a learned policy does."""
    decide_per_row_s: Seconds = 0.0
    target: str | None = None
    hardware: str | None = None

    def __post_init__(self) -> None:
        """Refuse the first field that cannot be right, since compiled code relies on the table."""
        where = f"cost model {shown(self.name)}"
        check(self, where, CostError)
        if len(self.tokens) != len(self.seconds):
            raise CostError(f"{where}: {len(self.tokens)} tokens, but {len(self.seconds)} seconds")
        steps = zip((0, *self.tokens), (0.0, *self.seconds), strict=True)
        for (smaller, less), (size, taken) in pairwise(steps):
            if size <= smaller or taken < less or taken == 0:
                raise CostError(
                    f"{where}: {taken} s for {size} tokens stand behind {less} s for {smaller}: "
                    "tokens increase, and more of them take no less, and more than 0"
                )
        largest = self.largest_graph
        if largest and largest not in self.tokens:
            raise CostError(f"{where}: largest_graph {largest} is none of its tokens")
        if largest + 1 not in self.tokens[:-1]:
            first = f"a step of {largest + 1} tokens, the first outside the graphs"
            raise CostError(f"{where}: give {first}, and one of more")

    @property
    def charges_deciding(self) -> bool:
        """Whether it says what deciding takes."""
        return self.decide_s > 0 or self.decide_per_row_s > 0

    def without_deciding(self) -> CostModel:
        """The costs of who has nothing to decide in a step."""
        return structs.replace(self, decide_s=0.0, decide_per_row_s=0.0)

    def constants(self, longest_s: float | None = None) -> Costs:
        """The model's numbers, for compiled code; no step that is planned takes longer."""
        table_s, beyond_s = _dense(self.tokens, self.seconds, self.largest_graph)
        last = self.largest_graph if self.largest_graph > 1 else len(table_s) - 1
        sizes = np.array(self.tokens, np.float64)
        return Costs(
            table_s=table_s,
            beyond_s=beyond_s,
            largest_graph=int(self.largest_graph),
            mean_token_s=float(table_s[last] - table_s[1]) / (last - 1),
            captured_sizes=sizes[sizes <= self.largest_graph],
            bends=sizes[sizes > self.largest_graph],
            longest_s=np.inf if longest_s is None else longest_s,
            **{term: float(getattr(self, term)) for term in TERMS},
        )

    def step_s(self, shape: StepShape) -> float:
        """The seconds that a step takes."""
        return float(step_s(self.constants(), shape))


TERMS = tuple(name for name in CostModel.__struct_fields__ if name.endswith("_s"))
"""The seconds that come beside the table."""


def line(name: str, fixed_s: float, per_token_s: float, **more: Any) -> CostModel:
    """A cost model whose table is a line over tokens, without captured sizes."""
    seconds = (fixed_s + per_token_s, fixed_s + 2 * per_token_s)
    return CostModel(name, (1, 2), seconds, **more)


def _dense(
    tokens: tuple[int, ...], seconds: tuple[float, ...], largest_graph: int
) -> tuple[Array, float]:
    """Seconds by tokens, from 0 to the last one of the table; and of each token behind it."""
    sizes, times = np.array(tokens, np.float64), np.array(seconds, np.float64)
    table = np.empty(int(sizes[-1]) + 1)
    inside = largest_graph + 1 if largest_graph else 0
    table[:inside] = times[np.searchsorted(sizes, np.arange(inside))]
    # Outside the graphs steps lie on lines, the last of which goes on.
    known, taken = sizes[sizes > largest_graph], times[sizes > largest_graph]
    slopes = np.diff(taken) / np.diff(known)
    every = np.arange(inside, len(table))
    at = np.clip(np.searchsorted(known, every) - 1, 0, len(slopes) - 1)
    table[inside:] = taken[at] + slopes[at] * (every - known[at])
    return table, float(slopes[-1])


@inlined
def target_tokens(shape: StepShape) -> int:
    """The number of tokens that the target model runs on in a step; all are charged the same."""
    return shape.rows + max(shape.drafted, shape.budget) + shape.prompt_tokens


@inlined
def target_s(costs: Costs, tokens: int) -> float:
    """The seconds that the target takes for so many tokens, without their context."""
    last = costs.table_s.shape[0] - 1
    if tokens <= last:
        return costs.table_s[tokens]
    return costs.table_s[last] + (tokens - last) * costs.beyond_s


@inlined
def padded(costs: Costs, tokens: int) -> float:
    """`tokens`, or the smallest captured size that holds them."""
    for size in costs.captured_sizes:
        if size >= tokens:
            return size
    return float(tokens)


@inlined
def without_drafting_s(costs: Costs, shape: StepShape) -> float:
    """The seconds of a step without its drafting."""
    tokens = target_tokens(shape)
    return target_s(costs, tokens) + costs.context_s * shape.context_tokens


@inlined
def plain_step_s(costs: Costs, rows: int, context_tokens: int) -> float:
    """The seconds of a step in which nothing is drafted and no request holds the neural drafter."""
    return without_drafting_s(costs, step_shape(rows, context_tokens, 0, 0, False))


@inlined
def forward_s(costs: Costs, rows: int, context_tokens: int) -> float:
    """The seconds of one forward of the neural drafter over the running rows."""
    return (
        costs.forward_s + costs.forward_per_row_s * rows + costs.forward_context_s * context_tokens
    )


@inlined
def drafting_s(costs: Costs, shape: StepShape) -> float:
    """The seconds that a step spends in the neural drafter."""
    # Without a forward, the KV cache of a drafter that a request holds would have holes.
    forwards = max(shape.forwards, 1) if shape.holds_neural else shape.forwards
    seconds = forwards * forward_s(costs, shape.rows, shape.context_tokens)
    seconds += costs.draft_prompt_s * shape.draft_prompt_tokens
    if forwards > 0 and 0 < costs.largest_graph < target_tokens(shape):
        seconds += costs.outside_graphs_s
    return seconds


@inlined
def deciding_s(costs: Costs, rows: int) -> float:
    """The seconds that a step spends on deciding."""
    return costs.decide_s + costs.decide_per_row_s * rows


@inlined
def step_s(costs: Costs, shape: StepShape) -> float:
    """The seconds of one full step."""
    return (
        without_drafting_s(costs, shape) + deciding_s(costs, shape.rows) + drafting_s(costs, shape)
    )


def check_bound(max_step_ms: float, cost: CostModel) -> None:
    """Refuse a bound that no step keeps."""
    shortest_ms = 1e3 * cost.step_s(StepShape(rows=1, context_tokens=1))
    if max_step_ms < shortest_ms:
        raise CostError(
            f"max_step_ms is {max_step_ms:g}, and a step of one request without drafts takes "
            f"{shortest_ms:.3g} ms by costs '{cost.name}': give more"
        )


def plain_seconds(cost: CostModel) -> Callable[[int, int, int], float]:
    """(rows, context tokens, prompt tokens read) -> the seconds of a step without drafts."""
    costs = cost.constants()

    def seconds(rows: int, context_tokens: int, prompt_tokens: int) -> float:
        shape = StepShape(rows, context_tokens, prompt_tokens=prompt_tokens)
        return float(without_drafting_s(costs, shape))

    seconds(1, 1, 1)  # compiled now, and not when the first request waits
    return seconds

"""References that know the future: fixed choices, perfect planning, the cheapest path.

Frozen code of its own, never the product's planner: it says how much there is to gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import (
    CostModel,
    Costs,
    Deciding,
    decoding_shape,
    plain_step_s,
    reading_shape,
    step_s,
    verify_s,
)
from adaspec.errors import EvaluationError
from adaspec.jit import compiled
from adaspec.policy.base import Needs
from adaspec.replay.closed_loop import (
    TOTALS,
    ClosedLoop,
    context_tokens,
    finish_step,
    goes_on,
    result_of,
    seconds_per_token,
    start,
)
from adaspec.replay.recording import Columns, Recording
from adaspec.replay.result import Result

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

NGRAM, NEURAL, COMBINE, PLAN, PLAN_SPLICE = range(5)
LOOPS = {
    "ngram": NGRAM,
    "neural": NEURAL,
    "combine": COMBINE,
    "plan": PLAN,
    "plan-splice": PLAN_SPLICE,
}
MEMORY = "-memory"
"""What the name of an oracle ends with that may copy from earlier answers."""
SPAN_CAP = 20
"""The paper's bound on a span that oracle:ngram, :neural and :combine propose."""
PLAN_NEURAL = 8
PLAN_CAP = 48
RATE_STEPS = 200


@dataclass(frozen=True, slots=True)
class Oracle:
    """A bound or reference by name: one of `LOOPS`, or `dp` / `dp-splice`.

    With `memory`, it may also copy from the answers of earlier requests.
    """

    kind: str
    memory: bool = False

    @property
    def name(self) -> str:
        """As written in specs and reports."""
        return f"oracle:{self.kind}{MEMORY if self.memory else ''}"

    @property
    def needs(self) -> Needs:
        """The drafter, where it would mean nothing without one."""
        return Needs(drafter=self.kind in ("neural", "combine"), memory=self.memory)


class Bounds(NamedTuple):
    """What an oracle may propose."""

    neural_cap: int
    cap: int
    splices: bool
    holds: bool
    """Whether requests hold the neural drafter."""


@compiled
def _reach(columns: Columns, i: int, left: int, forwards: int, bounds: Bounds) -> int:
    """The most right tokens that can be proposed at flat position i with so many forwards."""
    best = min(columns.run[i], bounds.cap, left)
    known = min(columns.neural[i], forwards, left) if forwards > 0 else 0
    best = max(best, min(known, bounds.cap))
    if bounds.splices:
        for k in range(1, known + 1):
            if k < left:
                best = max(best, min(k + columns.run[i + k], bounds.cap, left))
    return best


@compiled
def _plan(
    loop: ClosedLoop,
    place: Longs,
    left: Longs,
    context: int,
    rate: float,
    bounds: Bounds,
    costs: Costs,
    take: Longs,
) -> int:
    """Maximise emitted - rate * step_s over forwards and lengths; fills `take`, returns forwards.

    All proposed tokens are right, so with the number of forwards fixed only their total counts:
    the best total is none, all, or one that just fills a captured batch size, or at which tokens
    begin to take more time.
    """
    columns, rows = loop.columns, place.shape[0]
    best_value, best_forwards, best_total = -np.inf, 0, 0
    sizes = np.append(costs.captured_sizes, costs.bends)
    for forwards in range(min(PLAN_NEURAL, bounds.neural_cap, bounds.cap) + 1):
        most = 0
        for row in range(rows):
            most += _reach(columns, place[row], left[row], forwards, bounds)
        for tried in range(-2, sizes.shape[0]):
            total = 0 if tried == -2 else most
            if tried >= 0:
                total = min(most, int(sizes[tried]) - rows)
            if total < 0:
                continue
            shape = decoding_shape(rows, context, total, forwards, bounds.holds)
            value = rows + total - rate * step_s(costs, shape)
            if value > best_value + 1e-12:
                best_value, best_forwards, best_total = value, forwards, total
    remaining = best_total
    for row in range(rows):
        reach = _reach(columns, place[row], left[row], best_forwards, bounds)
        take[row] = min(remaining, reach)
        remaining -= take[row]
    return best_forwards


@compiled
def _span(columns: Columns, i: int, left: int, kind: int, bounds: Bounds) -> tuple[int, int]:
    """Length and forwards of the longer accepted span at flat position i; n-gram on ties."""
    ngram = min(columns.run[i], bounds.cap, left) if kind != NEURAL else 0
    neural = 0
    if kind != NGRAM:
        neural = min(columns.neural[i], bounds.cap, bounds.neural_cap, left)
    if neural > ngram:
        return neural, neural
    return ngram, 0


@compiled
def _run(
    columns: Columns, order: Ints, concurrency: int, kind: int, bounds: Bounds, costs: Costs
) -> ClosedLoop:
    """The closed loop under perfect foresight, run to its end."""
    loop = start(columns, order, concurrency, bounds.holds)
    place, left, take = np.zeros((3, concurrency), np.int64)
    recent = np.zeros((RATE_STEPS, 2))
    recent_tokens = recent_time = 0.0
    while goes_on(loop):
        context = context_tokens(loop)
        place[:] = columns.offset[loop.request] + loop.position
        left[:] = columns.length[loop.request] - loop.position - 1
        forwards = 0
        if kind >= PLAN:
            rate = concurrency / plain_step_s(costs, concurrency, context)
            if loop.totals[0].steps > 0:
                rate = recent_tokens / recent_time
            forwards = _plan(loop, place, left, context, rate, bounds, costs, take)
        else:
            for row in range(concurrency):
                take[row], drafted = _span(columns, place[row], left[row], kind, bounds)
                forwards = max(forwards, drafted)
        total = take.sum()
        loop.emitted[:] = take + 1
        # Which source a token came from makes no difference: all are right, and charged alike.
        shape = decoding_shape(concurrency, context, total, forwards, bounds.holds)
        seconds = step_s(costs, shape)
        oldest = recent[int(loop.totals[0].steps) % RATE_STEPS]
        recent_tokens += concurrency + total - oldest[0]
        recent_time += seconds - oldest[1]
        oldest[0], oldest[1] = concurrency + total, seconds
        finish_step(loop, costs, shape, total)
    return loop


@compiled
def _fill_cheapest(columns: Columns, r: int, bounds: Bounds, costs: Costs, best: Array) -> None:
    """Fill best[p] = least seconds from position p to the end of request r."""
    base, end, prompt = columns.offset[r], columns.length[r], columns.prompt[r]
    best[end] = 0.0
    for p in range(end - 1, 0, -1):
        i = base + p
        left = end - p - 1
        least = np.inf
        most = 0
        if bounds.holds:
            most = min(columns.neural[i], bounds.neural_cap, bounds.cap, left)
        for k in range(most + 1):
            longest = k
            if (k == 0 or bounds.splices) and k < left:
                longest = k + min(columns.run[i + k], bounds.cap - k, left - k)
            for taken in range(k, longest + 1):
                shape = decoding_shape(1, prompt + p, taken, k, bounds.holds)
                least = min(least, step_s(costs, shape) + best[p + taken + 1])
        best[p] = least


def cheapest_s(
    recording: Recording, request: int, cost: CostModel, cap: int, splices: bool
) -> tuple[float, float]:
    """Least seconds in which any plan within the caps ends a request that runs alone.

    The seconds on prompts, and those behind them. A request that never holds the neural drafter
    pays no keep-alive: both ways are tried, but not to give the drafter up midway.
    """
    columns, neural_cap = recording.columns, recording.neural_cap
    costs = cost.charged_to(Deciding.NOTHING).constants()
    prompt = int(columns.prompt[request]) if columns.charges_prompts else 0
    best = np.empty(int(columns.length[request]) + 1)
    seconds = []
    for holds in (False, True) if neural_cap else (False,):
        _fill_cheapest(columns, request, Bounds(neural_cap, cap, splices, holds), costs, best)
        shape = reading_shape(prompt)
        reading_s = float(verify_s(costs, shape)) + costs.draft_prompt_s * prompt * holds
        seconds.append((reading_s if prompt else 0.0, float(best[1])))
    return min(seconds, key=sum)


def run_oracle(
    recording: Recording,
    oracle: Oracle,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
) -> Result:
    """The closed loop under an oracle, or requests one after another, each the cheapest way."""
    if oracle.kind not in LOOPS:
        return _run_cheapest(recording, oracle, order, concurrency, cost, cap)
    kind, neural_cap = LOOPS[oracle.kind], recording.neural_cap
    cap = min(cap, PLAN_CAP if kind >= PLAN else SPAN_CAP)
    bounds = Bounds(neural_cap, cap, kind == PLAN_SPLICE, kind != NGRAM and neural_cap > 0)
    costs = cost.charged_to(Deciding.NOTHING).constants()
    return result_of(_run(recording.columns, order, concurrency, kind, bounds, costs))


def _run_cheapest(
    recording: Recording,
    oracle: Oracle,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
) -> Result:
    if concurrency > 1:
        raise EvaluationError(
            f"'{oracle.name}' is the cheapest path of one request: it has no meaning at "
            f"concurrency {concurrency}"
        )
    splices = oracle.kind == "dp-splice"
    seconds = {int(r): cheapest_s(recording, int(r), cost, cap, splices) for r in set(order)}
    prompts_s, decoding_s = np.array([seconds[int(r)] for r in order]).T
    nothing = dict.fromkeys(TOTALS.names or (), 0.0)
    tokens = float((recording.columns.length[order] - 1).sum())
    return Result(
        **nothing | {"tokens": tokens, "time_s": float(prompts_s.sum() + decoding_s.sum())},
        token_s=seconds_per_token(recording.columns, order, decoding_s),
        request_s=prompts_s + decoding_s,
    )

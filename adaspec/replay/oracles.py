"""References that know the future: fixed choices and perfect planning.

Frozen code of its own, never the product's planner: it says how much there is to gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, Costs, plain_step_s, step_s, step_shape
from adaspec.draft.matches import Ints
from adaspec.jit import compiled
from adaspec.policy.budget import worth
from adaspec.policy.static import Needs
from adaspec.replay.loop import Loop, context_tokens, finish_step, goes_on, new_loop, running
from adaspec.replay.recording import Columns, Recording

Array = NDArray[np.float64]
Longs = NDArray[np.int64]

ORACLES = ("ngram", "neural", "combine", "plan", "plan-splice")
NGRAM, NEURAL, COMBINE, PLAN, PLAN_SPLICE = range(len(ORACLES))
SPAN_CAP = 20
"""The paper's bound on a span that oracle:ngram, :neural and :combine propose."""
PLAN_NEURAL = 8
PLAN_CAP = 48
RATE_STEPS = 200


@dataclass(frozen=True, slots=True)
class Oracle:
    """A reference by name: one of `ORACLES`."""

    kind: str

    @property
    def name(self) -> str:
        """As written in specs and reports."""
        return f"oracle:{self.kind}"

    @property
    def needs(self) -> Needs:
        """The drafter, where it would mean nothing without one."""
        return Needs(drafter=self.kind in ("neural", "combine"))


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
    columns: Columns,
    at: Longs,
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
    rows = at.shape[0]
    best_value, best_forwards, best_total = -np.inf, 0, 0
    sizes = np.append(costs.captured_sizes, costs.bends)
    for forwards in range(min(PLAN_NEURAL, bounds.neural_cap, bounds.cap) + 1):
        most = 0
        for row in range(rows):
            most += _reach(columns, at[row], left[row], forwards, bounds)
        for tried in range(-2, sizes.shape[0]):
            total = 0 if tried == -2 else most
            if tried >= 0:
                total = min(most, int(sizes[tried]) - rows)
            if total < 0:
                continue
            shape = step_shape(rows, context, total, forwards, bounds.holds)
            value = worth(rows + total, rate, step_s(costs, shape))
            if value > best_value + 1e-12:
                best_value, best_forwards, best_total = value, forwards, total
    remaining = best_total
    for row in range(rows):
        reach = _reach(columns, at[row], left[row], best_forwards, bounds)
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
def _run(loop: Loop, columns: Columns, kind: int, bounds: Bounds, costs: Costs) -> None:
    """Run the loop under perfect foresight to its end."""
    recent = np.zeros((RATE_STEPS, 2))
    recent_tokens = recent_time = 0.0
    while goes_on(loop):
        rows, steps = running(loop), loop.state[0].steps
        count, context = rows.shape[0], context_tokens(rows)
        at, left = rows.at.copy(), rows.end - rows.at - 1
        take = np.zeros(count, np.int64)
        forwards = total = 0
        if kind >= PLAN:
            rate = count / plain_step_s(costs, count, context)
            if steps > 0:
                rate = recent_tokens / recent_time
            forwards = _plan(columns, at, left, context, rate, bounds, costs, take)
        else:
            for row in range(count):
                take[row], drafted = _span(columns, at[row], left[row], kind, bounds)
                forwards = max(forwards, drafted)
        for row in range(count):
            total += take[row]
            rows[row].emitted = take[row] + 1
        # Which source a token came from makes no difference: all are right, and charged alike.
        shape = step_shape(count, context, total, forwards, bounds.holds)
        seconds = step_s(costs, shape)
        oldest = recent[int(steps) % RATE_STEPS]
        recent_tokens += count + total - oldest[0]
        recent_time += seconds - oldest[1]
        oldest[0], oldest[1] = count + total, seconds
        finish_step(loop, costs, shape, total)


def run_oracle(
    recording: Recording,
    oracle: Oracle,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    comes_s: Array | None = None,
) -> Loop:
    """The loop under an oracle, at its end."""
    kind, neural_cap = ORACLES.index(oracle.kind), recording.neural_cap
    cap = min(cap, PLAN_CAP if kind >= PLAN else SPAN_CAP)
    bounds = Bounds(neural_cap, cap, kind == PLAN_SPLICE, kind != NGRAM and neural_cap > 0)
    costs = cost.without_deciding().constants()
    loop = new_loop(recording.columns, order, concurrency, bounds.holds, comes_s)
    _run(loop, recording.columns, kind, bounds, costs)
    return loop

"""References that know the future: fixed choices, perfect planning, the cheapest path.

Frozen code of its own, never the product's planner: it says how much there is to gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import (
    CostModel,
    captured_sizes,
    forward_s,
    paid_forwards,
    step_s,
    verify_s,
)
from adaspec.jit import compiled
from adaspec.policy.base import Needs
from adaspec.replay.result import Result
from adaspec.replay.rows import advance, enter, entry_s, new_latency, seconds_per_token
from adaspec.replay.tape import Columns, Tape

Array = NDArray[np.float64]
Longs = NDArray[np.int64]

NGRAM, NEURAL, COMBINE, PLAN, PLAN_SPLICE = range(5)
LOOPS = {
    "ngram": NGRAM,
    "neural": NEURAL,
    "combine": COMBINE,
    "plan": PLAN,
    "plan-splice": PLAN_SPLICE,
}
SPAN_CAP = 20
"""The paper's bound on a span that oracle:ngram, :neural and :combine propose."""
PLAN_NEURAL = 8
PLAN_CAP = 48
RATE_STEPS = 200


@dataclass(frozen=True, slots=True)
class Oracle:
    """A bound or reference by name: one of `LOOPS`, or `dp` / `dp-splice`."""

    kind: str

    @property
    def name(self) -> str:
        """As written in specs and reports."""
        return f"oracle:{self.kind}"

    @property
    def needs(self) -> Needs:
        """The drafter, where it would mean nothing without one."""
        return Needs(drafter=self.kind in ("neural", "combine"))


@compiled
def _reach(columns: Columns, i: int, left: int, forwards: int, splices: bool, cap: int) -> int:
    """The most right tokens that can be proposed at flat position i with so many forwards."""
    best = min(columns.run[i], cap, left)
    known = min(columns.neural[i], forwards, left) if forwards > 0 else 0
    best = max(best, min(known, cap))
    if splices:
        for k in range(1, known + 1):
            if k < left:
                best = max(best, min(k + columns.run[i + k], cap, left))
    return best


@compiled
def _plan(
    columns: Columns,
    at: Longs,
    left: Longs,
    rows: int,
    context: int,
    rate: float,
    neural_cap: int,
    cap: int,
    splices: bool,
    holds: bool,
    cost: Array,
    take: Longs,
) -> int:
    """Maximise emitted - rate * step_s over forwards and lengths; fills `take`, returns forwards.

    All proposed tokens are right, so with the number of forwards fixed only their total counts:
    the best total is none, all, or one that just fills a captured batch size.
    """
    best_value, best_forwards, best_total = -np.inf, 0, 0
    for forwards in range(min(PLAN_NEURAL, neural_cap, cap) + 1):
        most = 0
        for row in range(rows):
            most += _reach(columns, at[row], left[row], forwards, splices, cap)
        drafting = paid_forwards(cost, forwards, holds) * forward_s(cost, context)
        for size in range(-2, captured_sizes(cost).shape[0]):
            if size == -2:
                total = 0
            elif size == -1:
                total = most
            else:
                total = min(most, int(captured_sizes(cost)[size]) - rows)
            if total < 0:
                continue
            value = rows + total - rate * (verify_s(cost, rows + total, context) + drafting)
            if value > best_value + 1e-12:
                best_value, best_forwards, best_total = value, forwards, total
    remaining = best_total
    for row in range(rows):
        reach = _reach(columns, at[row], left[row], best_forwards, splices, cap)
        take[row] = min(remaining, reach)
        remaining -= take[row]
    return best_forwards


@compiled
def _span(
    columns: Columns, i: int, left: int, kind: int, neural_cap: int, cap: int
) -> tuple[int, int]:
    """Length and forwards of the longer accepted span at flat position i; n-gram on ties."""
    ngram = min(columns.run[i], cap, left) if kind != NEURAL else 0
    neural = min(columns.neural[i], cap, neural_cap, left) if kind != NGRAM else 0
    if neural > ngram:
        return neural, neural
    return ngram, 0


@compiled
def _loop(
    columns: Columns,
    order: NDArray[np.int32],
    concurrency: int,
    refills: bool,
    kind: int,
    neural_cap: int,
    cap: int,
    cost: Array,
    sums: Array,
    latency: Array,
) -> None:
    """The closed loop under perfect foresight; without refills it ends with the last request."""
    holds = kind != NGRAM and neural_cap > 0
    state, time = enter(columns, order, concurrency, refills, holds)
    at = np.empty(concurrency, np.int64)
    left = np.empty(concurrency, np.int64)
    take = np.empty(concurrency, np.int64)
    emitted = np.empty(concurrency, np.int64)
    ring = np.zeros((RATE_STEPS, 2))
    recent_tokens = recent_time = 0.0
    rows = following = concurrency
    tokens = steps = row_steps = drafted = neural_steps = 0
    ended = False
    while rows > 0 and not ended:
        context = 0
        for row in range(rows):
            r, p = state.request[row], state.position[row]
            at[row] = columns.offset[r] + p
            left[row] = columns.length[r] - p - 1
            context += columns.prompt[r] + p
        if kind >= PLAN:
            if steps == 0:
                rate = rows / step_s(cost, rows, context, 0, False)
            else:
                rate = recent_tokens / recent_time
            forwards = _plan(
                columns,
                at,
                left,
                rows,
                context,
                rate,
                neural_cap,
                cap,
                kind == PLAN_SPLICE,
                holds,
                cost,
                take,
            )
        else:
            forwards = 0
            for row in range(rows):
                take[row], own = _span(columns, at[row], left[row], kind, neural_cap, cap)
                forwards = max(forwards, own)
        total = 0
        for row in range(rows):
            total += take[row]
            emitted[row] = take[row] + 1
        step = step_s(cost, rows + total, context, forwards, holds)
        slot = steps % RATE_STEPS
        recent_tokens += rows + total - ring[slot, 0]
        recent_time += step - ring[slot, 1]
        ring[slot, 0], ring[slot, 1] = rows + total, step
        time += step
        steps += 1
        row_steps += rows
        drafted += total
        tokens += rows + total
        neural_steps += forwards > 0
        rows, following, time, ended = advance(
            columns, order, refills, holds, state, rows, following, emitted, time, latency
        )
    sums[0], sums[1], sums[2], sums[3] = tokens, time, steps, row_steps
    sums[4], sums[5] = drafted, neural_steps


@compiled
def _cheapest(
    columns: Columns,
    r: int,
    copies: int,
    cap: int,
    neural_cap: int,
    splices: bool,
    holds: bool,
    cost: Array,
    best: Array,
) -> None:
    """Fill best[p] = least seconds from position p to the end of request r, in lockstep."""
    base, end, prompt = columns.offset[r], columns.length[r], columns.prompt[r]
    best[end] = 0.0
    for p in range(end - 1, 0, -1):
        i = base + p
        left = end - p - 1
        context = copies * (prompt + p)
        least = np.inf
        most = 0
        if holds:
            most = min(columns.neural[i], neural_cap, cap, left)
        for k in range(most + 1):
            draft = paid_forwards(cost, k, holds) * forward_s(cost, context)
            longest = k
            if (k == 0 or splices) and k < left:
                longest = k + min(columns.run[i + k], cap - k, left - k)
            for taken in range(k, longest + 1):
                seconds = verify_s(cost, copies * (1 + taken), context) + draft
                least = min(least, seconds + best[p + taken + 1])
        best[p] = least


def cheapest_s(
    tape: Tape, request: int, copies: int, cost: CostModel, cap: int, splices: bool
) -> float:
    """Least seconds in which any plan within the caps decodes one request, `copies` in lockstep.

    A request that never holds the neural drafter pays no keep-alive: both ways are tried.
    """
    columns, row = tape.columns, cost.constants()
    best = np.empty(int(columns.length[request]) + 1)
    seconds = []
    for holds in (False, True) if tape.neural_cap else (False,):
        _cheapest(columns, request, copies, cap, tape.neural_cap, splices, holds, row, best)
        seconds.append(float(best[1]) + copies * entry_s(columns, request, holds))
    return min(seconds)


def run_cheapest(
    tape: Tape,
    oracle: Oracle,
    order: NDArray[np.int32],
    copies: int,
    cost: CostModel,
    cap: int,
) -> Result:
    """Requests of `order` one after another, each the cheapest way, in `copies` of lockstep."""
    splices = oracle.kind == "dp-splice"
    seconds = {int(r): cheapest_s(tape, int(r), copies, cost, cap, splices) for r in set(order)}
    latency = np.array([seconds[int(r)] for r in order])
    return Result(
        tokens=copies * float((tape.columns.length[order] - 1).sum()),
        time_s=float(latency.sum()),
        steps=0,
        row_steps=0,
        accepted=0,
        drafted=0,
        neural_steps=0,
        token_s=seconds_per_token(tape.columns, order, latency),
    )


def run_oracle(
    tape: Tape,
    oracle: Oracle,
    order: NDArray[np.int32],
    concurrency: int,
    cost: CostModel,
    cap: int,
    refills: bool = True,
) -> Result:
    """The closed loop (or, without refills, `order` in lockstep) under an oracle of `LOOPS`."""
    kind = LOOPS[oracle.kind]
    sums = np.zeros(6)
    latency = new_latency(order)
    _loop(
        tape.columns,
        order,
        concurrency,
        refills,
        kind,
        tape.neural_cap,
        min(cap, PLAN_CAP if kind >= PLAN else SPAN_CAP),
        cost.constants(),
        sums,
        latency,
    )
    tokens, time, steps, row_steps, drafted, neural_steps = sums
    return Result(
        tokens=tokens,
        time_s=time,
        steps=steps,
        row_steps=row_steps,
        accepted=drafted,
        drafted=drafted,
        neural_steps=neural_steps,
        token_s=seconds_per_token(tape.columns, order, latency),
    )

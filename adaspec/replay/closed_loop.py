"""The closed loop that every replay runs: who enters, who leaves, and what the steps add up to.

A fixed number of requests run; as one ends, the next of the order enters in its place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import StepShape
from adaspec.jit import compiled
from adaspec.replay.recording import Columns
from adaspec.replay.result import Result

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

TOTALS = np.dtype(
    [
        ("tokens", "f8"),
        ("time_s", "f8"),
        ("steps", "f8"),
        ("row_steps", "f8"),
        ("accepted", "f8"),
        ("drafted", "f8"),
        ("neural_steps", "f8"),
        ("deciding_s", "f8"),
    ]
)
"""What a `Result` sums over the steps of a run."""

_STATE = np.dtype([("rows", "i8"), ("following", "i8"), ("slot_left_empty", "i8")])


class ClosedLoop(NamedTuple):
    """Arrays of running requests keep their length; the first `rows` of the state are running."""

    columns: Columns
    order: Ints
    request: Longs
    entry: Longs
    """Place in the order."""
    position: Longs
    """Output tokens already known."""
    entered_s: NDArray[np.float64]
    slot: Ints
    """What names the request in a policy's memory."""
    holds_neural: NDArray[np.bool_]
    emitted: Longs
    """Tokens that the present step emits; whoever runs the loop fills them in."""
    state: NDArray[Any]
    """How many requests run, the next entry of the order, and whether a slot stayed empty that
    should have been refilled."""
    totals: NDArray[Any]
    latency: NDArray[np.float64]
    """Seconds from entry to end per entry of the order, NaN until it has finished."""


@compiled
def start(columns: Columns, order: Ints, concurrency: int, holds_neural: bool) -> ClosedLoop:
    """The first requests of the order at position 1, their prefill charged.

    A request's clock starts behind its own prefill.
    """
    loop = ClosedLoop(
        columns,
        order,
        order[:concurrency].astype(np.int64),
        np.arange(concurrency),
        np.ones(concurrency, np.int64),
        np.zeros(concurrency),
        np.arange(concurrency).astype(np.int32),
        np.full(concurrency, holds_neural),
        np.zeros(concurrency, np.int64),
        np.zeros(1, _STATE),
        np.zeros(1, TOTALS),
        np.full(order.shape[0], np.nan),
    )
    loop.state[0].rows = loop.state[0].following = concurrency
    totals = loop.totals[0]
    totals.time_s = columns.alone_s
    for row in range(concurrency):
        totals.time_s += entry_s(columns, loop.request[row], holds_neural)
        loop.entered_s[row] = totals.time_s
    return loop


@compiled
def goes_on(loop: ClosedLoop) -> bool:
    """Whether there is another step: the loop ends with the first one that leaves a slot empty."""
    return loop.state[0].rows > 0 and not loop.state[0].slot_left_empty


@compiled
def entry_s(columns: Columns, request: int, holds_neural: bool) -> float:
    """What entering takes a request beside others, with the neural drafter or without."""
    seconds = columns.entry_s[request]
    return seconds + columns.draft_entry_s[request] if holds_neural else seconds


@compiled
def take_drafter(loop: ClosedLoop, row: int, waited_s: float) -> float:
    """Give the drafter to a row that has just entered; `waited_s` with its reading of the prompt.

    Requests that enter together wait for each other's.
    """
    loop.holds_neural[row] = True
    return waited_s + loop.columns.draft_entry_s[loop.request[row]]


@compiled
def count_step(
    loop: ClosedLoop, shape: StepShape, seconds: float, deciding_s: float, accepted: int
) -> None:
    """Add a step to the totals; `loop.emitted` says what it emitted.

    `deciding_s` says which part of its seconds deciding took.
    """
    totals, rows = loop.totals[0], loop.state[0].rows
    totals.tokens += loop.emitted[:rows].sum()
    totals.time_s += seconds
    totals.deciding_s += deciding_s
    totals.steps += 1
    totals.row_steps += rows
    totals.accepted += accepted
    totals.drafted += shape.copied + shape.neural + shape.spliced
    totals.neural_steps += shape.forwards > 0


@compiled
def advance(loop: ClosedLoop, holds_neural: bool) -> bool:
    """Move every row on by what it emitted, and replace those that have ended; whether any has."""
    rows = loop.state[0].rows
    ended = np.zeros(rows, np.bool_)
    request, position, length = loop.request, loop.position, loop.columns.length
    for row in range(rows):
        position[row] += loop.emitted[row]
        ended[row] = position[row] >= length[request[row]]
    if ended.any():
        replace_ended(loop, ended, holds_neural)
        return True
    return False


@compiled
def replace_ended(loop: ClosedLoop, ended: NDArray[np.bool_], holds_neural: bool) -> None:
    """Let rows that have ended go, and others enter in their place.

    They enter with the neural drafter if `holds_neural`. Rows keep their order.
    """
    columns, state, totals = loop.columns, loop.state[0], loop.totals[0]
    now, kept = totals.time_s, 0
    if state.following < loop.order.shape[0] and ended[: state.rows].all():
        totals.time_s += columns.alone_s
    for row in range(state.rows):
        if ended[row]:
            loop.latency[loop.entry[row]] = now - loop.entered_s[row]
            if state.following == loop.order.shape[0]:
                state.slot_left_empty = 1
                continue
            entering = loop.order[state.following]
            totals.time_s += entry_s(columns, entering, holds_neural)
            loop.request[row], loop.position[row] = entering, 1
            loop.entry[row], loop.entered_s[row] = state.following, totals.time_s
            loop.holds_neural[row] = holds_neural
            state.following += 1
        if kept < row:
            for column in (loop.request, loop.entry, loop.position):
                column[kept] = column[row]
            loop.entered_s[kept], loop.slot[kept] = loop.entered_s[row], loop.slot[row]
            loop.holds_neural[kept] = loop.holds_neural[row]
        kept += 1
    state.rows = kept


@compiled
def context_tokens(loop: ClosedLoop) -> int:
    """Known tokens, summed over the running rows."""
    request, position, prompt = loop.request, loop.position, loop.columns.prompt
    total = 0
    for row in range(loop.state[0].rows):
        total += prompt[request[row]] + position[row]
    return total


def result_of(loop: ClosedLoop) -> Result:
    """What the run comes to."""
    done = ~np.isnan(loop.latency)
    token_s = seconds_per_token(loop.columns, loop.order[done], loop.latency[done])
    sums = {name: float(loop.totals[name][0]) for name in TOTALS.fields or ()}
    return Result(**sums, token_s=token_s)


def seconds_per_token(
    columns: Columns, requests: Ints, latency: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds per output token of requests that took so long."""
    return latency / (columns.length[requests] - 1)

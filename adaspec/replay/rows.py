"""The running rows of a closed loop: who runs, who leaves, who enters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.replay.tape import Columns


class Rows(NamedTuple):
    """One entry per running row."""

    request: NDArray[np.int64]
    entry: NDArray[np.int64]
    """Place in the order of entries."""
    position: NDArray[np.int64]
    entered: NDArray[np.float64]
    """Time at which the request entered."""


@compiled
def entry_s(columns: Columns, request: int, holds: bool) -> float:
    """What entering takes a request, with the neural drafter or without."""
    seconds = columns.entry_s[request]
    return seconds + columns.draft_entry_s[request] if holds else seconds


@compiled
def enter(
    columns: Columns, order: NDArray[np.int32], concurrency: int, refills: bool, holds: bool
) -> tuple[Rows, float]:
    """The first `concurrency` requests of the order at position 1, and how long they took.

    A request's clock starts behind its own prefill; in lockstep, where none enters later, with
    the first one's.
    """
    request = order[:concurrency].astype(np.int64)
    ready = np.cumsum(np.array([entry_s(columns, r, holds) for r in request]))
    entered = ready if refills else np.zeros(concurrency)
    rows = Rows(request, np.arange(concurrency), np.ones(concurrency, np.int64), entered)
    return rows, ready[-1]


@compiled
def advance(
    columns: Columns,
    order: NDArray[np.int32],
    refills: bool,
    holds: bool,
    state: Rows,
    rows: int,
    following: int,
    emitted: NDArray[np.int64],
    time: float,
    latency: NDArray[np.float64],
) -> tuple[int, int, float, bool]:
    """Move every row on by what it emitted; finished ones leave, and others enter in their place.

    Returns the rows that run, the next entry of the order, the time, and whether a slot stayed
    empty that should have been refilled. Rows keep their order; without refills they close ranks.
    """
    now = time
    kept = 0
    ended = False
    for row in range(rows):
        r = state.request[row]
        p = state.position[row] + emitted[row]
        entry, entered = state.entry[row], state.entered[row]
        if p >= columns.length[r]:
            latency[entry] = now - entered
            if not refills:
                continue
            if following == order.shape[0]:
                ended = True
                continue
            r, p, entry = order[following], 1, following
            time += entry_s(columns, r, holds)
            entered = time
            following += 1
        state.request[kept], state.position[kept] = r, p
        state.entry[kept], state.entered[kept] = entry, entered
        kept += 1
    return kept, following, time, ended


def new_latency(order: NDArray[np.int32]) -> NDArray[np.float64]:
    """Seconds from entry to end per entry of an order, NaN until it has finished."""
    return np.full(len(order), np.nan)


def seconds_per_token(
    columns: Columns, order: NDArray[np.int32], latency: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds per output token of the requests that finished."""
    done = ~np.isnan(latency)
    return latency[done] / (columns.length[order[done]] - 1)

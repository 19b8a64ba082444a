"""How often the neural drafter runs: by load, and by what its last forward brings.

The policy's table says by load how often at first. Where it says 0, nobody enters with the drafter,
and those that hold it lose it to their end. From then on the last forward that ran and one more are
weighed, in tokens at the running throughput. Behind a *pause* one forward is tried again, by those
that enter from then on, and pauses double as long as it does not pay: docs/how-it-decides.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled

Array = NDArray[np.float64]
Record = NDArray[Any]

ONE_FORWARD = np.array([[1.0, 1.0]])
"""The table where nothing was settled in training: one forward at every load."""

LAST, ONE_MORE, ALL, GAINS = range(4)
"""What forwards bring a row in tokens beyond the best draft that is only copied, as columns: the
last one that ran, one more, and all that ran; and how many these are."""
NUMBER = np.dtype(
    [
        ("forwards", "i8"),  # how many run where the table says any; 0 before the first step
        # Means per row since that changed:
        ("last", "f8"),  # what the last forward brings beyond what it takes
        ("one_more", "f8"),  # what one more would bring beyond that
        ("emitted", "f8"),  # tokens
        ("rows", "f8"),  # rows
        # In rows:
        ("wait", "f8"),  # for how long a trial still waits until most hold the drafter
        ("paused", "f8"),  # for how long the drafter is still paused
        ("next", "f8"),  # for how long it is the next time
    ]
)
"""How many forwards run, and whether one fewer or one more would be better."""
MOST_BEYOND = 4
"""At most so many more than the table's largest: engines capture a graph for each number."""
_AVERAGED_ROWS = 1000.0
"""Means are over at most so many rows."""
_ROWS, _LEAST_SHARE = 64.0, 0.01
"""Means over so many rows say that a forward is worth what it takes, or not, from this share of
what is emitted on."""
_SHARE_TO_PAUSE = 0.04
"""The same share of the only one, from means over `_AVERAGED_ROWS`. Gains leave out that a drafted
token also tells which copies are right, so the drafter is worth that much more than they say."""
_LEAST_ROWS_TO_PAUSE = 250.0
"""Means over so many rows do, too, where they say it as much more clearly as they scatter more."""
_MOST_ROWS_OF_STEP = 16.0
"""A step counts as so many rows at most: they have the price and the throughput in common."""
_ENOUGH_HOLD_IT = 0.75
_LONGEST_WAIT = 4000.0
"""A trial counts from when that share of the rows hold the drafter, or from so many rows on."""
_FIRST_PAUSE, _LONGEST_PAUSE = 10_000.0, 80_000.0
"""In rows: a trial of the drafter takes a thousand or more."""


def new_number() -> Record:
    """A record that has seen nothing yet."""
    number = np.zeros(1, NUMBER)
    number["wait"], number["next"] = _LONGEST_WAIT, _FIRST_PAUSE
    return number


def forwards_table(by_load: Mapping[int, int]) -> Array:
    """Load -> forwards, as compiled code takes it."""
    if not by_load:
        return ONE_FORWARD
    return np.array([[load, by_load[load]] for load in sorted(by_load)], np.float64)


@compiled
def forwards_at(table: Array, running: int) -> int:
    """How many forwards the table has for so many rows, between loads interpolated."""
    last = table.shape[0] - 1
    above = 0
    while above < last and table[above, 0] < running:
        above += 1
    if above == 0 or table[above, 0] <= running:
        return int(table[above, 1])
    below = above - 1
    share = np.log(running / table[below, 0]) / np.log(table[above, 0] / table[below, 0])
    forwards = table[below, 1] + share * (table[above, 1] - table[below, 1])
    return int(np.floor(forwards + 0.5))


@compiled
def most_forwards(table: Array, neural_cap: int) -> int:
    """More forwards than these are never run."""
    at_first = int(table[:, 1].max())
    return min(at_first + MOST_BEYOND, neural_cap) if at_first > 0 else 0


@compiled
def forwards_to_run(table: Array, number: Record, running: int, neural_cap: int) -> int:
    """How many forwards a step of so many rows runs."""
    at_first, found = forwards_at(table, running), number[0].forwards
    if at_first == 0 or number[0].paused > 0:
        return 0
    return int(min(found if found > 0 else at_first, most_forwards(table, neural_cap)))


@compiled
def weigh_forwards(
    number: Record,
    forwards: int,
    most: int,
    last: float,
    one_more: float,
    emitted: float,
    rows: int,
    held: int,
) -> None:
    """Take in a step of so many forwards, for `held` of its rows: what the last one brought beyond
    what it took, what one more would have, and tokens emitted, all per row."""
    about, weight = number[0], min(rows, _MOST_ROWS_OF_STEP)
    if held < _ENOUGH_HOLD_IT * rows and about.wait > 0:
        about.wait -= weight
        return
    about.forwards = forwards
    about.rows += weight
    share = weight / min(about.rows, _AVERAGED_ROWS)
    about.last += share * (last - about.last)
    about.one_more += share * (one_more - about.one_more)
    about.emitted += share * (emitted - about.emitted)
    enough, least = about.rows >= _ROWS, _LEAST_SHARE * about.emitted
    if forwards == 1 and about.rows >= _LEAST_ROWS_TO_PAUSE:
        scatter = np.sqrt(_AVERAGED_ROWS / min(about.rows, _AVERAGED_ROWS))
        if about.last < -_SHARE_TO_PAUSE * scatter * about.emitted:
            about.paused, about.rows, about.wait = about.next, 0.0, _LONGEST_WAIT
            about.next = min(2.0 * about.next, _LONGEST_PAUSE)
        elif about.last > 0 and about.rows >= _AVERAGED_ROWS:
            about.next = _FIRST_PAUSE
    if enough and forwards > 1 and about.last < -least:
        about.forwards, about.rows = forwards - 1, 0.0
    elif enough and forwards < most and about.one_more > least:
        about.forwards, about.rows = forwards + 1, 0.0


@compiled
def count_pause(number: Record, rows: int) -> None:
    """Take in a step of so many rows in which the drafter was paused."""
    number[0].paused = max(number[0].paused - min(rows, _MOST_ROWS_OF_STEP), 0.0)

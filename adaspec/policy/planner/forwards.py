"""How often the neural drafter runs: by load, by forward, and by what its drafts are worth.

by load         the policy's table says how often at first. Where it says 0, the drafter is not
                worth what it takes: nobody enters with it, and those that hold it lose it to their
                end.
by forward      a row's best draft is weighed by the forwards that ran, by one fewer and by one
                more. Where the last one brings less than it takes, one fewer runs from then on;
                where one more would bring more than it takes, one more.
by worth        while it runs, a row's *gain* is what its best draft is worth beyond the best one
                that is only copied. Where the mean gain stays below what the forwards take, the
                drafter is *paused* for all rows, however the table was trained: copies do as well
                there, as in summaries. Behind a pause it is tried again, with those that enter
                from then on, and the pauses double as long as it does not pay.

What forwards take is counted in tokens, at the running throughput. Both are means over rows.
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

NUMBER = np.dtype(
    [
        ("forwards", "i8"),  # that number; 0 before the first step
        # Means per row since it changed:
        ("last", "f8"),  # what the last forward brings beyond what it takes
        ("one_more", "f8"),  # what one more would bring beyond that
        ("emitted", "f8"),  # tokens
        ("rows", "f8"),  # over how many rows
    ]
)
"""By forward: how many forwards run, and whether one fewer or one more would be better."""
PAUSE = np.dtype(
    [
        # Means per row of a step that ran the drafter:
        ("net", "f8"),  # the gain beyond what the forwards took
        ("emitted", "f8"),  # tokens
        ("rows", "f8"),  # over how many rows, since it last began
        ("wait", "f8"),  # for how many rows a trial still waits until most hold the drafter
        ("left", "f8"),  # for how many rows it is still paused
        ("next", "f8"),  # for how many it is the next time
    ]
)
"""By worth: whether the drafter is paused."""
FEWER, RAN, MORE, GAINS = 0, 1, 2, 3
"""Columns of what a draft is worth: by one forward fewer than ran, by those that ran, and by one
more; and how many these are."""
MOST_BEYOND = 4
"""At most so many more than the table's largest: engines capture a graph for each number."""
_WEIGHED_ROWS = 64.0
"""Over so many rows the last forward and one more are weighed."""
_LEAST_SHARE = 0.01
"""They are worth it, or not, from this share of what is emitted on."""
_AVERAGED_ROWS = 4000.0
"""The means are over so many rows."""
_LEAST_ROWS = 1000.0
"""They are believed from so many rows on: a few requests."""
_MOST_ROWS_OF_STEP = 16.0
"""A step counts as so many rows at most: they have the price and the throughput in common."""
_ENOUGH_HOLD_IT = 0.75
_LONGEST_WAIT = 4000.0
"""A trial counts from when that share of the rows hold the drafter, or from so many rows on."""
_MARGIN = 0.04
"""A drafter is paused that loses more than this share of what is emitted. Gains leave out that its
tokens also tell which copies are right, so it is worth that much more than they say."""
_FIRST_PAUSE, _LONGEST_PAUSE = 10_000.0, 80_000.0
"""In rows: a trial of the drafter takes a thousand or more."""


def new_number() -> Record:
    """A record that has seen nothing yet."""
    return np.zeros(1, NUMBER)


def new_pause() -> Record:
    """A record that has seen nothing yet."""
    pause = np.zeros(1, PAUSE)
    pause["wait"], pause["next"] = _LONGEST_WAIT, _FIRST_PAUSE
    return pause


def forwards_table(by_load: Mapping[int, int]) -> Array:
    """Load -> forwards, as compiled code takes it."""
    if not by_load:
        return ONE_FORWARD
    return np.array([[load, by_load[load]] for load in sorted(by_load)], np.float64)


@compiled
def forwards_at(table: Array, running: int) -> int:
    """How many forwards a step of so many rows runs: those of the nearest loads, interpolated."""
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
    if at_first == 0:
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
) -> None:
    """Take in a step of so many forwards: what the last one brought beyond what it took, what one
    more would have, and tokens emitted, all per row."""
    about, weight = number[0], min(rows, _MOST_ROWS_OF_STEP)
    about.forwards = forwards
    about.rows = min(about.rows + weight, _WEIGHED_ROWS)
    share = min(weight / about.rows, 1.0)
    about.last += share * (last - about.last)
    about.one_more += share * (one_more - about.one_more)
    about.emitted += share * (emitted - about.emitted)
    if about.rows < _WEIGHED_ROWS:
        return
    least = _LEAST_SHARE * about.emitted
    if about.last < -least and forwards > 1:
        about.forwards, about.rows = forwards - 1, 0.0
    elif about.one_more > least and forwards < most:
        about.forwards, about.rows = forwards + 1, 0.0


@compiled
def note_gain(
    pause: Record, gain: float, cost: float, emitted: float, rows: int, held: int
) -> None:
    """Take in a step that ran the drafter, for `held` of its rows: the means of all of them."""
    about, weight = pause[0], min(rows, _MOST_ROWS_OF_STEP)
    if held < _ENOUGH_HOLD_IT * rows and about.wait > 0:
        about.wait -= weight
        return
    about.rows = min(about.rows + weight, _AVERAGED_ROWS)
    share = min(weight / about.rows, 1.0)
    about.net += share * (gain - cost - about.net)
    about.emitted += share * (emitted - about.emitted)
    if about.rows < _LEAST_ROWS:
        return
    if about.net < -_MARGIN * about.emitted:
        about.left, about.rows, about.wait = about.next, 0.0, _LONGEST_WAIT
        about.next = min(2.0 * about.next, _LONGEST_PAUSE)
    elif about.net > 0:
        about.next = _FIRST_PAUSE


@compiled
def count_pause(pause: Record, rows: int) -> None:
    """Take in a step of so many rows that ran without the drafter."""
    pause[0].left = max(pause[0].left - min(rows, _MOST_ROWS_OF_STEP), 0.0)

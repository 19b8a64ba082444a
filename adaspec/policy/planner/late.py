"""What the host of an async engine decides before the last outcomes are known.

Such an engine prepares a step while the one before it runs. Which tokens a step verifies is still
chosen with everything known, on the device, but two limits of that choice are set by the host:

    forwards    of the neural drafter: two steps late, so from nothing that an outcome says
    budget      drafted tokens that the target verifies, all rows together: one step late, so from
                what was chosen in the step before, and not from what came of it

How many forwards pay is a matter of the load and the drafter. So they are a table by load, tuned in
training by what came of them. It is not followed while serving: to tell two numbers apart takes
some ten thousand steps of each. Only a request's first step, of which the host knows, has a number
of its own: many answers begin with words that every drafter knows.

A budget that is not filled is paid in vain, and one that is too small keeps good tokens out. What a
row will want is foreseen as the mean of what rows of its *kind* wanted. Its kind is made of what
was chosen for it last, and of what it usually wants. To the sum a slack is added, which is learned
so that tokens just kept out would have been worth, on average over steps, what a token costs: the
derivative of what a budget is worth is the price at which the choice fits it, less the price of a
token. Where nothing that was worth its price was kept out, one more token counts as worth nothing:
small survivals are less sure than they say.

Nothing here needs a model or a planner: it runs where the engine's scheduler does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, padded, padded_below
from adaspec.jit import compiled

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Record = NDArray[Any]

_WANT_LIMITS = np.array([1.0, 2.0, 4.0, 8.0, 14.0])
_REACH_LIMITS = np.array([0.0, 0.25, 0.6])
FIRST = 0
"""The kind of a row that takes its first step."""
_KINDS = 1 + (len(_REACH_LIMITS) + 1) * (len(_WANT_LIMITS) + 1)
REACH = 4
"""Tokens of a copy whose survival tells whether it will go on."""
_USUAL_SHARE = 0.3
"""Weight of the last step in what a row usually wants."""
_FADE = 0.999
"""What is kept of a kind's mean at each row of it."""
_PRIOR_WANT, _PRIOR_ROWS = 4.0, 5.0
"""What a row is taken to want where nothing is known, and how many rows the mean of all kinds
weighs in the mean of one."""
_SLACK_STEP = 2.0
"""Tokens a row by which slack moves for a token's worth of difference, in a batch of one. What a
batch wants varies with the root of its size, so that larger ones move by less."""

ONE_FORWARD = np.array([[1.0, 1.0, 1.0]])
"""The table where none was tuned: one forward, which the keep-alive pays for, at every load."""

_SLOT = np.dtype([("present", "i8"), ("kind", "i8"), ("usual", "f8")])
_KIND = np.dtype([("wanted", "f8"), ("rows", "f8"), ("slack", "f8")])
_STEP = np.dtype([("forwards", "i8"), ("budget", "i8"), ("price", "f8")])


class Late(NamedTuple):
    """What the host remembers, and what it has decided for the next step."""

    forwards: Array
    """(loads, 3) load, forwards, forwards in a step that is some row's first; loads ascending."""
    slots: Record
    """Per slot: whether its request was in the last batch or has entered since, its kind, and what
    it usually wants."""
    kinds: Record
    """Per kind: fading sums of what rows wanted and of how many there were, and slack per row."""
    every: Record
    """The same of all kinds together."""
    step: Record
    """One record: what is decided for this step, and the price at which its choice was made."""
    wanted: Ints
    """Tokens that each row of this step would verify at the full price."""
    reach: Array
    """P(the first REACH tokens of each row's copy are accepted); -1 where it copies nothing."""


def new_late(slots: int, forwards: Array = ONE_FORWARD) -> Late:
    """A memory that has seen nothing yet."""
    return Late(
        forwards=np.ascontiguousarray(forwards, np.float64),
        slots=np.zeros(slots, _SLOT),
        kinds=np.zeros(_KINDS, _KIND),
        every=np.zeros(1, _KIND),
        step=np.zeros(1, _STEP),
        wanted=np.zeros(slots, np.int32),
        reach=np.zeros(slots),
    )


def forwards_table(by_load: Mapping[int, tuple[int, int]]) -> Array:
    """Load -> (forwards, forwards in a first step), as compiled code takes it."""
    if not by_load:
        return ONE_FORWARD
    return np.array([[load, *by_load[load]] for load in sorted(by_load)], np.float64)


@compiled
def enter_late(late: Late, slot: int) -> None:
    """A request takes this slot, as the host knows: it lets it in."""
    late.slots[slot].present = 1
    late.slots[slot].kind = FIRST


@compiled
def decide_forwards(late: Late, running: int) -> int:
    """How many forwards a step of so many rows runs: those of the nearest loads, interpolated."""
    column = 1
    for slot in late.slots:
        if slot.present and slot.kind == FIRST:
            column = 2
    table = late.forwards
    last = table.shape[0] - 1
    above = 0
    while above < last and table[above, 0] < running:
        above += 1
    if above == 0 or table[above, 0] <= running:
        return int(table[above, column])
    below = above - 1
    share = np.log(running / table[below, 0]) / np.log(table[above, 0] / table[below, 0])
    forwards = table[below, column] + share * (table[above, column] - table[below, column])
    return int(np.floor(forwards + 0.5))


@compiled
def decide_budget(late: Late, costs: Costs, running: int) -> int:
    """How many drafted tokens a step of so many rows can verify.

    It fills a captured size where there are such: the nearest, since what a budget is worth less
    its price falls to both sides of the best one by the square of the distance.
    """
    foreseen = 0.0
    every = late.every[0]
    usual = every.wanted / every.rows if every.rows > 0 else _PRIOR_WANT
    for slot in late.slots:
        if slot.present:
            kind = late.kinds[slot.kind]
            wanted = kind.wanted + _PRIOR_ROWS * usual
            foreseen += wanted / (kind.rows + _PRIOR_ROWS) + kind.slack
    tokens = running + max(int(np.floor(foreseen + 0.5)), 0)
    size = padded(costs, tokens)
    below = padded_below(costs, size)
    if below >= running and tokens - below < size - tokens:
        size = below
    return int(size) - running


@compiled
def note_choice(late: Late, slots: Ints, price: float, was_cut: bool) -> None:
    """Take in what each row of a step wanted and how far its copy reaches; no outcome.

    `price` is what a token's time is worth; the step's own price is that at which the choice fit.
    `was_cut`: the budget was less than was decided, so that what was kept out is no sign that more
    should have been decided.
    """
    count = slots.shape[0]
    every, step = late.every[0], late.step[0]
    kept_out = step.price if step.price > price else 0.0
    moved = 0.0
    if count > 0 and not (was_cut and kept_out > 0):
        moved = _SLACK_STEP * (kept_out - price) / (count * np.sqrt(float(count)))
    for slot in late.slots:
        slot.present = 0
    for row in range(count):
        slot, wanted = late.slots[slots[row]], late.wanted[row]
        kind = late.kinds[slot.kind]
        kind.wanted = kind.wanted * _FADE + wanted
        kind.rows = kind.rows * _FADE + 1.0
        kind.slack += moved
        every.wanted = every.wanted * _FADE + wanted
        every.rows = every.rows * _FADE + 1.0
        if slot.kind == FIRST:
            slot.usual = wanted
        slot.usual += _USUAL_SHARE * (wanted - slot.usual)
        slot.present, slot.kind = 1, _kind_of(late.reach[row], slot.usual)


@compiled
def _kind_of(reach: float, usual: float) -> int:
    kind = 0
    for limit in _REACH_LIMITS:
        kind += reach >= limit
    kind *= _WANT_LIMITS.shape[0] + 1
    for limit in _WANT_LIMITS:
        kind += usual >= limit
    return 1 + kind

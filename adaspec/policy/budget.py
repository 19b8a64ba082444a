"""What is decided of a batch: how often the drafter runs, how many drafted tokens are verified.

**Forwards.** The policy's table says by load how often at first. Where it says 0, nobody enters
with the drafter, and those that hold it lose it to their end. From then on the last forward that
ran and one more are weighed, in tokens at the running throughput. Behind a *pause* one forward is
tried again, by those that enter from then on, and pauses double as long as it does not pay.

**Budget**: how many tokens a step verifies of all rows together, and which. On an async engine it
is made of a running mean over the last reports, of the largest survival, of the second largest, and
so on, stretched where more or fewer rows run than before. What fills a captured size is free there.
Such an engine makes room for a draft in each row before it knows which rows will draft, so a row's
share of that room follows the budget.

docs/how-it-decides.md says what both maximise. Nothing here needs a model: it runs where an
engine's scheduler does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost import ASYNC, SYNC
from adaspec.cost.model import Costs, padded, step_s, step_shape, target_s
from adaspec.jit import compiled, inlined
from adaspec.predict.model import LONGEST_NGRAM

Array = NDArray[np.float64]
Record = NDArray[Any]
"""An array of records; compiled code reads and writes their fields by name."""

PRICE, NGRAM, NEURAL, SPLICE, SETTINGS = range(5)
"""What is decided of a batch before its rows choose, as places of an array: the price of a token,
by what the curves of each source are corrected, and how many numbers these are."""


def no_settings() -> Array:
    """Tokens are free, and nothing is corrected."""
    settings = np.ones(SETTINGS)
    settings[PRICE] = 0.0
    return settings


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


Longs = NDArray[np.int64]

LONGEST_DRAFT = {SYNC: LONGEST_NGRAM, ASYNC: 16}
"""The longest draft, by engine: an async one schedules each row for the longest before it knows how
long drafts are."""
_SHARE = 0.3
"""Weight of the last report in the mean of all."""
_PRIOR_WANT = 4.0
"""What a row is taken to want where nothing is known."""
_LEAST_ROOM, _ROOM = 8, 8
"""An async engine makes room in a row for so many tokens at least, and for so many times what the
budget holds for a row on average."""
UNBOUNDED = 1 << 40
_FADED = 1e-4
"""A mean survival that is no larger is none."""

_STEP = np.dtype(
    [
        ("rate", "f8"),  # tokens per second, of the last steps
        ("price", "f8"),  # of a token in the next
        ("rows", "f8"),  # the mean of the steps before, 0 before the first
    ]
)
RECORD = np.dtype([("expected", "f8"), ("accepted", "f8"), ("drafts", "f8")])
"""A source's recent drafts: tokens expected before correction, tokens accepted, how many drafts."""
THROUGHPUT = np.dtype([("tokens", "f8"), ("seconds", "f8"), ("steps", "f8")])
"""Sums over the last steps, and how many steps there were in all."""
RATE_STEPS = 1000
"""The rate is that of so many last steps."""


class BatchState(NamedTuple):
    """What is remembered of earlier steps, and decided for the next."""

    step: Record
    """One record of what is decided."""
    number: Record
    """How many forwards run: one `NUMBER`."""
    forwards_by_load: Array
    """(loads, 2) load and the forwards there at first; loads ascending."""
    record: Record
    """One `RECORD` per source."""
    throughput: Record
    """One `THROUGHPUT`."""
    recent_steps: Array
    """(RATE_STEPS, 2) tokens and seconds of the last steps, written in turn."""
    mean: Array
    """The running mean of what steps offered, by rank."""


def new_state(slots: int, cap: int, forwards: Array = ONE_FORWARD) -> BatchState:
    """A state that has seen nothing yet; `forwards` is the table of them at first."""
    return BatchState(
        step=np.zeros(1, _STEP),
        number=new_number(),
        forwards_by_load=np.ascontiguousarray(forwards, np.float64),
        record=np.zeros(SETTINGS - 1, RECORD),
        throughput=np.zeros(1, THROUGHPUT),
        recent_steps=np.zeros((RATE_STEPS, 2)),
        mean=np.zeros(slots * cap),
    )


@compiled
def most_in_time(
    costs: Costs, running: int, prompt_tokens: int, context: int, forwards: int, most: int
) -> int:
    """How many drafted tokens, of so many, a step verifies at most within the operator's bound.

    It is 0 where even none are: whatever makes the step so long has to be.
    """
    if costs.longest_s == np.inf:
        return most
    read = prompt_tokens if forwards > 0 else 0
    while most > 0:
        shape = step_shape(running, context, most, forwards, forwards > 0, 0, prompt_tokens, read)
        if step_s(costs, shape) <= costs.longest_s:
            break
        most -= 1
    return most


@inlined
def worth(emitted: float, rate: float, seconds: float) -> float:
    """What a step is worth: what it emits, less what its time brings at the running rate."""
    return emitted - rate * seconds


@compiled
def best_budget(
    costs: Costs, rate: float, tokens: int, offered: Array, stretch: float, most: int = UNBOUNDED
) -> int:
    """The budget of at most so many that is worth most beside so many tokens.

    What is offered is descending survivals. Stretched by 2, every one stands for two tokens of the
    same survival.
    """
    most = min(most, int(np.floor(offered.shape[0] * stretch + 0.5)))
    best, value = 0, 0.0
    best_worth = worth(value, rate, target_s(costs, tokens))
    for count in range(1, most + 1):
        value += offered[min(int((count - 0.5) / stretch), offered.shape[0] - 1)]
        of_step = worth(value, rate, target_s(costs, tokens + count))
        if of_step > best_worth:
            best, best_worth = count, of_step
    return best


@compiled
def decide_budget(
    state: BatchState,
    costs: Costs,
    running: int,
    prompt_tokens: int,
    cap: int,
    context: int = 0,
    forwards: int = 0,
) -> int:
    """How many drafted tokens an async engine's next step verifies.

    So many rows run in it, so many tokens of prompts are read, and the drafter runs so often.
    """
    step, offered = state.step[0], 0
    most = most_in_time(costs, running, prompt_tokens, context, forwards, running * cap)
    while offered < state.mean.shape[0] and state.mean[offered] > _FADED:
        offered += 1
    best, tokens = int(_PRIOR_WANT * running), running + prompt_tokens
    if step.rows > 0:
        stretch = running / step.rows
        best = best_budget(costs, step.rate, tokens, state.mean[:offered], stretch, most)
    # What fills a captured size is free, be it less likely than anything that was offered.
    return min(int(padded(costs, tokens + best)) - tokens, most)


@compiled
def room_of_row(budget: int, running: int, cap: int) -> int:
    """How long a draft is at most in an async engine, where so many rows share a budget."""
    return min(cap, max(_LEAST_ROOM, _ROOM * budget // max(running, 1)))


@compiled
def ranked(survival: Array, lengths: Longs) -> Array:
    """What the rows of a step offer, descending: their drafts' survivals, as far as they go.

    Adaptive verification asks, too (`replay.adaptive`), and V2 on the host.
    """
    offered, count = np.empty(lengths.sum()), 0
    for row in range(lengths.shape[0]):
        for j in range(lengths[row]):
            offered[count] = survival[row, j]
            count += 1
    offered.sort()
    return offered[::-1].copy()


@compiled
def note_offered(state: BatchState, offered: Array, rows: int) -> None:
    """Take what so many rows offered into the running mean."""
    step = state.step[0]
    share = _SHARE if step.rows > 0 else 1.0
    for at in range(state.mean.shape[0]):
        if at >= offered.shape[0] and state.mean[at] <= _FADED:
            state.mean[at] = 0.0
            break
        now = offered[at] if at < offered.shape[0] else 0.0
        state.mean[at] += share * (now - state.mean[at])
    step.rows += share * (rows - step.rows)


@compiled
def keep_likeliest(offered: Array, survival: Array, lengths: Longs, budget: int) -> float:
    """Cut drafts to the `budget` likeliest tokens of what they offer; a token's price from then on.

    Of equally likely tokens the first rows' are taken. On V2 the device does the same once more
    (`kernels.serving`): what the host says is verified holds as long as both agree.
    """
    if offered.shape[0] <= budget:
        return 0.0
    least, left = offered[max(budget - 1, 0)], budget
    for row in range(lengths.shape[0]):
        for j in range(lengths[row]):
            left -= survival[row, j] > least
    for row in range(lengths.shape[0]):
        taken = 0
        while taken < lengths[row] and (
            survival[row, taken] > least or (survival[row, taken] == least and left > 0)
        ):
            left -= survival[row, taken] == least
            taken += 1
        lengths[row] = taken
    return least

"""The loop that every replay runs: who enters, who leaves, and what the steps add up to.

At most so many requests run at once; as one ends, the next of the order enters in its place. In a
*closed loop* all requests wait from the beginning, and the loop ends as a place is left empty. In
an *open loop* each comes at a time of its own, and the loop ends with the last of them. Where
reading prompts is charged, the prompts of those that enter are tokens of the step that follows
(chunked prefill); where nobody else runs, of a step of its own before it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import (
    Costs,
    StepShape,
    deciding_s,
    step_s,
    step_shape,
    without_drafting_s,
)
from adaspec.draft.matches import Ints
from adaspec.jit import compiled
from adaspec.policy.budget import Record
from adaspec.replay.recording import Columns

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Result:
    """Totals of one run, summed over its steps, and the seconds of every request that finished."""

    tokens: float
    time_s: float
    steps: float
    row_steps: float
    accepted: float
    drafted: float
    neural_steps: float
    deciding_s: float
    """The part of `time_s` that deciding took."""
    first_s: Doubles
    """From coming to the first token, one entry per finished request."""
    token_s: Doubles
    """Per output token behind the first, likewise."""
    request_s: Doubles
    """From coming to ending, likewise."""
    load_s: Doubles
    """For how long so many requests ran at once."""
    gaps: Longs
    """How many deliveries came so long after the one before: see `gap_seconds`."""

    @property
    def tokens_per_s(self) -> float:
        """Throughput of the whole batch."""
        return self.tokens / self.time_s


TOTALS = tuple(each.name for each in fields(Result) if each.type == "float")
"""What a `Result` sums over the steps of a run."""

_SHORTEST_S, _RATIO, _GAPS = 1e-5, 1.01, 2048
"""Gaps are counted in classes: of the shortest, and of each that is longer by the next ratio."""
_STATE = np.dtype(
    [
        ("running", "i8"),
        ("following", "i8"),  # the next entry of the order
        ("is_over", "i8"),
        ("is_open", "i8"),
        ("gives_drafter", "i8"),  # whether whoever enters holds the neural drafter
        ("reads_alone", "i8"),  # whether prompts are read before the next step
        ("prompt_tokens", "i8"),  # that the target reads next
        ("draft_prompt_tokens", "i8"),  # that the drafter reads next
        *((name, "f8") for name in TOTALS),
    ]
)
_ENTRY = np.dtype(
    [
        ("request", "i8"),
        ("prompt", "i8"),  # its tokens that take time to read
        ("begin", "i8"),  # flat positions: where its prompt would begin,
        ("first", "i8"),  # of its first output token,
        ("end", "i8"),  # and behind its last
        ("comes_s", "f8"),
        # Seconds, NaN until it has finished:
        ("first_s", "f8"),  # from coming to the first token
        ("decoding_s", "f8"),  # from the end of its prompt to its own
        ("request_s", "f8"),  # from coming to its end
    ]
)
_ROW = np.dtype(
    [
        ("entry", "i8"),  # its place in the order
        ("request", "i8"),
        ("begin", "i8"),
        ("at", "i8"),  # the flat position that is decided next
        ("end", "i8"),
        ("emitted", "i8"),  # by the present step; whoever runs the loop fills it in
        ("began_s", "f8"),  # when its prompt had been read
        ("holds_neural", "?"),
    ],
    align=True,
)


class Loop(NamedTuple):
    """Who runs and who waits: few arrays, since handing over each takes as long as a row's step."""

    rows: Record
    """A row for each request that may run at once; those in use are the first."""
    entries: Record
    """The order."""
    state: Record
    """One record, with the totals."""
    load_s: Doubles
    gaps: Longs


def new_loop(
    columns: Columns,
    order: Ints,
    concurrency: int,
    gives_drafter: bool,
    comes_s: Doubles | None = None,
) -> Loop:
    """The first requests of the order at position 1; whoever enters holds the drafter, or none.

    In an open loop, `comes_s` says when each entry of the order comes, in ascending order.
    """
    state, entries = np.zeros(1, _STATE), np.zeros(len(order), _ENTRY)
    state["is_open"], state["gives_drafter"] = comes_s is not None, gives_drafter
    entries["request"], offset = order, columns.offset[order]
    entries["begin"], entries["first"] = offset - columns.prompt[order], offset
    entries["end"] = offset + columns.length[order]
    entries["prompt"] = columns.prompt[order] * columns.charges_prompts
    entries["comes_s"] = 0.0 if comes_s is None else comes_s
    entries["request_s"] = np.nan
    load_s, gaps = np.zeros(concurrency + 1), np.zeros(_GAPS, np.int64)
    loop = Loop(np.zeros(concurrency, _ROW), entries, state, load_s, gaps)
    let_enter(loop)
    return loop


@compiled
def goes_on(loop: Loop) -> bool:
    """Whether there is another step."""
    return loop.state[0].is_over == 0


@compiled
def running(loop: Loop) -> Record:
    """The rows that run."""
    return loop.rows[: loop.state[0].running]


@compiled
def context_tokens(rows: Record) -> int:
    """Known tokens, summed over rows."""
    total = 0
    for row in range(rows.shape[0]):
        total += rows[row].at - rows[row].begin
    return total


@compiled
def read_beside(loop: Loop) -> int:
    """The tokens of prompts that the next step reads beside what it verifies."""
    state = loop.state[0]
    return 0 if state.reads_alone > 0 else state.prompt_tokens


@compiled
def step_seconds(loop: Loop, costs: Costs, shape: StepShape) -> float:
    """What a step of this shape takes, with reading the prompts that wait; counts its gaps."""
    state, seconds = loop.state[0], step_s(costs, shape)
    tokens, alone, entered, reading_s = state.prompt_tokens, state.reads_alone > 0, 0, 0.0
    if tokens > 0:
        if alone:
            reading_s = without_drafting_s(costs, step_shape(0, 0, 0, 0, False, 0, tokens))
            reading_s += costs.draft_prompt_s * state.draft_prompt_tokens
        else:
            reading = step_shape(
                shape.rows,
                shape.context_tokens,
                shape.drafted,
                shape.forwards,
                shape.holds_neural,
                shape.budget,
                tokens,
                state.draft_prompt_tokens,
            )
            reading_s = step_s(costs, reading) - seconds
        for at in range(state.running):
            row = loop.rows[at]
            if row.began_s == state.time_s:
                row.began_s += reading_s
                # What is read beside others is answered when their step ends.
                loop.entries[row.entry].first_s += reading_s + (0.0 if alone else seconds)
                entered += 1
    state.prompt_tokens = state.draft_prompt_tokens = state.reads_alone = 0
    note_gaps(loop.gaps, seconds, entered)  # behind their first token, which reading brought
    note_gaps(loop.gaps, seconds + reading_s, state.running - entered)
    return seconds + reading_s


@compiled
def note_gaps(gaps: Longs, seconds: float, count: int) -> None:
    """Count so many gaps of this length."""
    at = int(np.log(seconds / _SHORTEST_S) / np.log(_RATIO)) if seconds > _SHORTEST_S else 0
    gaps[min(at, _GAPS - 1)] += count


def gap_seconds() -> Doubles:
    """The seconds that stand for each class of gaps."""
    return np.asarray(_SHORTEST_S * _RATIO ** (np.arange(_GAPS) + 0.5), np.float64)


@compiled
def finish_step(loop: Loop, costs: Costs, shape: StepShape, accepted: int) -> None:
    """Charge and count a step, and move every row on by what it has emitted.

    Others enter in the place of those that have ended.
    """
    state, rows, ended = loop.state[0], running(loop), 0
    seconds = step_seconds(loop, costs, shape)
    for at in range(rows.shape[0]):
        row = rows[at]
        row.at += row.emitted
        state.tokens += row.emitted
        ended += row.at >= row.end
    state.time_s += seconds
    loop.load_s[rows.shape[0]] += seconds
    state.deciding_s += deciding_s(costs, shape.rows)
    state.steps += 1
    state.row_steps += shape.rows
    state.accepted += accepted
    state.drafted += shape.drafted
    state.neural_steps += shape.forwards > 0
    if ended > 0 or somebody_waits(loop):
        replace_ended(loop, ended)


@compiled
def somebody_waits(loop: Loop) -> bool:
    """Whether somebody has come and has not entered."""
    state = loop.state[0]
    if state.following == loop.entries.shape[0]:
        return False
    return loop.entries[state.following].comes_s <= state.time_s


@compiled
def replace_ended(loop: Loop, ended: int) -> None:
    """Let the rows go that have ended, so many, and others enter: in their places first."""
    state, rows, left = loop.state[0], loop.rows, 0
    state.reads_alone = ended == state.running
    for at in range(state.running):
        row = rows[at]
        if row.at >= row.end:
            entry = loop.entries[row.entry]
            entry.decoding_s = state.time_s - row.began_s
            entry.request_s = state.time_s - entry.comes_s
            if somebody_waits(loop):
                _enter(loop, at)
            else:
                left += 1
    at = state.running
    while left > 0:
        at -= 1
        if rows[at].at >= rows[at].end:
            state.running -= 1
            rows[at] = rows[state.running]
            left -= 1
            state.is_over = state.is_open == 0
    let_enter(loop)


@compiled
def let_enter(loop: Loop) -> None:
    """Let whoever has come enter, as long as there is a row; where nobody runs, the next comes."""
    state = loop.state[0]
    if state.running == 0:
        state.reads_alone = 1
        if state.following < loop.entries.shape[0]:
            before = state.time_s
            state.time_s = max(before, loop.entries[state.following].comes_s)
            loop.load_s[0] += state.time_s - before
        else:
            state.is_over = 1
    while state.running < loop.rows.shape[0] and somebody_waits(loop):
        _enter(loop, state.running)
        state.running += 1


@compiled
def _enter(loop: Loop, at: int) -> None:
    """The next request of the order takes a row."""
    state, row = loop.state[0], loop.rows[at]
    entry = loop.entries[state.following]
    row.entry, row.request = state.following, entry.request
    row.begin, row.at, row.end = entry.begin, entry.first + 1, entry.end
    row.began_s, row.holds_neural = state.time_s, state.gives_drafter > 0
    if state.is_open == 0:  # whose answer has come asks the next
        entry.comes_s = state.time_s
    entry.first_s = state.time_s - entry.comes_s
    state.prompt_tokens += entry.prompt
    state.draft_prompt_tokens += entry.prompt * state.gives_drafter
    state.following += 1


def result_of(loop: Loop) -> Result:
    """What the run comes to."""
    done = loop.entries[~np.isnan(loop.entries["request_s"])]
    return Result(
        **{name: float(loop.state[name][0]) for name in TOTALS},
        first_s=done["first_s"].copy(),
        token_s=done["decoding_s"] / (done["end"] - done["first"] - 1),
        request_s=done["request_s"].copy(),
        load_s=loop.load_s,
        gaps=loop.gaps,
    )

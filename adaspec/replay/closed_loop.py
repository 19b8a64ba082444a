"""The loop that every replay runs: who enters, who leaves, and what the steps add up to.

At most so many requests run at once; as one ends, the next of the order enters in its place. In a
*closed loop* all requests wait from the beginning, and the loop ends as a place is left empty. In
an *open loop* each comes at a time of its own, and the loop ends with the last of them. Where
reading prompts is charged, the prompts of those that enter are tokens of the step that follows
(chunked prefill); where nobody else runs, of a step of its own before it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

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
from adaspec.jit import compiled
from adaspec.replay.recording import Columns

Ints = NDArray[np.int32]
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
    first_s: NDArray[np.float64]
    """From coming to the first token, one entry per finished request."""
    token_s: NDArray[np.float64]
    """Per output token behind the first, likewise."""
    request_s: NDArray[np.float64]
    """From coming to ending, likewise."""
    load_s: NDArray[np.float64]
    """For how long so many requests ran at once."""
    gaps: NDArray[np.int64]
    """How many deliveries came so long after the one before: see `gap_seconds`."""

    @property
    def tokens_per_s(self) -> float:
        """Throughput of the whole batch."""
        return self.tokens / self.time_s


TOTALS = np.dtype([(each.name, "f8") for each in fields(Result) if each.type == "float"])
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
    ]
)


class ClosedLoop(NamedTuple):
    """What runs, in the first rows; there is a row for each request that may run at once."""

    columns: Columns
    order: Ints
    comes_s: NDArray[np.float64]
    """When each entry of the order comes."""
    request: Longs
    entry: Longs
    """Place in the order."""
    position: Longs
    """Output tokens already known."""
    place: Longs
    """A number that whoever runs the loop may keep with a row."""
    began_s: NDArray[np.float64]
    """When its prompt had been read."""
    holds_neural: NDArray[np.bool_]
    emitted: Longs
    """Tokens that the present step emits; whoever runs the loop fills them in."""
    state: NDArray[Any]
    totals: NDArray[Any]
    load_s: NDArray[np.float64]
    gaps: Longs
    first_s: NDArray[np.float64]
    """Seconds from coming to the first token, per entry of the order."""
    decoding_s: NDArray[np.float64]
    """Seconds from the end of its prompt to its own, NaN until it has finished."""
    request_s: NDArray[np.float64]
    """Seconds from coming to its end, likewise."""


def start(
    columns: Columns,
    order: Ints,
    concurrency: int,
    gives_drafter: bool,
    comes_s: NDArray[np.float64] | None = None,
) -> ClosedLoop:
    """The first requests of the order at position 1; whoever enters holds the drafter, or none.

    In an open loop, `comes_s` says when each entry of the order comes, in ascending order.
    """
    state = np.zeros(1, _STATE)
    request, entry, position, place, emitted = np.zeros((5, concurrency), np.int64)
    state["is_open"], state["gives_drafter"] = comes_s is not None, gives_drafter
    loop = ClosedLoop(
        columns,
        order,
        np.zeros(len(order)) if comes_s is None else comes_s,
        request,
        entry,
        position,
        place,
        began_s=np.zeros(concurrency),
        holds_neural=np.zeros(concurrency, np.bool_),
        emitted=emitted,
        state=state,
        totals=np.zeros(1, TOTALS),
        load_s=np.zeros(concurrency + 1),
        gaps=np.zeros(_GAPS, np.int64),
        first_s=np.zeros(len(order)),
        decoding_s=np.full(len(order), np.nan),
        request_s=np.full(len(order), np.nan),
    )
    let_enter(loop)
    return loop


@compiled
def goes_on(loop: ClosedLoop) -> bool:
    """Whether there is another step."""
    return loop.state[0].is_over == 0


@compiled
def running(loop: ClosedLoop) -> ClosedLoop:
    """The loop with the rows alone that run."""
    count = loop.state[0].running
    return ClosedLoop(
        loop.columns,
        loop.order,
        loop.comes_s,
        loop.request[:count],
        loop.entry[:count],
        loop.position[:count],
        loop.place[:count],
        loop.began_s[:count],
        loop.holds_neural[:count],
        loop.emitted[:count],
        loop.state,
        loop.totals,
        loop.load_s,
        loop.gaps,
        loop.first_s,
        loop.decoding_s,
        loop.request_s,
    )


@compiled
def read_beside(loop: ClosedLoop) -> int:
    """The tokens of prompts that the next step reads beside what it verifies."""
    state = loop.state[0]
    return 0 if state.reads_alone > 0 else state.prompt_tokens


@compiled
def step_seconds(loop: ClosedLoop, costs: Costs, shape: StepShape) -> float:
    """What a step of this shape takes, with reading the prompts that wait; counts its gaps."""
    state, seconds, now = loop.state[0], step_s(costs, shape), loop.totals[0].time_s
    tokens, drafts = state.prompt_tokens, state.draft_prompt_tokens
    alone, reading_s = state.reads_alone > 0, 0.0
    state.prompt_tokens = state.draft_prompt_tokens = state.reads_alone = 0
    if tokens > 0 and alone:
        reading_s = without_drafting_s(costs, step_shape(0, 0, 0, 0, False, 0, tokens))
        reading_s += costs.draft_prompt_s * drafts
    elif tokens > 0:
        reading = step_shape(
            shape.rows,
            shape.context_tokens,
            shape.drafted,
            shape.forwards,
            shape.holds_neural,
            shape.budget,
            tokens,
            drafts,
        )
        reading_s = step_s(costs, reading) - seconds
    entered = 0
    if tokens > 0:
        for row in range(state.running):
            if loop.began_s[row] == now:
                loop.began_s[row] = now + reading_s
                # What is read beside others is answered when their step ends.
                loop.first_s[loop.entry[row]] += reading_s + (0.0 if alone else seconds)
                entered += 1
    note_gaps(loop.gaps, seconds, entered)  # behind their first token, which reading brought
    note_gaps(loop.gaps, seconds + reading_s, state.running - entered)
    return seconds + reading_s


@compiled
def note_gaps(gaps: Longs, seconds: float, count: int) -> None:
    """Count so many gaps of this length."""
    at = int(np.log(seconds / _SHORTEST_S) / np.log(_RATIO)) if seconds > _SHORTEST_S else 0
    gaps[min(at, _GAPS - 1)] += count


def gap_seconds() -> NDArray[np.float64]:
    """The seconds that stand for each class of gaps."""
    return np.asarray(_SHORTEST_S * _RATIO ** (np.arange(_GAPS) + 0.5), np.float64)


@compiled
def finish_step(loop: ClosedLoop, costs: Costs, shape: StepShape, accepted: int) -> None:
    """Charge and count a step, and move every row on by what `loop.emitted` says.

    Others enter in the place of those that have ended.
    """
    totals, count = loop.totals[0], loop.state[0].running
    seconds = step_seconds(loop, costs, shape)
    totals.tokens += loop.emitted[:count].sum()
    totals.time_s += seconds
    loop.load_s[count] += seconds
    totals.deciding_s += deciding_s(costs, shape.rows)
    totals.steps += 1
    totals.row_steps += shape.rows
    totals.accepted += accepted
    totals.drafted += shape.drafted
    totals.neural_steps += shape.forwards > 0
    loop.position[:count] += loop.emitted[:count]
    ended = loop.position[:count] >= loop.columns.length[loop.request[:count]]
    if ended.any() or somebody_waits(loop):
        replace_ended(loop, ended)


@compiled
def somebody_waits(loop: ClosedLoop) -> bool:
    """Whether somebody has come and has not entered."""
    following = loop.state[0].following
    if following == loop.order.shape[0]:
        return False
    return loop.comes_s[following] <= loop.totals[0].time_s


@compiled
def replace_ended(loop: ClosedLoop, ended: NDArray[np.bool_]) -> None:
    """Let rows that have ended go, and others enter: in their places first, then in free ones."""
    state, now = loop.state[0], loop.totals[0].time_s
    state.reads_alone = ended.all()
    for row in range(ended.shape[0]):
        if ended[row]:
            entry = loop.entry[row]
            loop.decoding_s[entry] = now - loop.began_s[row]
            loop.request_s[entry] = now - loop.comes_s[entry]
            if somebody_waits(loop):
                _enter(loop, row)
                ended[row] = False
    for row in range(ended.shape[0] - 1, -1, -1):
        if ended[row]:
            state.running -= 1
            _move(loop, state.running, row)
            state.is_over = state.is_open == 0
    let_enter(loop)


@compiled
def let_enter(loop: ClosedLoop) -> None:
    """Let whoever has come enter, as long as there is a row; where nobody runs, the next comes."""
    state, totals = loop.state[0], loop.totals[0]
    if state.running == 0:
        state.reads_alone = 1
        if state.following < loop.order.shape[0]:
            before, totals.time_s = totals.time_s, max(totals.time_s, loop.comes_s[state.following])
            loop.load_s[0] += totals.time_s - before
        else:
            state.is_over = 1
    while state.running < loop.request.shape[0] and somebody_waits(loop):
        _enter(loop, state.running)
        state.running += 1


@compiled
def _enter(loop: ClosedLoop, row: int) -> None:
    """The next request of the order takes a row."""
    state = loop.state[0]
    loop.request[row], loop.entry[row] = loop.order[state.following], state.following
    loop.position[row], loop.place[row] = 1, 0
    loop.began_s[row] = loop.totals[0].time_s
    if state.is_open == 0:  # whose answer has come asks the next
        loop.comes_s[state.following] = loop.totals[0].time_s
    loop.first_s[state.following] = loop.totals[0].time_s - loop.comes_s[state.following]
    loop.holds_neural[row] = state.gives_drafter > 0
    if loop.columns.charges_prompts:
        tokens = loop.columns.prompt[loop.request[row]]
        state.prompt_tokens += tokens
        state.draft_prompt_tokens += tokens * state.gives_drafter
    state.following += 1


@compiled
def _move(loop: ClosedLoop, row: int, to: int) -> None:
    """Move what runs in a row to another one."""
    loop.request[to], loop.entry[to] = loop.request[row], loop.entry[row]
    loop.position[to], loop.place[to] = loop.position[row], loop.place[row]
    loop.began_s[to], loop.holds_neural[to] = loop.began_s[row], loop.holds_neural[row]


@compiled
def context_tokens(loop: ClosedLoop) -> int:
    """Known tokens, summed over the rows that run."""
    request, position, prompt = loop.request, loop.position, loop.columns.prompt
    total = 0
    for row in range(loop.state[0].running):
        total += prompt[request[row]] + position[row]
    return total


def result_of(loop: ClosedLoop) -> Result:
    """What the run comes to."""
    done = ~np.isnan(loop.request_s)
    token_s = loop.decoding_s[done] / (loop.columns.length[loop.order[done]] - 1)
    return Result(
        **dict(zip(TOTALS.names or (), map(float, loop.totals[0]), strict=True)),
        first_s=loop.first_s[done],
        token_s=token_s,
        request_s=loop.request_s[done],
        load_s=loop.load_s,
        gaps=loop.gaps,
    )

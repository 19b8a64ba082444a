"""The closed loop that every replay runs: who enters, who leaves, and what the steps add up to.

A fixed number of requests run; as one ends, the next of the order enters in its place. Where
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
    token_s: NDArray[np.float64]
    """Per output token, one entry per finished request."""
    request_s: NDArray[np.float64]
    """From entering to ending, its prompt included, likewise."""

    @property
    def tokens_per_s(self) -> float:
        """Throughput of the whole batch."""
        return self.tokens / self.time_s


TOTALS = np.dtype([(each.name, "f8") for each in fields(Result) if each.type == "float"])
"""What a `Result` sums over the steps of a run."""

_FACTS = ("following", "slot_left_empty", "reads_alone", "gives_drafter")
_STATE = np.dtype([(name, "i8") for name in (*_FACTS, "prompt_tokens", "draft_prompt_tokens")])


class ClosedLoop(NamedTuple):
    """What runs, one row per request; the loop ends as a row is left without one."""

    columns: Columns
    order: Ints
    request: Longs
    entry: Longs
    """Place in the order."""
    position: Longs
    """Output tokens already known."""
    entered_s: NDArray[np.float64]
    began_s: NDArray[np.float64]
    """When its prompt had been read."""
    slot: Ints
    """What names the request in a policy's memory."""
    holds_neural: NDArray[np.bool_]
    emitted: Longs
    """Tokens that the present step emits; whoever runs the loop fills them in."""
    state: NDArray[Any]
    """The next entry of the order; whether a slot stayed empty that should have been refilled;
    whether prompts are read before the next step, alone; whether whoever enters holds the neural
    drafter; and the prompt tokens that the target and the drafter read next."""
    totals: NDArray[Any]
    request_s: NDArray[np.float64]
    """Seconds from entry to end per entry of the order, NaN until it has finished."""
    decoding_s: NDArray[np.float64]
    """The same from the end of its prompt."""


def start(columns: Columns, order: Ints, concurrency: int, gives_drafter: bool) -> ClosedLoop:
    """The first requests of the order at position 1; whoever enters holds the drafter, or none."""
    request, state = order[:concurrency].astype(np.int64), np.zeros(1, _STATE)
    state["following"], state["reads_alone"] = concurrency, 1
    state["gives_drafter"] = gives_drafter
    if columns.charges_prompts:
        state["prompt_tokens"] = columns.prompt[request].sum()
        state["draft_prompt_tokens"] = state["prompt_tokens"] * gives_drafter
    return ClosedLoop(
        columns,
        order,
        request,
        entry=np.arange(concurrency),
        position=np.ones(concurrency, np.int64),
        entered_s=np.zeros(concurrency),
        began_s=np.zeros(concurrency),
        slot=np.arange(concurrency, dtype=np.int32),
        holds_neural=np.full(concurrency, gives_drafter),
        emitted=np.zeros(concurrency, np.int64),
        state=state,
        totals=np.zeros(1, TOTALS),
        request_s=np.full(len(order), np.nan),
        decoding_s=np.full(len(order), np.nan),
    )


@compiled
def goes_on(loop: ClosedLoop) -> bool:
    """Whether there is another step: the loop ends with the first one that leaves a slot empty."""
    return loop.state[0].slot_left_empty == 0


@compiled
def read_beside(loop: ClosedLoop) -> int:
    """The tokens of prompts that the next step reads beside what it verifies."""
    state = loop.state[0]
    return 0 if state.reads_alone > 0 else state.prompt_tokens


@compiled
def step_seconds(loop: ClosedLoop, costs: Costs, shape: StepShape) -> float:
    """What a step of this shape takes, with reading the prompts that wait."""
    state, seconds = loop.state[0], step_s(costs, shape)
    tokens, drafts = state.prompt_tokens, state.draft_prompt_tokens
    alone = state.reads_alone > 0
    state.prompt_tokens = state.draft_prompt_tokens = state.reads_alone = 0
    if tokens == 0:
        return seconds
    if alone:
        reading_s = without_drafting_s(costs, step_shape(0, 0, 0, 0, False, 0, tokens))
        reading_s += costs.draft_prompt_s * drafts
    else:
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
    now = loop.totals[0].time_s
    for row in range(loop.request.shape[0]):
        if loop.entered_s[row] == now:
            loop.began_s[row] = now + reading_s
    return seconds + reading_s


@compiled
def finish_step(loop: ClosedLoop, costs: Costs, shape: StepShape, accepted: int) -> None:
    """Charge and count a step, and move every row on by what `loop.emitted` says.

    Others enter in the place of those that have ended.
    """
    totals = loop.totals[0]
    totals.tokens += loop.emitted.sum()
    totals.time_s += step_seconds(loop, costs, shape)
    totals.deciding_s += deciding_s(costs, shape.rows)
    totals.steps += 1
    totals.row_steps += shape.rows
    totals.accepted += accepted
    totals.drafted += shape.drafted
    totals.neural_steps += shape.forwards > 0
    loop.position[:] += loop.emitted
    ended = loop.position >= loop.columns.length[loop.request]
    if ended.any():
        replace_ended(loop, ended)


@compiled
def replace_ended(loop: ClosedLoop, ended: NDArray[np.bool_]) -> None:
    """Let rows that have ended go, and others enter in their place, as long as there are any."""
    state, now = loop.state[0], loop.totals[0].time_s
    if ended.all():
        state.reads_alone = 1
    for row in range(ended.shape[0]):
        if not ended[row]:
            continue
        loop.request_s[loop.entry[row]] = now - loop.entered_s[row]
        loop.decoding_s[loop.entry[row]] = now - loop.began_s[row]
        if state.following == loop.order.shape[0]:
            state.slot_left_empty = 1
            continue
        loop.request[row], loop.position[row] = loop.order[state.following], 1
        loop.entry[row], loop.entered_s[row] = state.following, now
        loop.began_s[row] = now
        loop.holds_neural[row] = state.gives_drafter > 0
        if loop.columns.charges_prompts:
            tokens = loop.columns.prompt[loop.request[row]]
            state.prompt_tokens += tokens
            state.draft_prompt_tokens += tokens * state.gives_drafter
        state.following += 1


@compiled
def context_tokens(loop: ClosedLoop) -> int:
    """Known tokens, summed over the running rows."""
    request, position, prompt = loop.request, loop.position, loop.columns.prompt
    total = 0
    for row in range(request.shape[0]):
        total += prompt[request[row]] + position[row]
    return total


def result_of(loop: ClosedLoop) -> Result:
    """What the run comes to."""
    done = ~np.isnan(loop.decoding_s)
    token_s = loop.decoding_s[done] / (loop.columns.length[loop.order[done]] - 1)
    sums = dict(zip(TOTALS.names or (), map(float, loop.totals[0]), strict=True))
    return Result(**sums, token_s=token_s, request_s=loop.request_s[done])

"""The learned policy at full speed: predictions made at once, then one compiled loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost import ASYNC, SYNC
from adaspec.cost.model import CostModel, Costs, StepShape, step_s, step_shape
from adaspec.draft.matches import IN_RING, Matches
from adaspec.jit import compiled
from adaspec.policy.budget import (
    LONGEST_DRAFT,
    SETTINGS,
    BatchState,
    Record,
    decide_budget,
    forwards_table,
    most_forwards,
    new_state,
    room_of_row,
)
from adaspec.policy.choice import ROW, Shapes, draft_rows, shapes_of
from adaspec.policy.decision import OF_DRAFTS, decide, decide_forwards, learn, verify
from adaspec.policy.protocol import LearnedPolicy
from adaspec.predict.features import CANDIDATE, TAIL, Floats, Known, Shown
from adaspec.predict.model import (
    LONGEST_NGRAM,
    PREDICTION,
    Model,
    Predictions,
    predict_before,
    predict_behind,
)
from adaspec.replay.loop import (
    Loop,
    Result,
    context_tokens,
    finish_step,
    goes_on,
    new_loop,
    read_beside,
    result_of,
    running,
)
from adaspec.replay.recording import Columns, Recording, accepted_of

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]
_TOGETHER = 4096
"""Positions that are predicted together."""


def known_at(recording: Recording, at: Longs, request: Longs) -> Known:
    """What is known at flat positions of these requests."""
    columns = recording.columns
    prompt, position = columns.prompt[request], at - columns.offset[request]
    match = Matches(*recording.facts[:, at])
    text_end = prompt + position
    back = text_end[:, None] - np.arange(TAIL, 0, -1)
    base = recording.text_start[request][:, None]
    tail = np.where(back >= 0, recording.text[base + np.maximum(back, 0)], -1).astype(np.int32)
    ahead = np.arange(CANDIDATE)
    is_copied = ahead < match.available[:, None]
    copied = recording.copied_tokens(request, np.where(is_copied, match.start[:, None] + ahead, 0))
    return Known(
        prompt.astype(np.int32),
        position.astype(np.int32),
        match,
        tail,
        np.where(is_copied, copied, -1).astype(np.int32),
    )


def shown_at(recording: Recording, at: Longs, request: Longs, most: int) -> Shown:
    """What drafts of so many tokens show at flat positions of these requests.

    Where drafted tokens are not recorded, the match behind as many true ones stands for the one
    behind them.
    """
    columns = recording.columns
    shape, place = (len(at), most), at - columns.offset[request]
    tokens, copied = np.full((2, *shape), -1, np.int32)
    confidences = np.full((*shape, 3), np.nan, np.float32)
    if not recording.shows_tokens:
        behind = at[:, None] + np.arange(1, most + 1)
        inside = place[:, None] + np.arange(1, most + 1) < columns.length[request][:, None]
        facts = recording.facts[:, np.where(inside, behind, 0)] * inside
        return Shown(tokens, confidences, Matches(*facts.astype(np.int32)), copied)
    tokens[:] = recording.drafted[at, :most]
    if recording.shows_confidences:
        confidences[:] = recording.confidences[at, :most]
    match = Matches(*(recording.splice_matches[:, at, :most] * (tokens >= 0)).astype(np.int32))
    known = (columns.prompt[request] + place)[:, None]
    in_draft = (match.start >= known) & (match.start < IN_RING)
    own = np.take_along_axis(tokens, np.where(in_draft, match.start - known, 0), axis=1)
    said = recording.copied_tokens(request, np.where(in_draft, 0, match.start))
    copied = np.where(match.length > 0, np.where(in_draft, own, said), -1).astype(np.int32)
    return Shown(tokens, confidences, match, copied)


class Predicted(NamedTuple):
    """What a model predicts at flat positions, and the features that it reads there."""

    at: Longs
    predictions: Predictions
    before: Floats
    shown: Shown
    evidence: Floats
    """(positions, tokens, features); empty where the model reads no drafts."""
    splice: Floats


def predict_all(recording: Recording, model: Model, requests: Ints, most: int) -> list[Predicted]:
    """What the model sees at every deciding position of these requests, in some parts.

    With drafts of up to `most` tokens.
    """
    at, request = recording.positions(requests)
    # The first token of an output is there before anything is decided.
    decides = at > recording.columns.offset[request]
    at, request = at[decides], request[decides]
    reads, found = model.reads_evidence and recording.shows_tokens, []
    for begin in range(0, len(at), _TOGETHER):
        part = slice(begin, begin + _TOGETHER)
        rows = known_at(recording, at[part], request[part])
        predictions, before = predict_before(model, rows)
        shown = shown_at(recording, at[part], request[part], most)
        evidence, splice = predict_behind(model, predictions, rows, shown, reads)
        found.append(Predicted(at[part], predictions, before, shown, evidence, splice))
    return found


class Limits(NamedTuple):
    """What holds for a whole run of a policy."""

    cap: int
    """The longest draft."""
    neural_cap: int
    """The longest neural draft."""
    reads_drafts: bool
    """Whether drafted tokens change what is expected."""
    is_async: bool
    """Whether a budget is decided before it is known what is drafted."""


@compiled
def decide_step(
    loop: Loop,
    columns: Columns,
    predictions: Record,
    shapes: Shapes,
    state: BatchState,
    costs: Costs,
    limits: Limits,
    prepared: Doubles,
) -> tuple[Record, StepShape, int]:
    """Take all running requests through a step, and have the state learn.

    Returned are its rows, its shape, and how many drafted tokens the target accepted, of all rows;
    what each row of the loop emits is filled in. `predictions` are by flat position. In an async
    engine a step was `prepared` before anything was known of what the last one brought: forwards
    and settings.
    """
    live = running(loop)
    count, context = live.shape[0], context_tokens(live)
    if not limits.is_async or prepared[0] < 0:
        prepare(state, costs, count, context, limits.neural_cap, prepared)
    forwards, settings = int(prepared[0]), prepared[1:].copy()
    loop.state[0].gives_drafter = forwards > 0
    rows, held = np.zeros(count, ROW), 0
    for at in range(count):
        row, request = rows[at], live[at]
        row.prediction, row.context = request.at, request.at - request.begin
        row.available = columns.available[request.at]
        # Who has run without the drafter has it no more.
        request.holds_neural &= forwards > 0
        row.holds_neural = request.holds_neural
        held += row.holds_neural
    prompt_tokens = read_beside(loop)
    forwards, budget, cap = forwards if held > 0 else 0, OF_DRAFTS, limits.cap
    if limits.is_async:
        beside = prompt_tokens, limits.cap, context, forwards
        budget = decide_budget(state, costs, count, *beside)
        cap = room_of_row(budget, count, cap)
    survival = np.zeros((count, LONGEST_NGRAM))
    reads = limits.reads_drafts
    lengths = draft_rows(rows, predictions, shapes, settings, forwards, cap, survival, reads)
    if limits.is_async:
        prepare(state, costs, count, context, limits.neural_cap, prepared)
    verify(state, costs, survival, lengths, budget, prompt_tokens, context, forwards)
    drafted, accepted = _verified(live, columns, rows, lengths)
    shape = step_shape(count, context, drafted, forwards, held > 0, max(budget, 0))
    seconds = step_s(costs, shape)
    learn(state, costs, rows, survival, settings, forwards, limits.neural_cap, seconds)
    return rows, shape, accepted


@compiled
def prepare(
    state: BatchState, costs: Costs, running: int, context: int, cap: int, prepared: Doubles
) -> None:
    """Decide by what is known now how many forwards a step runs, and by what its rows choose."""
    prepared[0] = decide_forwards(state, costs, running, context, cap)
    prepared[1:] = decide(state, costs, running, context)


@compiled
def _verified(live: Record, columns: Columns, rows: Record, lengths: Longs) -> tuple[int, int]:
    """Fill in what the target accepts of drafts cut to these lengths.

    How many tokens were verified and accepted, of all rows together.
    """
    drafted, total = 0, 0
    for at in range(rows.shape[0]):
        row, i = rows[at], rows[at].prediction
        left = live[at].end - live[at].at
        row.neural = min(row.neural, lengths[at])
        row.copied = lengths[at] - row.neural
        if row.neural >= left and columns.neural[i] >= row.neural:
            row.copied = 0  # behind the end of an output nothing is copied
        row.accepted = accepted_of(columns.neural, columns.run, i, row.neural, row.copied)
        row.emitted = min(row.accepted + 1, left)
        live[at].emitted = row.emitted
        drafted += row.neural + row.copied
        total += min(row.accepted, left)
    return drafted, total


@compiled
def _run(
    loop: Loop,
    columns: Columns,
    predictions: Record,
    shapes: Shapes,
    state: BatchState,
    costs: Costs,
    limits: Limits,
    prepared: Doubles,
) -> None:
    """Run the loop to its end."""
    while goes_on(loop):
        decides = predictions, shapes, state, costs, limits, prepared
        _, shape, accepted = decide_step(loop, columns, *decides)
        finish_step(loop, costs, shape, accepted)


class LearnedReplay:
    """A policy over a recording, whose predictions are made once for all runs."""

    def __init__(
        self, recording: Recording, policy: LearnedPolicy, requests: Ints | None = None
    ) -> None:
        """Only these requests can be replayed, or all."""
        self.recording, self.policy = recording, policy
        self.shapes = shapes_of(policy.model)
        self._predictions = np.zeros(len(recording.columns.neural), PREDICTION)
        if requests is None:
            requests = recording.members(None)
        neural_cap = min(policy.neural_cap, recording.neural_cap)
        most = most_forwards(policy.forwards_by_load, neural_cap)
        for part in predict_all(recording, policy.model, requests, most):
            self._predictions[part.at] = part.predictions

    def begin(
        self,
        order: Ints,
        concurrency: int,
        cost: CostModel,
        cap: int,
        engine: str = SYNC,
        forwards: Mapping[int, int] | None = None,
        comes_s: Doubles | None = None,
        longest_s: float | None = None,
    ) -> tuple[Any, ...]:
        """What `decide_step` takes in a run that has seen nothing yet, beginning with its loop.

        `forwards` are those of the drafter at first, if not the policy's. In an open loop,
        `comes_s` says when each request of the order comes. No step is planned that takes longer
        than `longest_s`.
        """
        policy, recording = self.policy, self.recording
        cap = min(policy.cap, cap, LONGEST_DRAFT[engine])
        limits = Limits(
            cap=cap,
            neural_cap=min(policy.neural_cap, recording.neural_cap, cap),
            reads_drafts=policy.model.reads_evidence and recording.shows_tokens,
            is_async=engine == ASYNC,
        )
        table = forwards_table(forwards) if forwards else policy.forwards_by_load
        state = new_state(concurrency, LONGEST_NGRAM, table)
        costs = cost.constants(longest_s)
        gives_drafter = decide_forwards(state, costs, concurrency, 0, limits.neural_cap) > 0
        columns, prepared = recording.columns, np.full(1 + SETTINGS, -1.0)
        loop = new_loop(columns, order, concurrency, gives_drafter, comes_s)
        return loop, columns, self._predictions, self.shapes, state, costs, limits, prepared

    def run(self, *chosen: Any, **named: Any) -> Result:
        """One run of the loop, as `begin` takes it."""
        loop, *decides = self.begin(*chosen, **named)
        _run(loop, *decides)
        return result_of(loop)

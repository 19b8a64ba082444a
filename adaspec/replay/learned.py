"""The learned policy at full speed: its own compiled stages inside one compiled closed loop.

Training looks at every position of a recording once: see `survey`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import SYNC
from adaspec.cost.model import CostModel, StepShape, batch_shape, line, step_s
from adaspec.draft.match import AVAILABLE, IN_RING, LENGTH, MATCH_FIELDS, OCCURRENCES, START, VOTES
from adaspec.jit import compiled
from adaspec.policy.learned import LearnedPolicy, planner_for
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import planner_at
from adaspec.policy.planner.state import Planner, rows_of
from adaspec.policy.protocol import Setup
from adaspec.predict.features import (
    CANDIDATE,
    EVIDENCE_FEATURES,
    FEATURES,
    SPLICE_FEATURES,
    TAIL,
    RowFacts,
    SpliceMatches,
)
from adaspec.replay.closed_loop import (
    ClosedLoop,
    Result,
    context_tokens,
    finish_step,
    goes_on,
    read_beside,
    result_of,
    start,
)
from adaspec.replay.recording import RecordedArrays, Recording, copied_token

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]


class Surveyed(NamedTuple):
    """Features that a policy reads, one kind after another, each with its flat position."""

    at: Longs
    before: Floats
    """Before drafting, or nothing where drafts of all lengths are looked at."""
    splice_at: Longs
    splice_depth: Ints
    """The neural tokens that it lies behind."""
    splice: Floats
    drafted_at: Longs
    drafted_depth: Ints
    drafted: Floats


class Decided(NamedTuple):
    """A step of a closed loop, as it was decided, before it is charged."""

    neural_len: Ints
    ngram_len: Ints
    shape: StepShape
    accepted: int
    """Drafted tokens that the target accepted, of all rows."""


@compiled
def decide_step(arrays: RecordedArrays, loop: ClosedLoop, address: int, cap: int) -> Decided:
    """Take all running requests through a step of the planner at this address, and have it learn.

    `loop.emitted` is filled in. `cap` is the run's own, to which look-ups on the true path are cut.
    """
    planner = planner_at(address)
    run, count = planner.run[0], loop.request.shape[0]
    reads_drafts, is_async = run.reads_drafts > 0, run.is_async > 0
    run.rows = count
    context = context_tokens(loop)
    holds = stages.holds_drafter(address, count)
    loop.state[0].gives_drafter = holds
    if not holds:
        loop.holds_neural[:] = False
    _take_in(arrays, loop, planner)
    rows = rows_of(planner)
    run.prompt_tokens = read_beside(loop)
    forwards = stages.plan(address)
    if reads_drafts and forwards > 0:
        tokens, confidences = _drafts(arrays, loop, planner, forwards)
        for depth in range(1, forwards + 1):
            # Nothing is looked up on the true path, and so nothing is cut.
            depths = np.full(count, depth, np.int32)
            found = _splice_matches(arrays, loop, planner, depths, 0)
            stages.revise(address, depth, tokens, confidences, found)
    neural_len, ngram_len = np.zeros((2, count), np.int32)
    if stages.choose(address, forwards, neural_len, ngram_len):
        found = _splice_matches(arrays, loop, planner, neural_len, cap)
        stages.splice(address, neural_len, found, ngram_len)
    accepted, taken = _verify(arrays, loop, rows, neural_len, ngram_len)
    drafted = neural_len + ngram_len
    budget = int(planner.batch_state.step[0].budget) if is_async else 0
    shape = batch_shape(count, context, drafted, forwards, loop.holds_neural.any(), budget)
    seconds, emitted = step_s(planner.costs, shape), loop.emitted.astype(np.int32)
    stages.learn(address, emitted, drafted, neural_len, accepted, forwards, seconds)
    return Decided(neural_len, ngram_len, shape, taken)


@compiled
def _run(
    arrays: RecordedArrays,
    order: Ints,
    concurrency: int,
    address: int,
    cap: int,
) -> ClosedLoop:
    """The closed loop, run to its end, under the planner at this address."""
    loop = start(arrays.columns, order, concurrency, stages.holds_drafter(address, concurrency))
    while goes_on(loop):
        decided = decide_step(arrays, loop, address, cap)
        finish_step(loop, planner_at(address).costs, decided.shape, decided.accepted)
    return loop


@compiled
def _survey(
    arrays: RecordedArrays,
    loop: ClosedLoop,
    address: int,
    position: Longs,
    request: Longs,
    most: int,
    surveyed: Surveyed,
) -> int:
    """Show the planner these positions, a batch at a time, with drafts of up to `most` tokens.

    Fills in what it saw; how many splices that were.
    """
    planner = planner_at(address)
    run, state = planner.run[0], planner.state
    reads_drafts = run.reads_drafts > 0
    spliced = drafted = 0
    for first in range(0, position.shape[0], loop.request.shape[0]):
        count = min(position.shape[0] - first, loop.request.shape[0])
        run.rows = count
        loop.request[:count] = request[first : first + count]
        loop.position[:count] = position[first : first + count]
        _take_in(arrays, loop, planner)
        stages.plan(address)
        if surveyed.before.shape[0] > 0:
            surveyed.before[first : first + count] = state.features[:count]
        tokens, confidences = _drafts(arrays, loop, planner, most if reads_drafts else 0)
        for depth in range(1, most + 1):
            depths = np.full(count, depth, np.int32)
            # Where drafts are recorded, nothing is looked up on the true path, and nothing is cut.
            found = _splice_matches(arrays, loop, planner, depths, run.cap - depth)
            if reads_drafts:
                stages.revise(address, depth, tokens, confidences, found)
                surveyed.drafted_at[drafted : drafted + count] = surveyed.at[first : first + count]
                surveyed.drafted_depth[drafted : drafted + count] = depth
                surveyed.drafted[drafted : drafted + count] = state.evidence_features[:count]
                drafted += count
            else:
                stages.expect_splices(address, depths, found)
            places = np.flatnonzero(found.length > 0)
            for place in range(places.shape[0]):
                surveyed.splice_at[spliced] = surveyed.at[first + places[place]]
                surveyed.splice_depth[spliced] = depth
                surveyed.splice[spliced] = state.splice_features[place]
                spliced += 1
    return spliced


@compiled
def _take_in(arrays: RecordedArrays, loop: ClosedLoop, planner: Planner) -> None:
    """Show the planner as many rows as its `run` says, as they are before drafting."""
    columns, rows, facts = arrays.columns, planner.rows, arrays.facts
    for row in range(planner.run[0].rows):
        r, p = loop.request[row], loop.position[row]
        i, base = columns.offset[r] + p, arrays.text_start[r]
        known = columns.prompt[r] + p
        rows.slots[row] = loop.slot[row]
        rows.prompt_tokens[row], rows.position[row] = columns.prompt[r], p
        rows.holds_neural[row] = loop.holds_neural[row]
        rows.length[row], rows.start[row] = facts[LENGTH, i], facts[START, i]
        rows.votes[row], rows.occurrences[row] = facts[VOTES, i], facts[OCCURRENCES, i]
        rows.available[row] = facts[AVAILABLE, i]
        for k in range(TAIL):
            rows.tail[row, TAIL - 1 - k] = arrays.text[base + known - 1 - k] if k < known else -1
        for k in range(CANDIDATE):
            copied = k < rows.available[row]
            rows.candidate[row, k] = copied_token(arrays, r, rows.start[row], k) if copied else -1


@compiled
def _drafts(
    arrays: RecordedArrays, loop: ClosedLoop, planner: Planner, forwards: int
) -> tuple[Ints, Floats]:
    """The tokens and confidences of so many forwards, as recorded."""
    holds = rows_of(planner).holds_neural
    count = holds.shape[0]
    tokens = np.full((count, forwards), -1, np.int32)
    confidences = np.full((count, forwards, arrays.confidences.shape[2]), np.nan, np.float32)
    for row in range(count):
        if holds[row]:
            i = loop.columns.offset[loop.request[row]] + loop.position[row]
            tokens[row] = arrays.drafted[i, :forwards]
            if arrays.confidences.shape[0] > 0:
                confidences[row] = arrays.confidences[i, :forwards]
    return tokens, confidences


@compiled
def _splice_matches(
    arrays: RecordedArrays, loop: ClosedLoop, planner: Planner, neural_len: Ints, cap: int
) -> SpliceMatches:
    """The matches behind so many drafted tokens per row; true ones where none are recorded.

    A policy that reads drafts sees which token would be copied.
    """
    columns, holds = arrays.columns, rows_of(planner).holds_neural
    count, reads_drafts = holds.shape[0], planner.run[0].reads_drafts > 0
    found, copied = np.zeros((MATCH_FIELDS, count), np.int32), np.full(count, -1, np.int32)
    for row in range(count):
        k = neural_len[row]
        if k == 0 or not holds[row]:
            continue
        r, p = loop.request[row], loop.position[row]
        i = columns.offset[r] + p
        if arrays.drafted.shape[1] == 0:
            if p + k < columns.length[r]:
                found[:, row] = arrays.facts[:, i + k]
                found[AVAILABLE, row] = min(found[AVAILABLE, row], cap)
        elif arrays.drafted[i, k - 1] >= 0:
            found[:, row] = arrays.splice_matches[:, i, k - 1]
            begin, known = found[START, row], columns.prompt[r] + p
            if reads_drafts and found[LENGTH, row] > 0:
                if begin < known or begin >= IN_RING:
                    copied[row] = copied_token(arrays, r, begin, 0)
                else:
                    copied[row] = arrays.drafted[i, begin - known]
    return SpliceMatches(found[LENGTH], found[VOTES], found[OCCURRENCES], found[AVAILABLE], copied)


@compiled
def _verify(
    arrays: RecordedArrays, loop: ClosedLoop, rows: RowFacts, neural_len: Ints, ngram_len: Ints
) -> tuple[Ints, int]:
    """What the target accepts per row, and of the whole batch; `loop.emitted` is filled in.

    Lengths are cut to what can be verified.
    """
    columns = arrays.columns
    accepted = np.zeros(rows.slots.shape[0], np.int32)
    total = 0
    for row in range(rows.slots.shape[0]):
        r, p = loop.request[row], loop.position[row]
        i, left, k = columns.offset[r] + p, columns.length[r] - p, neural_len[row]
        if k > 0:
            accepted[row] = min(columns.neural[i], k)
            if accepted[row] == k:
                if k < left:
                    accepted[row] += min(ngram_len[row], columns.run[i + k])
                else:
                    ngram_len[row] = 0
        else:
            ngram_len[row] = min(ngram_len[row], rows.available[row])
            accepted[row] = min(ngram_len[row], columns.run[i])
        loop.emitted[row] = min(accepted[row] + 1, left)
        total += min(accepted[row], left)
    return accepted, total


def run_learned(
    recording: Recording,
    policy: LearnedPolicy,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    engine: str = SYNC,
) -> Result:
    """One run of the closed loop, decided by the compiled stages."""
    kept = planner_for(policy, setup_for(recording, cost, concurrency, cap, engine))
    loop = _run(recording.arrays, order, concurrency, kept.address, cap)
    del kept  # the compiled loop knows an address only: what lies there must outlive it
    return result_of(loop)


def survey(
    recording: Recording, policy: LearnedPolicy, requests: Ints, together: int, drafts: bool
) -> Surveyed:
    """What the policy sees at every position of these requests, so many positions at once.

    That is before drafting or, with `drafts`, behind drafts of all lengths there.
    """
    columns, cost = recording.columns, line("none", 1.0, 0.0)
    kept = planner_for(policy, setup_for(recording, cost, together, policy.cap))
    run = kept.value.run[0]
    # The first token of an output is there before anything is decided.
    counts = columns.length[requests] - 1
    of = np.repeat(requests.astype(np.int64), counts)
    at = np.concatenate([np.arange(1, 1 + count) for count in counts.tolist()]).astype(np.int64)
    slots = np.zeros(together, np.int32)
    loop = start(columns, slots, together, run["neural_cap"] > 0)
    most = int(run["neural_cap"]) if drafts else 0
    spliced, drafted = len(at) * most, len(at) * most * int(run["reads_drafts"])
    surveyed = Surveyed(
        columns.offset[of] + at,
        np.zeros((0 if drafts else len(at), FEATURES), np.float32),
        np.zeros(spliced, np.int64),
        np.zeros(spliced, np.int32),
        np.zeros((spliced, len(SPLICE_FEATURES)), np.float32),
        np.zeros(drafted, np.int64),
        np.zeros(drafted, np.int32),
        np.zeros((drafted, len(EVIDENCE_FEATURES)), np.float32),
    )
    spliced = _survey(recording.arrays, loop, kept.address, at, of, most, surveyed)
    del kept
    return surveyed._replace(  # copies, as there is room for many more
        splice_at=surveyed.splice_at[:spliced].copy(),
        splice_depth=surveyed.splice_depth[:spliced].copy(),
        splice=surveyed.splice[:spliced].copy(),
    )


def setup_for(
    recording: Recording, cost: CostModel, slots: int, cap: int, engine: str = SYNC
) -> Setup:
    """What holds for a run over this recording."""
    shows = recording.shows_tokens, recording.shows_confidences
    return Setup(cost, cap, recording.neural_cap, slots, *shows, engine)

"""Static rules at full speed: a rule's path through a request does not depend on the load.

The path (what is drafted and what is emitted, step by step) is walked once per rule and request;
the loop then only adds up what each step costs in the company it runs in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, step_s, step_shape
from adaspec.draft.chains import Ints
from adaspec.jit import compiled
from adaspec.policy.static import StaticRule
from adaspec.replay import closed_loop
from adaspec.replay.closed_loop import ClosedLoop, Result
from adaspec.replay.recording import Columns, Recording

Longs = NDArray[np.int64]
Shorts = NDArray[np.int16]
Steps = NDArray[Any]

_FIELDS = ("neural", "copied", "forwards", "accepted", "emitted", "is_last")
STEP = np.dtype([(name, "i2") for name in _FIELDS])
"""One step of a path: its neural tokens and the copied ones behind them, how many were accepted and
emitted, and whether the output ends with them."""


class Paths(NamedTuple):
    """Requests' paths under one rule; that of request r has steps start[r] .. start[r + 1]."""

    start: Longs
    steps: Steps
    paid_drafts: int
    """Drafted tokens that a row is charged for at least: in an async engine the rule's longest
    draft, else 0."""


MatchedBehind = tuple[NDArray[Any], NDArray[Any]]
"""By position, the length of a match there, and how much could be copied."""


def matched_behind(columns: Columns, neural_len: int, at: Longs, left: Longs) -> MatchedBehind:
    """The matches behind so many neural tokens at flat positions whose outputs have so much left.

    Behind a wrong draft the text goes where the output never went, as that is recorded.
    """
    behind = np.where(neural_len < left, at + neural_len, 0)
    match, available = columns.match[behind], columns.available[behind]
    exists = neural_len < left
    if neural_len > 0 and columns.splice_match_length.shape[1] > 0:
        wrong, drafted = columns.neural[at] < neural_len, (at, neural_len - 1)
        match = np.where(wrong, columns.splice_match_length[drafted], match)
        available = np.where(wrong, columns.splice_match_available[drafted], available)
        exists = exists | wrong
    return np.where(exists, match, 0), available


@compiled
def _walk(
    columns: Columns,
    requests: Ints,
    neural_len: Shorts,
    copied_len: Shorts,
    least_forwards: int,
    paths: Paths,
) -> int:
    """Fill in the path of each of these requests; how many steps there are.

    What is drafted is given by flat position.
    """
    # Taken out of their tuple once: that takes as long as a step does.
    offset, length = columns.offset, columns.length
    neural_accepted, run = columns.neural, columns.run
    start, steps = paths.start, paths.steps
    count = 0
    for r in requests:
        start[r] = count
        p = 1
        while p < length[r]:
            i, left = offset[r] + p, length[r] - p
            neural, copied = neural_len[i], copied_len[i]
            accepted = min(neural_accepted[i], neural) if neural > 0 else 0
            if accepted == neural and copied > 0:
                accepted += min(run[i + neural], copied)
            step = steps[count]
            step.neural, step.copied = neural, copied
            step.forwards = max(neural, least_forwards)
            step.emitted = min(accepted + 1, left)
            step.accepted = min(accepted, left)
            step.is_last = step.emitted == left
            count += 1
            p += step.emitted
        start[r + 1] = count
    return count


def run_paths(
    columns: Columns,
    paths: Paths,
    order: Ints,
    concurrency: int,
    costs: Costs,
    holds: bool,
    comes_s: NDArray[np.float64] | None = None,
) -> Result:
    """One run of the loop over paths."""
    loop = closed_loop.start(columns, order, concurrency, holds, comes_s)
    _run(loop, paths, costs, holds)
    return closed_loop.result_of(loop)


@compiled
def _run(loop: ClosedLoop, paths: Paths, costs: Costs, holds: bool) -> None:
    # Sums stay in locals while nobody comes or goes: this loop tunes rules, and runs most of all.
    steps, totals, state = paths.steps, loop.totals[0], loop.state[0]
    step_of, position = loop.place, loop.position
    ends = np.empty(position.shape[0], np.bool_)
    while closed_loop.goes_on(loop):
        running, time = state.running, totals.time_s
        for row in range(running):
            if position[row] == 1:
                step_of[row] = paths.start[loop.request[row]]
        context, paid = closed_loop.context_tokens(loop), running * paths.paid_drafts
        comes = np.inf
        if running < position.shape[0] and state.following < loop.order.shape[0]:
            comes = loop.comes_s[state.following]
        count = tokens = all_accepted = all_drafted = neural_steps = 0
        # Handing the loop over takes as long as a step does: only where there are prompts to read.
        waiting, ended = state.prompt_tokens, 0
        while ended == 0 and time < comes:
            drafted = forwards = emitted = 0
            for row in range(running):
                step = steps[step_of[row]]
                drafted += step.neural + step.copied
                all_accepted += step.accepted
                forwards = max(forwards, step.forwards)
                emitted += step.emitted
                position[row] += step.emitted
                step_of[row] += 1
                ends[row] = step.is_last
                ended += step.is_last
            shape = step_shape(running, context, drafted, forwards, holds, paid)
            if waiting > 0:
                time += closed_loop.step_seconds(loop, costs, shape)
                waiting = 0
            else:
                seconds = step_s(costs, shape)
                closed_loop.note_gaps(loop.gaps, seconds, running)
                time += seconds
            context += emitted
            count += 1
            tokens += emitted
            all_drafted += drafted
            neural_steps += forwards > 0
        loop.load_s[running] += time - totals.time_s
        totals.time_s = time
        totals.tokens += tokens
        totals.steps += count
        totals.row_steps += count * running
        totals.accepted += all_accepted
        totals.drafted += all_drafted
        totals.neural_steps += neural_steps
        closed_loop.replace_ended(loop, ends[:running])


class RuleWalker:
    """Walks rules through a recording. What they look at is looked up once for all."""

    def __init__(self, recording: Recording, cap: int, is_async: bool = False) -> None:
        self._recording, columns = recording, recording.columns
        self._cap, self._is_async = cap, is_async
        self._at, request = recording.positions(recording.members(None))
        self._left = columns.offset[request] + columns.length[request] - self._at
        self._holds = np.ones(len(self._at), np.bool_)
        self._behind: dict[int, MatchedBehind] = {}
        """By number of neural tokens."""

    def walk(self, rule: StaticRule, requests: Ints | None = None) -> Paths:
        """The path of one rule through these requests, which ascend, or through all."""
        recording, columns = self._recording, self._recording.columns
        if requests is None:
            requests = recording.members(None)
        *drafted, forwards, paid = self.drafted(rule)
        paths = Paths(
            np.empty(len(recording) + 1, np.int64),
            np.empty(int(columns.length[requests].sum()), STEP),
            paid,
        )
        count = _walk(columns, requests, *drafted, forwards, paths)
        return paths._replace(steps=paths.steps[:count].copy())

    def drafted(self, rule: StaticRule) -> tuple[Shorts, Shorts, int, int]:
        """By flat position, the neural tokens that a rule drafts and the copied ones behind them;
        the forwards that run in every step, and the drafted tokens that every row pays for."""
        columns, cap = self._recording.columns, self._cap
        neural_len = min(rule.neural_len, cap)
        if neural_len not in self._behind:
            found = matched_behind(columns, neural_len, self._at, self._left)
            self._behind[neural_len] = found
        own = self._holds, columns.match, columns.available
        neural, copied = rule.lengths(cap, *own, *self._behind[neural_len])
        # In an async engine nobody knows which rows will draft, or how much. So every step runs all
        # forwards, and every row verifies the longest draft.
        forwards = neural_len if self._is_async or rule.always_drafts else 0
        paid = min(rule.longest_draft, cap) if self._is_async else 0
        return neural.astype(np.int16), copied.astype(np.int16), forwards, paid

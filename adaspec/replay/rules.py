"""Static rules at full speed: what a rule makes of a position does not depend on the load.

What is drafted at each position, and what of that is accepted, is looked up once per rule; the loop
then only adds up what each step costs in the company it runs in. A rule may hold for some loads
alone, as an operator would serve who changed it as the load changes. Nobody can run that, as vLLM
takes one setting as it starts: in an open loop it says how much of a policy's lead is of following
the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, step_s, step_shape
from adaspec.draft.matches import Ints
from adaspec.jit import compiled
from adaspec.policy.budget import Record
from adaspec.policy.static import Needs, StaticPolicy, StaticRule
from adaspec.replay.loop import (
    Doubles,
    Longs,
    Loop,
    goes_on,
    new_loop,
    note_gaps,
    replace_ended,
    step_seconds,
)
from adaspec.replay.recording import Columns, Recording, Shorts, accepted_of

DRAFT = np.dtype([(name, "i2") for name in ("neural", "drafted", "accepted", "emitted")])
"""What a rule drafts at a position: neural tokens, and all with the copied ones behind them; and
what comes of that, as far as the output goes."""
_RULE = np.dtype(
    [
        ("forwards", "i8"),  # that run in every step
        ("paid", "i8"),  # drafted tokens that every row pays for
        ("holds", "?"),  # whether requests hold the drafter
    ],
    align=True,
)
MatchedBehind = tuple[NDArray[Any], NDArray[Any]]
"""By position, the length of a match there, and how much could be copied."""


@dataclass(frozen=True, slots=True)
class ByLoad:
    """The rules of some loads; each holds up to half way, by ratio, to the next load."""

    rules: tuple[tuple[int, StaticPolicy], ...]
    """(load, rule), loads ascending."""

    @property
    def name(self) -> str:
        """The loads and their rules."""
        return ", ".join(f"{load}: {rule.name}" for load, rule in self.rules)

    @property
    def needs(self) -> Needs:
        """What its rules need together."""
        needs = [rule.needs for _, rule in self.rules]
        return Needs(
            any(each.drafter for each in needs),
            max(each.neural_len for each in needs),
            max(each.draft_len or 1 for each in needs),
        )

    def numbers(self, most: int) -> Longs:
        """By the number of requests that run, which rule holds."""
        loads = np.array([load for load, _ in self.rules], np.float64)
        running = np.maximum(np.arange(most + 1), 1)
        return np.asarray(np.abs(np.log(running[:, None] / loads)).argmin(axis=1))


class Drafted(NamedTuple):
    """A rule over a recording."""

    drafts: Record
    """By flat position."""
    rule: tuple[int, int, bool]
    """As `_RULE` has it."""


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


class RuleReplay:
    """Rules over some requests of a recording. What they look at is looked up once for all."""

    def __init__(self, recording: Recording, cap: int, is_async: bool, requests: Ints) -> None:
        self._columns, self._cap, self._is_async = recording.columns, cap, is_async
        self._at, request = recording.positions(requests)
        self._left = self._columns.offset[request] + self._columns.length[request] - self._at
        self._match, self._available = (
            each[self._at] for each in (self._columns.match, self._columns.available)
        )
        self._holds = np.ones(len(self._at), np.bool_)
        self._behind: dict[int, MatchedBehind] = {}
        """By number of neural tokens."""

    def drafted(self, rule: StaticRule) -> Drafted:
        """What the rule drafts at every position of the requests."""
        columns, cap = self._columns, self._cap
        neural_len = min(rule.neural_len, cap)
        if neural_len not in self._behind:
            found = matched_behind(columns, neural_len, self._at, self._left)
            self._behind[neural_len] = found
        own = self._holds, self._match, self._available
        neural, copied = rule.lengths(cap, *own, *self._behind[neural_len])
        drafts = np.empty(len(columns.neural), DRAFT)
        drafted = neural.astype(np.int16), copied.astype(np.int16)
        _fill(drafts, columns.neural, columns.run, self._at, self._left, *drafted)
        # In an async engine nobody knows which rows will draft, or how much. So every step runs all
        # forwards, and every row verifies the longest draft.
        forwards = neural_len if self._is_async or rule.always_drafts else 0
        paid = min(rule.longest_draft, cap) if self._is_async else 0
        return Drafted(drafts, (forwards, paid, rule.neural_len > 0))

    def run(
        self,
        some: Sequence[Drafted],
        rule_by_load: Longs,
        order: Ints,
        costs: Costs,
        comes_s: Doubles | None = None,
    ) -> Loop:
        """The loop under the rule of each step's load, at its end."""
        drafts = np.stack([each.drafts for each in some]) if len(some) > 1 else some[0].drafts[None]
        rules = np.array([each.rule for each in some], _RULE)
        asked = order, len(rule_by_load) - 1, bool(rules["holds"].any()), comes_s
        loop = new_loop(self._columns, *asked)
        _run(loop, drafts, rules, rule_by_load, costs)
        return loop


@compiled
def _fill(
    drafts: Record,
    right: Shorts,
    run: Shorts,
    at: Longs,
    left: Longs,
    neural: Shorts,
    copied: Shorts,
) -> None:
    """Fill in what comes of so many neural tokens, and copied ones behind them, at positions."""
    for each in range(at.shape[0]):
        i, draft = at[each], drafts[at[each]]
        accepted = accepted_of(right, run, i, neural[each], copied[each])
        draft.neural, draft.drafted = neural[each], neural[each] + copied[each]
        draft.accepted, draft.emitted = min(accepted, left[each]), min(accepted + 1, left[each])


@compiled
def _run(loop: Loop, drafts: Record, rules: Record, rule_by_load: Longs, costs: Costs) -> None:
    # Sums stay in locals while nobody comes or goes: this loop tunes rules, and runs most of all.
    state, rows = loop.state[0], loop.rows
    at, end = np.empty(rows.shape[0], np.int64), np.empty(rows.shape[0], np.int64)
    while goes_on(loop):
        running, time_s, context = state.running, state.time_s, 0
        for row in range(running):
            at[row], end[row] = rows[row].at, rows[row].end
            context += rows[row].at - rows[row].begin
        rule, of_rule = rules[rule_by_load[running]], drafts[rule_by_load[running]]
        paid, comes_s = running * rule.paid, np.inf
        if running < rows.shape[0] and state.following < loop.entries.shape[0]:
            comes_s = loop.entries[state.following].comes_s
        count = tokens = accepted = all_drafted = neural_steps = ended = 0
        waiting = state.prompt_tokens
        while ended == 0 and time_s < comes_s:
            drafted, forwards, emitted = 0, rule.forwards, 0
            for row in range(running):
                draft = of_rule[at[row]]
                drafted += draft.drafted
                accepted += draft.accepted
                forwards = max(forwards, draft.neural)
                emitted += draft.emitted
                at[row] += draft.emitted
                ended += at[row] == end[row]
            shape = step_shape(running, context, drafted, forwards, rule.holds, paid)
            if waiting > 0:
                time_s += step_seconds(loop, costs, shape)
                waiting = 0
            else:
                seconds = step_s(costs, shape)
                note_gaps(loop.gaps, seconds, running)
                time_s += seconds
            context += emitted
            count += 1
            tokens += emitted
            all_drafted += drafted
            neural_steps += forwards > 0
        for row in range(running):
            rows[row].at = at[row]
        loop.load_s[running] += time_s - state.time_s
        state.time_s = time_s
        state.tokens += tokens
        state.steps += count
        state.row_steps += count * running
        state.accepted += accepted
        state.drafted += all_drafted
        state.neural_steps += neural_steps
        replace_ended(loop, ended)

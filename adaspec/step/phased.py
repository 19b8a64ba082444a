"""Takes a learned policy through engine steps, all that one moment of a step asks for in one call.

The stages and look-ups are the very ones that `Executor` calls one by one; here compiled code calls
them, on the planner's memory. Between them nothing is made that only Python would read: for a few
requests that takes longer than deciding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import SYNC
from adaspec.cost.model import StepShape, batch_shape, step_s
from adaspec.draft.batch import (
    AGREE,
    AVAILABLE,
    EARLIEST,
    FACTS,
    LENGTH,
    SEEN,
    START,
    copy_rows,
    propose_rows,
    survey_rows,
)
from adaspec.draft.behind import lookup_behind_rows
from adaspec.draft.index import Matches, NgramIndex, closed
from adaspec.errors import PolicyFault
from adaspec.jit import compiled
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import planner_at
from adaspec.policy.protocol import Batch, Bools, Floats, Ints, Outcome, Policy, Proposal, Setup
from adaspec.step.cut import Cut, is_sound, shorten, trim
from adaspec.step.executor import NO_ROOM, Executor, ShownDrafts, Step
from adaspec.step.text import KnownText, Longs, clear_undrafted

_READY, _UNSOUND = 0, -1
"""What compiled phases return beside 1 + the first row whose slot is not open."""


def executor_of(policy: Policy, setup: Setup, index: NgramIndex) -> Executor:
    """The fastest executor that takes this policy through steps.

    A class derived from the learned policy may answer stages in its own way, and an async engine
    has stages of its own.
    """
    if type(policy) is LearnedPolicy and setup.shows_tokens and setup.engine == SYNC:
        return PhasedExecutor(policy, setup, index)
    return Executor(policy, setup, index)


@dataclass(slots=True)
class PhasedStep(Step):
    """A step of which the planner's memory holds what a policy is shown."""

    holders: int = 0
    """How many rows hold the drafter."""
    context: int = 0
    """The known tokens of all rows."""
    observed: int = 0
    """Drafted tokens per row that the planner has taken in."""
    copied: Ints | None = None
    """The tokens that are copied, row by row; -1 behind them."""


class PhasedExecutor(Executor):
    """Takes a learned policy through steps, one after another: its planner remembers one step."""

    policy: LearnedPolicy

    def begin(
        self,
        slots: Ints,
        prompt_tokens: Ints,
        position: Ints,
        holds_neural: Bools,
        reading: int = 0,
    ) -> Step:
        """A step of the requests in these slots of the index, as far as their text is known."""
        self.policy.planner.limits["prompt_tokens"] = reading
        facts = np.empty((FACTS, len(slots)), np.int32)
        state, holders, context = _begin(
            self.policy.address,
            self.index.bases,
            slots,
            prompt_tokens,
            position,
            holds_neural,
            facts,
        )
        _raise_for(state, slots)
        indexed, start = slots.astype(np.int64), facts[START]

        def batch() -> Batch:
            text = KnownText(self.index, indexed, start)
            matches = Matches.of_facts(facts)
            return Batch(slots, prompt_tokens, position, holds_neural, matches, text, reading)

        return PhasedStep(
            batch,
            indexed,
            prompt_tokens + position,
            holds_neural.copy(),
            start,
            facts[AVAILABLE],
            holders=holders,
            context=context,
        )

    def keep(self, step: Step, exempt: Bools | None = None) -> bool:
        """Whether requests go on holding the drafter; if not, only `exempt` rows hold it still."""
        assert isinstance(step, PhasedStep)
        kept = step.holders == 0 or stages.keeps(self.policy.address, len(step.slots))
        if not kept:
            self._take_drafter(step, exempt)
            self.policy.planner.rows.holds_neural[: len(step.slots)] = step.holds_neural
        return bool(kept)

    def plan(self, step: Step) -> int:
        """The most forwards of the drafter that the policy asks for."""
        step.planned = int(stages.plan(self.policy.address))
        return step.planned

    def forward_ran(self, step: Step) -> bool:
        """Count a forward whose tokens the source holds; whether the policy wants another."""
        assert isinstance(step, PhasedStep)
        step.forwards += 1
        if step.forwards >= step.planned:
            return False
        if not self.policy.reads_drafts:
            return True
        source = step.source
        assert isinstance(source, ShownDrafts)
        state = _observe(
            self.policy.address,
            self.index.bases,
            step.observed,
            step.forwards,
            source.tokens,
            source.confidences,
        )
        _raise_for(state, step.slots)
        step.observed = step.forwards
        return True

    def settle(self, step: Step, room: Ints | None = None, lenient: bool = False) -> Cut:
        """What is verified: the policy's proposal, cut to what can be."""
        assert isinstance(step, PhasedStep)
        source = step.source
        assert isinstance(source, ShownDrafts)
        lengths = np.empty((5, len(step.slots)), np.int32)
        step.copied = np.empty((len(step.slots), self.setup.cap), np.int32)
        state = _settle(
            self.policy.address,
            self.index.bases,
            step.observed,
            step.forwards,
            source.tokens,
            source.confidences,
            lenient,
            NO_ROOM if room is None else room,
            lengths,
            step.copied,
        )
        neural_len, ngram_len, start, proposed_neural, proposed_ngram = lengths
        if state == _UNSOUND:
            raise PolicyFault(
                f"policy '{self.policy.name}' proposes more neural tokens than were drafted "
                f"({step.forwards}): {proposed_neural.tolist()}"
            )
        _raise_for(state, step.slots)
        self._check_numbers(len(step.slots))
        ended = source.ended(neural_len)
        if ended is not None:
            ngram_len[ended] = 0
        step.proposal = Proposal(proposed_neural, proposed_ngram)
        step.cut = Cut(neural_len, ngram_len, start)
        return step.cut

    def _check_numbers(self, rows: int) -> None:
        """Refuse predictions that are no numbers: by those, nothing would be chosen ever again."""
        memory = self.policy.planner.memory
        if np.isnan(memory.predictions[:rows].sum() + memory.evidence_predictions[:rows].sum()):
            raise PolicyFault(f"policy '{self.policy.name}' predicts what is no number")

    def copied(self, step: Step) -> Ints:
        """The tokens that are copied, row by row of what was settled on; -1 behind them."""
        assert isinstance(step, PhasedStep) and step.copied is not None
        return step.copied

    def outcome(
        self,
        step: Step,
        drafted: Ints,
        neural_drafted: Ints,
        accepted: Ints,
        emitted: Ints,
        emitted_tokens: Ints,
        forwards: int,
        known: Bools | None = None,
        judged: Bools | None = None,
    ) -> Outcome:
        """What a policy learns of a step that ran so many forwards, with what it is charged."""
        rows = len(step.slots)
        seconds, step.shape = _charge(
            self.policy.address,
            drafted,
            forwards,
            np.ones(rows, np.bool_) if known is None else known,
        )
        if judged is None:
            judged = np.ones(rows, np.bool_)
        return Outcome(drafted, neural_drafted, accepted, emitted, emitted_tokens, seconds, judged)

    def learn(self, step: Step, outcome: Outcome) -> None:
        """Tell the policy the outcome of its proposal."""
        stages.learn(
            self.policy.address,
            outcome.emitted_tokens,
            outcome.drafted,
            outcome.neural_drafted,
            outcome.accepted,
            outcome.step_s,
        )


def _raise_for(state: int, slots: NDArray[np.signedinteger]) -> None:
    """Raise a `DraftError` if compiled code met a slot that is not open."""
    if state != _READY:
        raise closed(int(slots[state - 1]))


@compiled
def _begin(
    address: int,
    bases: Longs,
    slots: Ints,
    prompt_tokens: Ints,
    position: Ints,
    holds_neural: Bools,
    facts: Ints,
) -> tuple[int, int, int]:
    """Look up what the requests' text says, for the planner and in `facts`.

    Returns the state, how many rows hold the drafter, and all known tokens.
    """
    planner = planner_at(address)
    planner.limits[0].rows = slots.shape[0]
    rows = stages.rows_of(planner)
    rows.slots[:] = slots
    rows.tail[:] = -1
    rows.candidate[:] = -1
    first_closed = survey_rows(bases, slots, facts, rows.tail, rows.candidate)
    if first_closed >= 0:
        return first_closed + 1, 0, 0
    rows.length[:], rows.start[:] = facts[LENGTH], facts[START]
    rows.agree[:], rows.seen[:] = facts[AGREE], facts[SEEN]
    rows.available[:] = facts[AVAILABLE]
    holders = context = 0
    for row in range(slots.shape[0]):
        rows.prompt_tokens[row], rows.position[row] = prompt_tokens[row], position[row]
        rows.holds_neural[row] = holds_neural[row]
        holders += holds_neural[row]
        context += prompt_tokens[row] + position[row]
    return _READY, holders, context


@compiled
def _observe(
    address: int, bases: Longs, observed: int, count: int, tokens: Ints, confidences: Floats
) -> int:
    """Take in the tokens drafted at depths observed + 1 .. count, each with the match behind it.

    Returns the state.
    """
    rows = stages.rows_of(planner_at(address))
    facts = np.empty((FACTS, rows.slots.shape[0]), np.int32)
    depths, known = np.empty_like(rows.slots), np.empty((rows.slots.shape[0], 1), np.int32)
    for depth in range(observed + 1, count + 1):
        for row in range(depths.shape[0]):
            depths[row] = depth if rows.holds_neural[row] else 0
        state = _look_behind(bases, rows.slots, tokens, depths, facts)
        if state != _READY:
            return state
        known[:] = -1
        copy_rows(bases, rows.slots, facts[START], known)
        stages.revise_columns(
            address,
            depth,
            tokens,
            confidences,
            facts[LENGTH],
            facts[AGREE],
            facts[SEEN],
            facts[AVAILABLE],
            facts[START],
            known[:, 0].copy(),
        )
    return _READY


@compiled
def _look_behind(bases: Longs, slots: Ints, tokens: Ints, lengths: Ints, facts: Ints) -> int:
    """Fill `facts` with the match behind so many tokens per row, none where that is 0.

    Returns the state.
    """
    first_closed = lookup_behind_rows(bases, slots, tokens, lengths, facts)
    clear_undrafted(
        lengths,
        tokens,
        facts[LENGTH],
        facts[START],
        facts[EARLIEST],
        facts[AGREE],
        facts[SEEN],
        facts[AVAILABLE],
    )
    return first_closed + 1


@compiled
def _settle(
    address: int,
    bases: Longs,
    observed: int,
    count: int,
    tokens: Ints,
    confidences: Floats,
    lenient: bool,
    room: Ints,
    lengths: Ints,
    copied: Ints,
) -> int:
    """Choose again per row by all that is known after `count` forwards; returns the state.

    The rows of `lengths` become the neural and copied lengths as they can be verified, where
    copying starts, and the lengths as they were proposed; `copied` becomes what is copied.
    """
    planner = planner_at(address)
    rows = stages.rows_of(planner)
    neural_len, ngram_len, start = lengths[0], lengths[1], lengths[2]
    if planner.limits[0].reads_drafts > 0:
        state = _observe(address, bases, observed, count, tokens, confidences)
        if state != _READY:
            return state
    facts = np.empty((FACTS, rows.slots.shape[0]), np.int32)
    if stages.choose(address, count, neural_len, ngram_len):
        state = _look_behind(bases, rows.slots, tokens, neural_len, facts)
        if state != _READY:
            return state
        stages.splice_columns(
            address,
            neural_len,
            facts[LENGTH],
            facts[AGREE],
            facts[SEEN],
            facts[AVAILABLE],
            ngram_len,
        )
    lengths[3], lengths[4] = neural_len, ngram_len
    if lenient:
        shorten(neural_len, ngram_len, rows.holds_neural, count)
    sound, splices = is_sound(neural_len, ngram_len, rows.holds_neural, count)
    if not sound:
        return _UNSOUND
    start[:] = rows.start
    available = rows.available.copy()
    if splices:
        state = _look_behind(bases, rows.slots, tokens, neural_len, facts)
        if state != _READY:
            return state
        for row in range(neural_len.shape[0]):
            if neural_len[row] > 0:
                start[row], available[row] = facts[START, row], facts[AVAILABLE, row]
    trim(neural_len, ngram_len, available, copied.shape[1], room)
    copied[:] = -1
    propose_rows(bases, rows.slots, start, ngram_len, tokens, neural_len, copied)
    return _READY


@compiled
def _charge(address: int, drafted: Ints, forwards: int, known: Bools) -> tuple[float, StepShape]:
    """The time that the known rows' step is charged, and its shape."""
    planner = planner_at(address)
    rows = stages.rows_of(planner)
    count, context, holds = 0, 0, False
    for row in range(known.shape[0]):
        if known[row]:
            count += 1
            context += rows.prompt_tokens[row] + rows.position[row]
            holds |= rows.holds_neural[row]
    shape = batch_shape(count, context, drafted, forwards, holds)
    return step_s(planner.costs, shape), shape

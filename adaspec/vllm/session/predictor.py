"""The learned policy's choice per row on CPU tensors, by the compiled functions of the planner.

It has the interface of `kernels.predictor.FusedPredictor`, which does the same on an accelerator:

    enter(slots, in_ring)         requests take these slots
    begin(batch, ..) -> Step      each row's match, and what is expected before drafting
    revise(step, ..)              after the forwards: their tokens, and what is expected by them
    propose(step) -> Proposal     what is worth drafting at the price, and as far as its source goes
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaspec.cost.model import line
from adaspec.draft.index import NgramIndex
from adaspec.draft.match import AVAILABLE, LENGTH, MATCH_FIELDS, OCCURRENCES, START, VOTES
from adaspec.draft.ring import Ring
from adaspec.jit import compiled
from adaspec.kernels.batch import Batch, Expected, Lengths, Proposal, Step
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import Pinned
from adaspec.policy.planner.state import LONGEST_NEURAL, Planner, new_planner
from adaspec.predict.features import CANDIDATE, TAIL, SpliceMatches
from adaspec.predict.model import Model
from adaspec.trace.schema import CONFIDENCES

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]


class HostPredictor:
    """A model, for the rows of each step."""

    def __init__(self, model: Model, slots: int, cap: int, ring: Ring | None = None) -> None:
        """No draft is longer than `cap`; the `ring` is searched, too, if there is one."""
        self.reads_drafts = model.reads_evidence
        """Whether drafted tokens change what is expected."""
        self._cap = cap
        # What is decided for the batch is decided elsewhere, where costs are known.
        costs = line("none", 1.0, 0.0).constants()
        planner = new_planner(
            model, costs, slots, cap, LONGEST_NEURAL, reads_drafts=self.reads_drafts
        )
        self._pinned = Pinned(planner)
        self._index = NgramIndex(ring)
        self._places = np.full(slots, -1, np.int64)
        """By slot, where its text is in the index; -1: nowhere."""
        self._known, self._in_ring = np.zeros(slots, np.int64), np.zeros(slots, np.bool_)
        """By slot, how many of its tokens are there, and whether the ring is searched for it."""
        self._drafts = np.zeros((slots, LONGEST_NEURAL), np.int32)
        self._confidences = np.zeros((slots, LONGEST_NEURAL, len(CONFIDENCES)), np.float32)
        self.splice_matches = np.zeros((LONGEST_NEURAL, MATCH_FIELDS, slots), np.int32)
        """The matches behind the tokens of each forward."""

    def enter(self, slots: Ints, in_ring: NDArray[np.bool_]) -> None:
        """Requests take these slots, of whose texts nothing is known yet.

        `in_ring`: whether the ring is searched for each.
        """
        for slot in slots.tolist():
            self._forget(slot)
        self._in_ring[slots] = in_ring

    def _forget(self, slot: int) -> None:
        if self._places[slot] >= 0:
            self._index.close(int(self._places[slot]))
            self._places[slot] = -1

    @property
    def planner(self) -> Planner:
        """What is known of the rows, and expected of their drafts."""
        return self._pinned.value

    def expected(self, count: int) -> Expected:
        """What is known and expected of so many rows."""
        rows, state = self.planner.rows, self.planner.state
        known = (
            rows.length[:count],
            rows.candidate[:count],
            self.splice_matches[:, LENGTH, :count].T,
            self.splice_matches[:, AVAILABLE, :count].T,
            state.ngram[:count],
            state.neural[:count],
            state.splice[:count],
        )
        return Expected(*map(torch.from_numpy, known))

    def begin(self, batch: Batch, settings: Tensor) -> Step:
        """Look at the text as it is now, and fill in what is expected before drafting."""
        slots, tokens = batch.slots.numpy(), batch.tokens.numpy()
        context, sampled = batch.context_tokens.numpy()[slots], batch.sampled.numpy()
        said = self._take_in(slots, tokens, context, sampled)
        count, planner = len(slots), self.planner
        planner.run["rows"] = count
        rows = planner.rows
        match, tail, candidate = self._index.survey(self._places[slots], TAIL, CANDIDATE)
        rows.slots[:count] = slots
        rows.prompt_tokens[:count] = batch.prompt_tokens.numpy()[slots]
        rows.position[:count] = context - rows.prompt_tokens[:count]
        rows.holds_neural[:count] = batch.holds_neural.numpy()[slots]
        rows.length[:count], rows.start[:count] = match.length, match.start
        rows.votes[:count], rows.occurrences[:count] = match.votes, match.occurrences
        rows.available[:count] = match.available
        rows.tail[:count], rows.candidate[:count] = tail, candidate
        price, *factors = settings.tolist()
        planner.batch_state.step["price"], planner.state.record["factor"] = price, factors
        stages.expect(self._pinned.address)
        return Step(
            batch=batch,
            context_tokens=torch.from_numpy(context),
            decides=batch.sampled > 0,
            holds=torch.from_numpy(rows.holds_neural[:count]),
            emitted=torch.from_numpy(said),
            settings=settings,
        )

    def _take_in(self, slots: Ints, tokens: Ints, context: Ints, sampled: Ints) -> Ints:
        """Index what the texts have gained; (rows, cap + 1) the tokens that the step emitted."""
        said = _emitted(tokens, slots, context, sampled, self._cap + 1)
        # Where a step was not told of, or too long, the whole text is read.
        grows = (self._known[slots] + sampled == context) & (sampled <= self._cap + 1)
        grows &= self._places[slots] >= 0
        grown = slots[grows]
        if len(grown):
            new = said if grows.all() else said[grows]
            self._index.extend(self._places[grown], new[new >= 0], sampled[grows])
        for row in np.flatnonzero(~grows).tolist():
            slot = int(slots[row])
            self._forget(slot)
            text = tokens[slot, : context[row]]
            self._places[slot] = self._index.open(text, bool(self._in_ring[slot]))
        self._known[slots] = context
        return said

    def revise(self, step: Step, tokens: Tensor, confidences: Tensor) -> None:
        """Take in the (rows, forwards) tokens of the drafter and their confidences.

        A row that does not hold it has none. `confidences` are (forwards, rows, 3) float32 in the
        order of `trace.schema.CONFIDENCES`.
        """
        count, forwards = tokens.shape
        step.forwards = forwards
        if not forwards:
            return
        holds, drafts = step.holds.numpy(), self._drafts[:count]
        drafts[:, :forwards] = np.where(holds[:, None], tokens.numpy(), -1)
        self._confidences[:count, :forwards] = confidences.numpy()[:forwards].transpose(1, 0, 2)
        facts, copied = self._index.splice_matches(
            self._places[step.batch.slots.numpy()], drafts[:, :forwards], holds * forwards
        )
        self.splice_matches[:forwards, :, :count] = facts
        if self.reads_drafts:
            for depth in range(forwards):
                stages.revise(
                    self._pinned.address,
                    depth + 1,
                    drafts,
                    self._confidences[:count],
                    _matches(facts[depth], copied[depth]),
                )

    def propose(self, step: Step) -> Proposal:
        """Every row's best draft after the forwards that ran, as far as its source goes."""
        address, count, planner = self._pinned.address, len(step.holds), self.planner
        neural, ngram = np.zeros((2, count), np.int32)
        stages.wanted(address, step.forwards, neural, ngram)
        if step.forwards and not self.reads_drafts:
            match, unknown = _splice_match(self.splice_matches, neural), np.full_like(neural, -1)
            stages.expect_splices(address, neural, _matches(match, unknown))
        gain = planner.state.neural_gain[:count].copy()
        stages.extended(address, step.forwards, neural, ngram)
        start = _splice_match(self.splice_matches, neural)[START]
        start = np.where(neural > 0, start, planner.rows.start[:count])
        drafts, slots = self._drafts[:count], step.batch.slots.numpy()
        copied = self._index.propose(self._places[slots], start, ngram, drafts, neural)
        stages.offer(address, neural, ngram)
        tokens, survival = _drafted(drafts, neural, copied, ngram, planner.state.offered, self._cap)
        return Proposal(
            lengths=Lengths(torch.from_numpy(neural).long(), torch.from_numpy(ngram).long()),
            neural_gain=torch.from_numpy(gain),
            tokens=torch.from_numpy(tokens),
            survival=torch.from_numpy(survival),
        )


@compiled
def _emitted(tokens: Ints, slots: Longs, context: Ints, sampled: Ints, most: int) -> Ints:
    """(rows, most) the last tokens of each text, as many as were sampled; -1 behind them."""
    said = np.full((len(slots), most), -1, np.int32)
    for row in range(len(slots)):
        first = context[row] - sampled[row]
        for at in range(min(sampled[row], most)):
            said[row, at] = tokens[slots[row], first + at]
    return said


@compiled
def _splice_match(matches: Ints, neural: Ints) -> Ints:
    """(MATCH_FIELDS, rows) the matches behind so many drafted tokens; no match where that is 0."""
    match = np.zeros((matches.shape[1], len(neural)), np.int32)
    for row in range(len(neural)):
        match[:, row] = matches[max(neural[row] - 1, 0), :, row]
    return match


@compiled
def _drafted(
    drafts: Ints, neural: Ints, copied: Ints, ngram: Ints, offered: Floats, cap: int
) -> tuple[Longs, Floats]:
    """(rows, cap) the neural tokens and the copied ones behind them, and how likely they are.

    Behind all is -1, and 0.
    """
    tokens, survival = np.full((len(neural), cap), -1, np.int64), np.zeros((len(neural), cap))
    for row in range(len(neural)):
        for at in range(min(neural[row] + ngram[row], cap)):
            last = neural[row]
            tokens[row, at] = drafts[row, at] if at < last else copied[row, at - last]
            if at < offered.shape[1]:
                survival[row, at] = offered[row, at]
    return tokens, survival


def _matches(match: Ints, copied: Ints) -> SpliceMatches:
    return SpliceMatches(match[LENGTH], match[VOTES], match[OCCURRENCES], match[AVAILABLE], copied)

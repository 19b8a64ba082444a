"""The learned policy's choice per row on CPU tensors, by the compiled functions of the planner.

It has the interface of `kernels.predictor.FusedPredictor`, which does the same on an accelerator:

    begin(batch, ..) -> Step      each row's match, and what is expected before drafting
    revise(step, ..)              after each forward: its tokens, and what is expected by them
    propose(step) -> Proposal     what is worth drafting at the price, and as far as its source goes
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaspec.cost.model import line
from adaspec.draft.answers import IN_ANSWERS
from adaspec.draft.match import AGREE, AVAILABLE, FACTS, LENGTH, SEEN, START
from adaspec.draft.scan import Texts, match_rows, propose_rows
from adaspec.kernels.batch import Answers, Batch, Expected, Lengths, Proposal, Step
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import pinned_planner
from adaspec.policy.planner.memory import LONGEST_NEURAL, Planner
from adaspec.predict.features import TAIL, BehindMatches
from adaspec.predict.model import Model
from adaspec.trace.schema import CONFIDENCES

Ints = NDArray[np.int32]


class HostPredictor:
    """A model, for the rows of each step."""

    def __init__(
        self,
        model: Model,
        slots: int,
        cap: int,
        answers: Answers | None = None,
    ) -> None:
        """No draft is longer than `cap`.

        Where there are `answers` of earlier requests, they are looked up, too.
        """
        self.reads_drafts = model.reads_evidence
        """Whether drafted tokens change what is expected."""
        self._cap, self._answers = cap, answers
        # What is decided for the batch is decided elsewhere, where costs are known.
        costs = line("none", 1.0, 0.0).constants()
        self._pinned = pinned_planner(
            [model],
            costs,
            slots,
            cap,
            LONGEST_NEURAL,
            reads_drafts=self.reads_drafts,
        )
        self._drafts = np.zeros((slots, LONGEST_NEURAL), np.int32)
        self._confidences = np.zeros((slots, LONGEST_NEURAL, len(CONFIDENCES)), np.float32)
        self.behind = np.zeros((LONGEST_NEURAL, FACTS, slots), np.int32)
        """The matches behind the tokens of each forward."""

    @property
    def planner(self) -> Planner:
        """What is known of the rows, and expected of their drafts."""
        planner: Planner = self._pinned.value
        return planner

    def expected(self, count: int) -> Expected:
        """What is known and expected of so many rows."""
        rows, memory = self.planner.rows, self.planner.memory
        return Expected(
            *(
                torch.from_numpy(each)
                for each in (
                    rows.length[:count],
                    rows.candidate[:count],
                    self.behind[:, LENGTH, :count].T,
                    self.behind[:, AVAILABLE, :count].T,
                    memory.ngram[:count],
                    memory.neural[:count],
                    memory.splice[:count],
                )
            )
        )

    def begin(self, batch: Batch, price: Tensor, factors: Tensor) -> Step:
        """Look at the text as it is now, and fill in what is expected before drafting."""
        slots, tokens = batch.slots.numpy().astype(np.int64), batch.tokens.numpy()
        context, sampled = batch.context_tokens.numpy()[slots], batch.sampled.numpy()
        address, owners = 0, np.zeros(len(batch.context_tokens), np.int32)
        if self._answers is not None:
            address, owners = self._answers.words.data_ptr(), self._answers.owners.numpy()
        known = batch.context_tokens.numpy()
        self._texts = Texts(slots, tokens, known, address, owners)
        count, planner = len(slots), self.planner
        planner.limits["rows"] = count
        rows, match = planner.rows, np.zeros((FACTS, count), np.int32)
        match_rows(self._texts, self._drafts, 0, match, rows.candidate[:count])
        rows.slots[:count] = slots
        rows.prompt_tokens[:count] = batch.prompt_tokens.numpy()[slots]
        rows.position[:count] = context - rows.prompt_tokens[:count]
        rows.holds_neural[:count] = batch.holds_neural.numpy()[slots]
        rows.length[:count], rows.start[:count] = match[LENGTH], match[START]
        rows.agree[:count], rows.seen[:count] = match[AGREE], match[SEEN]
        rows.available[:count] = match[AVAILABLE]
        places = context[:, None] + np.arange(-TAIL, 0)
        last = tokens[slots[:, None], np.maximum(places, 0)]
        rows.tail[:count] = np.where(places >= 0, last, -1)
        columns = np.arange(self._cap + 1)
        places = np.minimum((context - sampled)[:, None] + columns, tokens.shape[1] - 1)
        said = np.where(columns < sampled[:, None], tokens[slots[:, None], places], -1)
        planner.ranking.step["price"] = price.item()
        planner.memory.record["factor"] = factors.numpy()
        stages.expect(self._pinned.address)
        return Step(
            batch=batch,
            context_tokens=torch.from_numpy(context),
            decides=batch.sampled > 0,
            holds=torch.from_numpy(rows.holds_neural[:count]),
            available=torch.from_numpy(match[AVAILABLE]),
            emitted=torch.from_numpy(said),
            price=price,
            factors=factors,
        )

    def revise(self, step: Step, token: Tensor, confidence: Tensor) -> None:
        """Take in the tokens of a forward, -1 where there is none, and their confidences.

        `confidence` is (rows, 3) float32 in the order of `trace.schema.CONFIDENCES`.
        """
        count, depth = len(token), step.forwards
        self._drafts[:count, depth] = token.numpy()
        self._confidences[:count, depth] = confidence.numpy()
        step.forwards += 1
        copied = np.zeros((count, 1), np.int32)
        match = np.zeros((FACTS, count), np.int32)
        match_rows(self._texts, self._drafts, step.forwards, match, copied)
        absent = ~step.holds.numpy() | (self._drafts[:count, depth] < 0)
        match[:, absent], match[START, absent] = 0, -1
        self.behind[depth, :, :count] = match
        if self.reads_drafts:
            copied[absent] = -1
            stages.revise(
                self._pinned.address,
                step.forwards,
                self._drafts[:count],
                self._confidences[:count],
                _matches(match, copied.ravel()),
            )

    def propose(self, step: Step) -> Proposal:
        """Every row's best draft after the forwards that ran, as far as its source goes."""
        address, count, planner = self._pinned.address, len(step.holds), self.planner
        neural, ngram = np.zeros((2, count), np.int32)
        stages.wanted(address, step.forwards, neural, ngram)
        if step.forwards and not self.reads_drafts:
            match, unknown = self._behind(neural), np.full_like(neural, -1)
            stages.wanted_splice(address, neural, _matches(match, unknown), ngram)
        wanted = _lengths(neural, ngram)
        stages.extended(address, step.forwards, neural, ngram)
        start = np.where(neural > 0, self._behind(neural)[START], planner.rows.start[:count])
        tokens = np.zeros((count, self._cap), np.int32)
        propose_rows(self._texts, self._drafts, step.forwards, start, neural, ngram, tokens)
        stages.offer(address, neural, ngram)
        columns = np.arange(min(self._cap, planner.memory.offered.shape[1]))
        survival = np.zeros(tokens.shape)
        survival[:, columns] = np.where(
            columns < (neural + ngram)[:, None], planner.memory.offered[:count, columns], 0.0
        )
        return Proposal(
            wanted=wanted,
            lengths=_lengths(neural, ngram),
            tokens=torch.from_numpy(tokens).long(),
            survival=torch.from_numpy(survival),
            from_answers=torch.from_numpy((start >= IN_ANSWERS) & (ngram > 0)),
        )

    def _behind(self, neural_len: Ints) -> Ints:
        """(FACTS, rows) the matches behind so many drafted tokens; where that is 0, nothing."""
        rows = np.arange(len(neural_len))
        return self.behind[np.maximum(neural_len - 1, 0), :, rows].T.copy()


def _matches(match: Ints, copied: Ints) -> BehindMatches:
    return BehindMatches(match[LENGTH], match[AGREE], match[SEEN], match[AVAILABLE], copied)


def _lengths(neural: Ints, ngram: Ints) -> Lengths:
    return Lengths(torch.from_numpy(neural).long(), torch.from_numpy(ngram).long())

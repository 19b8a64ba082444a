"""What is drafted in a step, decided on the device from what the target has just verified.

On an accelerator nothing here waits for it, and no shape depends on what it computes.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaspec.draft.index import NgramIndex
from adaspec.draft.matches import MATCH_FIELDS, Matches, Ring
from adaspec.jit import compiled
from adaspec.kernels.batch import Batch, Choice, Lengths, Matched, Step
from adaspec.policy.budget import SETTINGS
from adaspec.policy.choice import ROW, draft_rows, shapes_of
from adaspec.policy.protocol import Ints, LearnedPolicy, Setup
from adaspec.policy.static import StaticRule
from adaspec.predict.features import CANDIDATE, TAIL, Known, Shown
from adaspec.predict.model import (
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    Model,
    predict_before,
    predict_behind,
)
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.session.report import Chosen, Drafts, Layout, pack_on_device, pack_on_host
from adaspec.vllm.session.ring import ServedRing

_ACCELERATORS = ("cuda", "xpu")
KERNELS_ON_CPU = False
"""Whether kernels are used on a CPU, too: in Triton's interpreter, where they take far longer."""


def has_kernels(device: torch.device) -> bool:
    """Whether kernels work on tensors of this device; elsewhere the functions of the host do."""
    return device.type in _ACCELERATORS or KERNELS_ON_CPU


class Drafting:
    """The policy's choices per row, and what it remembers of the request in each slot."""

    def __init__(
        self,
        policy: LearnedPolicy,
        setup: Setup,
        vocabulary: int,
        device: torch.device,
        ring: ServedRing | None = None,
        rule: StaticRule | None = None,
        baseline: StaticRule | None = None,
    ) -> None:
        """A `rule` decides in the policy's place, and `baseline` in steps of that arm."""
        slots, cap = setup.slots, setup.cap
        self.predictor: Any
        if has_kernels(device):
            from adaspec.kernels.predictor import FusedPredictor

            there = None if ring is None else ring.on_device(slots, device)
            self.predictor = FusedPredictor(policy.model, slots, cap, device, ring=there)
            self._pack = pack_on_device
        else:
            searched = None if ring is None else ring.ring
            self.predictor = HostPredictor(policy.model, slots, cap, searched)
            self._pack = pack_on_host
        self._rule, self._baseline = rule, baseline
        self._neural_cap, self._cap = setup.neural_cap, setup.cap
        self.layout = Layout(cap, setup.neural_cap)
        self._vocabulary = vocabulary

    def warm_up(self, batch: Batch) -> None:
        """Compile what steps of batches with tensors like these run, in steps without rows."""
        none = batch.slots[:0]
        empty = batch._replace(slots=none, sampled=batch.sampled[:0], rejected=batch.rejected[:0])
        settings = torch.ones(SETTINGS, dtype=torch.float64, device=none.device)
        for forwards in (0, 1):
            drafted = none.new_zeros((0, forwards), dtype=torch.int64)
            confidences = settings.new_zeros((forwards, 0, len(CONFIDENCES)), dtype=torch.float32)
            limits = None, none.new_zeros(0, dtype=torch.int32)
            arms = (False,) if self._baseline is None else (False, True)
            for allowed, is_baseline in itertools.product(limits, arms):
                self.enter(np.zeros(0, np.int32), np.zeros(0, np.bool_))
                step = self.begin(empty, settings)
                self.revise(step, drafted, confidences)
                self.finish(step, drafted, confidences, allowed, is_baseline)

    def begin(self, batch: Batch, settings: Tensor) -> Step:
        """Take in what the target accepted, and what is expected of drafts that follow.

        `settings` are what the host decided, as in `Step`.
        """
        step: Step = self.predictor.begin(batch, settings)
        return step

    def enter(self, slots: Ints, in_ring: NDArray[np.bool_]) -> None:
        """Requests take these slots; `in_ring`: whether the ring is searched for each."""
        self.predictor.enter(slots, in_ring)

    def revise(self, step: Step, tokens: Tensor, confidences: Tensor) -> None:
        """Take in (rows, forwards) drafted tokens and their (forwards, rows, 3) confidences."""
        self.predictor.revise(step, tokens, confidences)

    def finish(
        self,
        step: Step,
        drafted: Tensor,
        confidences: Tensor,
        allowed: Tensor | None,
        is_baseline: bool = False,
    ) -> Drafts:
        """Choose every row's source, and draft by it as far as it goes.

        `allowed` are (rows,) int32: the most tokens of a row's draft.
        """
        rule = self._baseline if is_baseline else self._rule
        proposal = self.predictor.propose(step, self._lengths(step, rule))
        chosen = Chosen(
            tokens=proposal.tokens,
            survival=proposal.survival,
            neural=proposal.lengths.neural,
            decides=step.decides,
            context=step.context_tokens,
            sampled=step.batch.sampled,
            rejected=step.batch.rejected,
            emitted=step.emitted,
            gain=proposal.gain,
            drafted=drafted,
            confidences=confidences,
        )
        return self._pack(self.layout, chosen, allowed, self._vocabulary)

    def _lengths(self, step: Step, rule: StaticRule | None) -> Lengths | None:
        """What a rule drafts; None where a policy chooses."""
        if rule is None:
            return None
        most = min(rule.neural_len, self._neural_cap, step.forwards)
        rule = dataclasses.replace(rule, neural_len=most)
        matched = self.predictor.matches(step, min(most, self._cap))
        neural, copied = rule.lengths(self._cap, step.holds, *matched)
        return Lengths(neural.long(), copied.long())


def read_logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Read (tokens, evidence) from logits.

    Tokens are the argmax of each row. The evidence of a row is its token and
    `trace.schema.CONFIDENCES`: logprob = log p1, margin = log p1 - log p2, entropy = -sum p log p.
    It is one tensor so that one copy brings it to the host, and a float32 holds any token id below
    2**24.
    """
    tokens = logits.argmax(dim=-1)
    logp = torch.log_softmax(logits.float(), dim=-1)
    top = logp.topk(2, dim=-1).values
    # Tokens that a reduced draft vocabulary lacks have logits of -inf; for them, p log p is 0.
    entropy = -(logp.exp() * logp.clamp(min=-1e4)).sum(dim=-1)
    columns = [tokens.float(), top[:, 0], top[:, 0] - top[:, 1], entropy]
    return tokens, torch.stack(columns, dim=1)


Longs = NDArray[np.int64]
Floats = NDArray[np.float64]


class HostPredictor:
    """A model, for the rows of each step."""

    def __init__(self, model: Model, slots: int, cap: int, ring: Ring | None = None) -> None:
        """No draft is longer than `cap`; the `ring` is searched, too, if there is one."""
        self.reads_drafts = model.reads_evidence
        """Whether drafted tokens change what is expected."""
        self._model, self._shapes, self._cap = model, shapes_of(model), cap
        self._index = NgramIndex(slots, ring)
        self._known, self._in_ring = np.full(slots, -1, np.int64), np.zeros(slots, np.bool_)
        """By slot, how many of its tokens are in the index, -1 where its text is not; and whether
        the ring is searched for it."""

    def enter(self, slots: Ints, in_ring: NDArray[np.bool_]) -> None:
        """Requests take these slots, of whose texts nothing is known yet.

        `in_ring`: whether the ring is searched for each.
        """
        self._known[slots], self._in_ring[slots] = -1, in_ring

    def begin(self, batch: Batch, settings: Tensor) -> Step:
        """Look at the text as it is now, and fill in what is expected before drafting."""
        slots, tokens = batch.slots.numpy(), batch.tokens.numpy()
        context, sampled = batch.context_tokens.numpy()[slots], batch.sampled.numpy()
        tail, emitted = _last_tokens(tokens, slots, context, sampled, self._cap + 1)
        self._take_in(slots, tokens, context, sampled, emitted)
        none = np.zeros((len(slots), 0), np.int32)
        facts, self._copied = self._index.find(slots, none, max(self._cap, CANDIDATE))
        prompt = batch.prompt_tokens.numpy()[slots]
        self.rows = Known(
            prompt, context - prompt, Matches(*facts[:, :, 0]), tail, self._copied[:, 0, :CANDIDATE]
        )
        """What is known of the step's rows, what is predicted of them, and what drafts show."""
        self.predictions, _ = predict_before(self._model, self.rows)
        confidences = np.zeros((len(slots), 0, len(CONFIDENCES)), np.float32)
        self.shown = Shown(none, confidences, Matches(*[none] * MATCH_FIELDS), none)
        return Step(
            batch=batch,
            context_tokens=torch.from_numpy(context),
            decides=batch.sampled > 0,
            holds=torch.from_numpy(batch.holds_neural.numpy()[slots]),
            emitted=torch.from_numpy(emitted),
            settings=settings,
        )

    def _take_in(
        self, slots: Longs, tokens: Ints, context: Ints, sampled: Ints, emitted: Ints
    ) -> None:
        """Index what the texts have gained: of those that the index knows, what was emitted."""
        # Where a step was not told of, or too long, the whole text is read.
        grows = (self._known[slots] + sampled == context) & (sampled <= emitted.shape[1])
        grows &= self._known[slots] >= 0
        if grows.any():
            new = emitted if grows.all() else emitted[grows]
            self._index.extend(slots[grows], new[new >= 0], sampled[grows])
        room = tokens.shape[1] + LONGEST_NEURAL
        for slot, known in zip(slots[~grows].tolist(), context[~grows].tolist(), strict=True):
            self._index.open(slot, tokens[slot, :known], room, bool(self._in_ring[slot]))
        self._known[slots] = context

    def revise(self, step: Step, tokens: Tensor, confidences: Tensor) -> None:
        """Take in the (rows, forwards) tokens of the drafter and their confidences.

        A row that does not hold it has none. `confidences` are (forwards, rows, 3) float32 in the
        order of `trace.schema.CONFIDENCES`.
        """
        step.forwards = forwards = tokens.shape[1]
        if not forwards:
            return
        holds, slots = step.holds.numpy(), step.batch.slots.numpy()
        drafts = np.where(holds[:, None], tokens.numpy(), -1).astype(np.int32)
        facts, self._copied = self._index.find(slots, drafts, self._cap)
        shown = confidences.numpy()[:forwards].transpose(1, 0, 2)
        self.shown = Shown(drafts, shown, Matches(*facts[:, :, 1:]), self._copied[:, 1:, 0])
        reads = self.reads_drafts
        predict_behind(self._model, self.predictions, self.rows, self.shown, reads)

    def matches(self, step: Step, neural_len: int) -> Matched:
        """How long the matches of rows are and how much could be copied; and behind drafts."""
        own, behind = self.rows.match, self.shown.match
        found = own.length, own.available, np.zeros_like(own.length), np.zeros_like(own.length)
        if 0 < neural_len <= step.forwards:
            last = neural_len - 1
            found = *found[:2], behind.length[:, last], behind.available[:, last]
        return Matched(*map(torch.from_numpy, found))

    def propose(self, step: Step, lengths: Lengths | None = None) -> Choice:
        """Every row's best draft after the forwards that ran, as far as its source goes.

        Where `lengths` are given, they are drafted, and certain.
        """
        count, cap = len(step.holds), self._cap
        rows, survival = np.zeros(count, ROW), np.zeros((count, LONGEST_NGRAM))
        rows["prediction"], rows["available"] = np.arange(count), self.rows.match.available
        rows["holds_neural"] = step.holds.numpy()
        if lengths is None:
            decided = self._shapes, step.settings.numpy(), step.forwards, cap
            draft_rows(rows, self.predictions, *decided, survival, self.reads_drafts)
        else:
            rows["neural"], rows["copied"] = (each.numpy() for each in lengths)
            longest = rows["neural"] + rows["copied"]
            survival[:] = np.arange(LONGEST_NGRAM) < longest[:, None]
        neural, copied = rows["neural"].copy(), rows["copied"].copy()
        said = _joined(self.shown.tokens, neural, self._copied, copied, cap)
        return Choice(
            lengths=Lengths(torch.from_numpy(neural), torch.from_numpy(copied)),
            gain=torch.from_numpy(rows["gain"].copy()),
            tokens=torch.from_numpy(said),
            survival=torch.from_numpy(survival[:, :cap].copy()),
        )


@compiled
def _last_tokens(
    tokens: Ints, slots: Longs, context: Ints, sampled: Ints, most: int
) -> tuple[Ints, Ints]:
    """(rows, TAIL) the last tokens of each text, and (rows, most) those that were just sampled.

    Where there are fewer, -1 fills up: before the last tokens, and behind those sampled.
    """
    tail, emitted = (
        np.full((len(slots), TAIL), -1, np.int32),
        np.full((len(slots), most), -1, np.int32),
    )
    for row in range(len(slots)):
        text, first = tokens[slots[row], : context[row]], context[row] - sampled[row]
        for at in range(min(len(text), TAIL)):
            tail[row, TAIL - 1 - at] = text[len(text) - 1 - at]
        for at in range(min(sampled[row], most)):
            emitted[row, at] = text[first + at]
    return tail, emitted


@compiled
def _joined(drafts: Ints, neural: Longs, copies: Ints, copied: Longs, cap: int) -> Longs:
    """(rows, cap) the neural tokens, and behind them the copied ones; -1 behind all.

    `copies` are (rows, 1 + drafted tokens, tokens) what could be copied behind so many.
    """
    tokens = np.full((len(neural), cap), -1, np.int64)
    for row in range(len(neural)):
        length = neural[row]
        tokens[row, :length] = drafts[row, :length]
        end = min(length + copied[row], cap)
        tokens[row, length:end] = copies[row, length, : end - length]
    return tokens

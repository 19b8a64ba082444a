"""What is drafted in a step, decided on the device from what the target has just verified.

Nothing here waits for the device, and no shape depends on what it computes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaspec.device.lengths import Lengths, choose_at, ngram_value
from adaspec.device.lookup import tokens_at
from adaspec.device.model import DeviceModel
from adaspec.device.predictor import Batch, Predictor, Step
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import LONGEST_NGRAM
from adaspec.vllm.v2.report import Layout


class Drafts(NamedTuple):
    """The drafts of a batch, in its order."""

    tokens: Tensor
    """(rows, cap) int64: each row's draft, as far as its source goes; 0 behind it."""
    survival: Tensor
    """(rows, cap) P(each of them and all before it are accepted), 0 behind the draft."""
    report: Tensor
    """What the host is told of the step (see `report`)."""


class Drafting:
    """The policy's choices per row, and what it remembers of the request in each slot."""

    def __init__(
        self,
        policy: LearnedPolicy,
        slots: int,
        cap: int,
        neural_cap: int,
        vocabulary: int,
        device: torch.device,
    ) -> None:
        self.predictor = Predictor(DeviceModel(policy.model, device), policy.late_knobs, slots, cap)
        self.layout = Layout(cap, neural_cap)
        self._cap, self._vocabulary, self._device = cap, vocabulary, device
        self._free = torch.zeros((), dtype=torch.float64, device=device)

    def begin(self, batch: Batch, settings: Tensor) -> Step:
        """Take in what the target accepted, and what is expected of drafts that follow.

        `settings` are what the host decided: the price of a token and the sources' factors.
        """
        self._batch = batch
        step = self.predictor.begin(batch)
        self.predictor.expect(step, settings[0], settings[1:])
        self._ngram_value = ngram_value(
            step.expected, step.rows.match.available, step.price, self._cap
        )
        return step

    def revise(self, step: Step, tokens: Tensor, confidences: Tensor) -> None:
        """Take in (rows, forwards) drafted tokens and their (forwards, rows, 3) confidences."""
        for depth in range(tokens.shape[1]):
            drafted = tokens[:, depth].where(step.rows.holds, -1)
            self.predictor.revise(step, drafted, confidences[depth])

    def finish(
        self, step: Step, drafted: Tensor, confidences: Tensor, exempt: Tensor | None
    ) -> Drafts:
        """Choose every row's source, and draft by it as far as it goes.

        How much of that is verified is settled when the step's budget is known. Rows that are
        `exempt` are drafted nothing.
        """
        chosen = self.predictor.choose(step)
        longest = self._extended(step, chosen)
        proposal = self.predictor.propose(step, longest)
        sound = (proposal.tokens >= 0) & (proposal.tokens < self._vocabulary)
        verifiable = sound.long().cumprod(1).bool() & step.decides[:, None]
        if exempt is not None:
            verifiable &= ~exempt[:, None]
        survival = proposal.survival.where(verifiable, 0.0)
        tokens = proposal.tokens.where(sound, 0)
        length = verifiable.sum(1)
        report = self.layout.packed(
            context=step.context_tokens,
            sampled=self._batch.sampled,
            rejected=self._batch.rejected,
            wanted=(chosen.neural + chosen.ngram).minimum(length),
            neural=proposal.neural_len.minimum(length),
            length=length,
            ngram_value=self._ngram_value,
            available=step.rows.match.available,
            emitted=self._emitted(step),
            tokens=tokens,
            survival=survival,
            drafted=drafted,
            confidences=confidences,
        )
        return Drafts(tokens, survival, report)

    def _extended(self, step: Step, chosen: Lengths) -> Lengths:
        """The chosen sources, as long as they can draft; another one where nothing was chosen."""
        expected, match = chosen.expected, step.rows.match
        free = choose_at(
            expected,
            match.available,
            self._free,
            step.forwards,
            self._cap,
            self.predictor.reads_drafts,
        )
        at_depth = chosen.neural[:, None, None].expand(-1, -1, expected.splice.shape[2])
        splice = expected.splice.gather(1, at_depth)[:, 0, 1:]
        spliced = (splice > 0).sum(1).minimum(self._cap - chosen.neural)
        copied = (expected.ngram[:, 1:] > 0).sum(1).minimum(match.available)
        copied = copied.clamp(max=min(self._cap, LONGEST_NGRAM))
        drafts, copies = chosen.neural > 0, chosen.ngram > 0
        return Lengths(
            neural=chosen.neural.where(drafts | copies, free.neural),
            ngram=spliced.where(drafts, copied.where(copies, free.ngram)),
            expected=expected,
        )

    def _emitted(self, step: Step) -> Tensor:
        """(rows, cap + 1) the tokens that the step emitted."""
        sampled = self._batch.sampled.long()
        columns = torch.arange(self._cap + 1, device=self._device)
        places = (step.context_tokens - sampled)[:, None] + columns
        return tokens_at(step.text, places).where(columns < sampled[:, None], -1)

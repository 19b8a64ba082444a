"""What is drafted in a step, decided on the device from what the target has just verified.

Nothing here waits for the device, and no shape depends on what it computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from adaspec.device.model import DeviceModel
from adaspec.device.predictor import Batch, Predictor
from adaspec.policy.learned import LearnedPolicy
from adaspec.vllm.v2.report import Layout

if TYPE_CHECKING:
    from adaspec.device.kernels.predictor import FusedPredictor

_ACCELERATORS = ("cuda", "xpu")
KERNELS_ON_CPU = False
"""Whether kernels are used on a CPU, too: in Triton's interpreter, where they take far longer."""
Step = Any
"""A step of either predictor; see `device.predictor.Step`."""


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
        self.predictor: Any = _predictor(policy, slots, cap, device)
        self.layout = Layout(cap, neural_cap)
        self._vocabulary = vocabulary

    def warm_up(self, batch: Batch) -> None:
        """Compile what steps of batches with tensors like these launch."""
        if hasattr(self.predictor, "warm_up"):
            self.predictor.warm_up(batch)

    def begin(self, batch: Batch, settings: Tensor) -> Step:
        """Take in what the target accepted, and what is expected of drafts that follow.

        `settings` are what the host decided: the price of a token and the sources' factors.
        """
        self._batch = batch
        step = self.predictor.begin(batch)
        self.predictor.expect(step, settings[0], settings[1:])
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
        # Kernels write what they choose where they chose before.
        wanted = chosen.neural + chosen.ngram
        proposal = self.predictor.propose(step, self.predictor.extended(step, chosen))
        sound = (proposal.tokens >= 0) & (proposal.tokens < self._vocabulary)
        verifiable = sound.long().cumprod(1).bool() & step.decides[:, None]
        if exempt is not None:
            verifiable &= ~exempt[:, None]
        survival = proposal.survival.where(verifiable, 0.0)
        # What a budget cannot fill it verifies all the same: nothing that a row was not to draft.
        tokens = proposal.tokens.where(verifiable, 0)
        length = verifiable.sum(1)
        report = self.layout.packed(
            context=step.context_tokens,
            sampled=self._batch.sampled,
            rejected=self._batch.rejected,
            wanted=wanted.minimum(length),
            neural=proposal.neural_len.minimum(length),
            length=length,
            ngram_value=step.ngram_value,
            available=step.rows.match.available,
            emitted=self.predictor.emitted(step),
            tokens=tokens,
            survival=survival,
            drafted=drafted,
            confidences=confidences,
        )
        return Drafts(tokens, survival, report)


def _predictor(
    policy: LearnedPolicy, slots: int, cap: int, device: torch.device
) -> Predictor | FusedPredictor:
    """The policy's predictor: a few kernels on an accelerator, torch alone on a CPU."""
    if device.type not in _ACCELERATORS and not KERNELS_ON_CPU:
        model = DeviceModel(policy.model, device)
        return Predictor(model, policy.late_knobs, slots, cap)
    from adaspec.device.kernels.predictor import FusedPredictor

    return FusedPredictor(policy.model, policy.late_knobs, slots, cap, device)

"""What is drafted in a step, decided on the device from what the target has just verified.

Nothing here waits for the device, and no shape depends on what it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adaspec.device.answers import Answers
from adaspec.device.model import DeviceModel
from adaspec.device.predictor import Batch, Predictor
from adaspec.policy.learned import LearnedPolicy
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.v2 import packing
from adaspec.vllm.v2.packing import Drafts, Made
from adaspec.vllm.v2.report import Layout

_ACCELERATORS = ("cuda", "xpu")
KERNELS_ON_CPU = False
"""Whether kernels are used on a CPU, too: in Triton's interpreter, where they take far longer."""
Step = Any
"""A step of either predictor; see `device.predictor.Step`."""
Pack = Callable[[Layout, Made, Tensor | None, int], Drafts]


def has_kernels(device: torch.device) -> bool:
    """Whether kernels do what torch's operations say, on tensors of this device."""
    return device.type in _ACCELERATORS or KERNELS_ON_CPU


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
        answers: Answers | None = None,
    ) -> None:
        self.predictor, self._pack = _on(device, policy, slots, cap, answers)
        self.layout = Layout(cap, neural_cap)
        self._vocabulary = vocabulary

    def warm_up(self, batch: Batch) -> None:
        """Compile what steps of batches with tensors like these launch, in steps without rows."""
        if not hasattr(self.predictor, "warm_up"):
            return
        self.predictor.warm_up(batch)
        none = batch.slots[:0]
        empty = batch._replace(slots=none, sampled=batch.sampled[:0], rejected=batch.rejected[:0])
        settings = torch.ones(4, dtype=torch.float64, device=none.device)
        drafted = none.new_zeros((0, 0), dtype=torch.int64)
        confidences = none.new_zeros((0, 0, len(CONFIDENCES)), dtype=torch.float32)
        for limits in (None, none.new_zeros((0, 2), dtype=torch.int32)):
            self.finish(self.begin(empty, settings), drafted, confidences, limits)

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
        self, step: Step, drafted: Tensor, confidences: Tensor, limits: Tensor | None
    ) -> Drafts:
        """Choose every row's source, and draft by it as far as it goes.

        `limits` are (rows, 2) int32: the most tokens of a row's draft, and whether it may copy.
        """
        chosen = self.predictor.choose(step)
        proposal = self.predictor.propose(step, self.predictor.extended(step, chosen))
        made = Made(
            tokens=proposal.tokens,
            survival=proposal.survival,
            neural=proposal.neural_len,
            worth_neural=chosen.neural,
            worth_ngram=chosen.ngram,
            decides=step.decides,
            context=step.context_tokens,
            sampled=self._batch.sampled,
            rejected=self._batch.rejected,
            available=step.rows.match.available,
            emitted=self.predictor.emitted(step),
            remembered=proposal.from_answers,
            drafted=drafted,
            confidences=confidences,
        )
        return self._pack(self.layout, made, limits, self._vocabulary)


def _on(
    device: torch.device, policy: LearnedPolicy, slots: int, cap: int, answers: Answers | None
) -> tuple[Any, Pack]:
    """The policy's predictor, and what packs its drafts: kernels on an accelerator, torch else."""
    if not has_kernels(device):
        model = DeviceModel(policy.model, device)
        return Predictor(model, policy.knobs, cap, answers), packing.pack
    from adaspec.device.kernels.predictor import FusedPredictor

    predictor = FusedPredictor(policy.model, policy.knobs, slots, cap, device, answers=answers)
    return predictor, packing.pack_at_once

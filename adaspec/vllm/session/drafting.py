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

from adaspec.kernels.batch import Batch, Lengths, Step
from adaspec.policy.choice import SETTINGS
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Ints, Setup
from adaspec.policy.static import StaticRule
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.session.predictor import HostPredictor
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
    entropy = torch.special.entr(logp.exp()).sum(dim=-1)
    columns = [tokens.float(), top[:, 0], top[:, 0] - top[:, 1], entropy]
    return tokens, torch.stack(columns, dim=1)

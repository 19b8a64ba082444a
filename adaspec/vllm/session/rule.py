"""Static rules, served by the choice that serves policies.

What a rule drafts is expected for sure, and nothing else at all; so each row takes just that. An
engine with async scheduling does not know in time how long each row's draft is: all are scheduled
as long as the rule's longest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaspec.kernels.batch import Batch, Expected, Proposal, Step
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Ints, Setup
from adaspec.policy.static import StaticRule
from adaspec.vllm.events import DraftedStep
from adaspec.vllm.session.host import Host


class RuleCurves:
    """Writes what a rule drafts into a predictor's curves, as certain, and so has it chosen."""

    def __init__(self, predictor: Any, rule: StaticRule, neural_cap: int) -> None:
        self._predictor, self._rule = predictor, rule
        self._neural_len = min(rule.neural_len, neural_cap)

    def begin(self, batch: Batch, price: Tensor, factors: Tensor) -> Step:
        """Look at the text as it is now, and expect what is drafted if it is copied or not."""
        step: Step = self._predictor.begin(batch, price, factors)
        rule, expected = self._rule, self._predictor.expected(len(step.holds))
        self._ngram, self._neural, self._splice = map(torch.zeros_like, expected[-3:])
        copies = expected.match_length >= rule.min_match
        copies &= rule.ngram_len > 0
        _certain(self._ngram, copies, rule.ngram_len)
        _certain(self._neural, step.holds & ~copies, self._neural_len)
        self._write(expected)
        return step

    def enter(self, slots: Ints, in_ring: NDArray[np.bool_]) -> None:
        """Requests take these slots; `in_ring`: whether the ring is searched for each."""
        self._predictor.enter(slots, in_ring)

    def revise(self, step: Step, tokens: Tensor, confidences: Tensor) -> None:
        """Take in what the drafter drafted: which rows are to be spliced."""
        self._predictor.revise(step, tokens, confidences)
        expected = self._predictor.expected(len(step.holds))
        last = self._neural_len
        if 0 < last <= tokens.shape[1]:
            rule, splice = self._rule, self._splice[:, last]
            spliced = self._neural[:, last] > 0
            spliced &= expected.splice_match_length[:, last - 1] >= rule.splice_min_match
            _certain(splice, spliced, rule.splice_len)
            column = torch.arange(splice.shape[1], device=tokens.device)
            beyond = column > expected.splice_match_available[:, last - 1, None]
            splice.masked_fill_(beyond, 0.0)
        self._write(expected)

    def _write(self, expected: Expected) -> None:
        """Expect this, whatever the predictor expects."""
        expected.ngram.copy_(self._ngram)
        expected.neural.copy_(self._neural)
        expected.splice.copy_(self._splice)

    def propose(self, step: Step) -> Proposal:
        """What every row drafts."""
        proposal: Proposal = self._predictor.propose(step)
        return proposal


def _certain(curve: Tensor, rows: Tensor, length: int) -> None:
    """Let so many tokens be certain in these rows, and all others impossible."""
    curve.zero_()
    curve[:, : length + 1] = rows[:, None].to(curve.dtype)


class RuleHost(Host):
    """A rule's decisions on a whole batch, which are the same in every step."""

    def __init__(self, policy: LearnedPolicy, setup: Setup, rule: StaticRule) -> None:
        """`policy` has the memory that steps are counted in."""
        super().__init__(policy, setup)
        self._forwards = min(rule.neural_len, setup.neural_cap, setup.cap)
        self._longest = min(rule.longest_draft, setup.cap)

    @property
    def most_forwards(self) -> int:
        """More forwards than these are never decided."""
        return self._forwards

    def holds_drafter(self, running: int) -> bool:
        """Whether requests hold the neural drafter where so many run."""
        return self._forwards > 0

    def decide(self, step: DraftedStep, context: int) -> DraftedStep:
        """Say of a step what is decided before the device has chosen."""
        step.forwards = self._forwards if step.holds_neural.any() else 0
        return step

    def budget(self, running: int, reading: int = 0) -> int:
        """How many drafted tokens a step of so many rows verifies that reads so much of prompts."""
        return running * self._longest

    def budget_of_drafts(self, step: DraftedStep, reading: int) -> int:
        """How many of the tokens that a step has drafted are verified: all."""
        return int(step.drafts.length.sum())

    def length(self) -> int:
        """How long drafts are if all are of one length."""
        return self._longest

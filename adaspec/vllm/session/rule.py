"""Static rules, served by the choice that serves policies.

What a rule drafts is expected for sure, and nothing else at all; so each row takes just that. An
engine with async scheduling does not know in time how long each row's draft is: all are scheduled
as long as the rule's longest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaspec.kernels.batch import Expected, Step
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Setup
from adaspec.policy.static import StaticRule
from adaspec.vllm.events import DraftedStep
from adaspec.vllm.session.host import Host


class RuleCurves:
    """Writes what a rule drafts into a predictor's curves, as certain, and so has it chosen."""

    def __init__(self, rule: StaticRule, neural_cap: int) -> None:
        self._rule, self._neural_len = rule, min(rule.neural_len, neural_cap)

    def begin(self, step: Step, expected: Expected) -> None:
        """Before the drafter runs: expect what is drafted if it is copied or not."""
        rule = self._rule
        self._ngram, self._neural, self._splice = map(torch.zeros_like, expected[-3:])
        copies = expected.match_length >= rule.min_match
        copies &= rule.ngram_len > 0
        _certain(self._ngram, copies, rule.ngram_len)
        _certain(self._neural, step.holds & ~copies, self._neural_len)
        self._write(expected)

    def revise(self, step: Step, expected: Expected) -> None:
        """After it ran: expect which rows are spliced."""
        last = self._neural_len
        if 0 < last <= step.forwards:
            rule, splice = self._rule, self._splice[:, last]
            spliced = self._neural[:, last] > 0
            spliced &= expected.splice_match_length[:, last - 1] >= rule.splice_min_match
            _certain(splice, spliced, rule.splice_len)
            column = torch.arange(splice.shape[1], device=splice.device)
            beyond = column > expected.splice_match_available[:, last - 1, None]
            splice.masked_fill_(beyond, 0.0)
        self._write(expected)

    def _write(self, expected: Expected) -> None:
        """Expect this, whatever the predictor expects."""
        expected.ngram.copy_(self._ngram)
        expected.neural.copy_(self._neural)
        expected.splice.copy_(self._splice)


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

    def budget_of_drafts(self, step: DraftedStep) -> int:
        """How many of the tokens that a step has drafted are verified: all."""
        return int(step.drafts.length.sum())

    def length(self) -> int:
        """How long drafts are if all are of one length."""
        return self._longest

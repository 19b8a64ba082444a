"""Static rules, served where policies are.

An engine with async scheduling does not know in time how long each row's draft is: all are
scheduled as long as the rule's longest.
"""

from __future__ import annotations

from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Setup
from adaspec.policy.static import StaticRule
from adaspec.vllm.events import DraftedStep
from adaspec.vllm.session.decider import BatchDecider


class RuleDecider(BatchDecider):
    """A rule's decisions on a whole batch, which are the same in every step."""

    def __init__(self, policy: LearnedPolicy, setup: Setup, rule: StaticRule) -> None:
        """`policy` has the memory that steps are counted in."""
        super().__init__(policy, setup)
        self._forwards = min(rule.neural_len, setup.neural_cap, setup.cap)
        self._longest = min(rule.longest_draft, setup.cap)

    @property
    def most_forwards(self) -> int:
        """The drafter is never decided to run oftener in a step."""
        return self._setup.passes(self._forwards)

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

    def take_likeliest(self, step: DraftedStep) -> None:
        """Say how much of what a step has just drafted is verified: all."""
        self._verify(step, int(step.drafts.offered.sum()))

    def length(self, trims: bool) -> int:
        """How long drafts are, trimmed or not: all are scheduled as long as the longest."""
        return self._longest

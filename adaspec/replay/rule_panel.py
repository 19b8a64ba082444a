"""Static rules that share a batch: each request runs under the one that was tuned without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.base import Needs
from adaspec.policy.static import StaticRule
from adaspec.replay.paths import Paths


@dataclass(frozen=True, slots=True, eq=False)
class RulePanel:
    """Each request under the rule that was tuned without it; all hold the neural drafter, or none.

    A rule's path through a request does not depend on its company, so a mixed batch is exact.
    """

    name: str
    rules: tuple[StaticRule, ...]
    member: NDArray[np.int32]
    """Which of them decides for each request of the tape."""

    @property
    def holds(self) -> bool:
        """Whether requests hold the neural drafter."""
        return self.rules[0].neural_len > 0

    @property
    def needs(self) -> Needs:
        """What all rules together need."""
        longest = max(rule.neural_len for rule in self.rules)
        return Needs(drafter=longest > 0, neural_len=longest)

    def paths(self, walk: Callable[[StaticRule], Paths]) -> Paths:
        """Every request's path under its own rule, from the rules' paths."""
        walked = [walk(rule) for rule in self.rules]
        parts = [
            walked[rule].steps[walked[rule].start[request] : walked[rule].start[request + 1]]
            for request, rule in enumerate(self.member.tolist())
        ]
        start = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        return Paths(start.astype(np.int64), np.concatenate(parts))

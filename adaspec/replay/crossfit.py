"""Several policies, or rules, in one batch: each request is decided by one that never saw it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Deciding
from adaspec.policy.base import Needs
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.static import StaticRule
from adaspec.replay.paths import Paths

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class CrossfitPolicy:
    """Learned policies, each predicting for the requests that it was not trained on.

    They are alike in caps and in what they read. What concerns the whole batch (throughput,
    recalibration, who holds the drafter) they share.
    """

    name: str
    policies: tuple[LearnedPolicy, ...]
    policy_of_request: Ints
    """Which of them predicts for each request of the recording."""
    static_tuned: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By concurrency, for each of them the static rule tuned on the requests that it saw."""
    async_static_tuned: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The same for an async engine."""

    @property
    def needs(self) -> Needs:
        """What each of them needs."""
        return self.policies[0].needs

    def of_entries(self, order: Ints) -> CrossfitPolicy:
        """The same for a recording of the entries of an order."""
        return replace(self, policy_of_request=self.policy_of_request[order])


@dataclass(frozen=True, slots=True, eq=False)
class CrossfitRule:
    """Each request under the rule that was tuned without it; all hold the neural drafter, or none.

    A rule's path through a request does not depend on its company, so a mixed batch is exact.
    """

    name: str
    rules: tuple[StaticRule, ...]
    rule_of_request: Ints
    """Which of them decides for each request of the recording."""

    @property
    def needs(self) -> Needs:
        """What all rules together need."""
        longest = max(rule.neural_len for rule in self.rules)
        memory = any(rule.memory for rule in self.rules)
        return Needs(drafter=longest > 0, neural_len=longest, memory=memory)

    @property
    def deciding(self) -> Deciding:
        """A batch in which some rule copies is looked up."""
        said = [rule.deciding for rule in self.rules]
        return next((each for each in said if each is not Deciding.NOTHING), Deciding.NOTHING)

    def of_entries(self, order: Ints) -> CrossfitRule:
        """The same for a recording of the entries of an order."""
        return replace(self, rule_of_request=self.rule_of_request[order])

    def paths(self, walk: Callable[[StaticRule], Paths]) -> Paths:
        """Every request's path under its own rule, from the rules' paths."""
        walked = [walk(rule) for rule in self.rules]
        own = [walked[rule] for rule in self.rule_of_request.tolist()]
        parts = [each.steps[each.start[r] : each.start[r + 1]] for r, each in enumerate(own)]
        start = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        paid = np.array([each.paid_drafts[r] for r, each in enumerate(own)], np.int64)
        return Paths(start, np.concatenate(parts), paid)

"""Policies that hand every call on to an honest one; the base of those that misbehave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adaspec.policy.protocol import Batch, Policy, Proposal, Report, Setup
from adaspec.policy.spec import parse_policy


class Honest:
    """Hands every call to a policy, which may be given by its spec."""

    def __init__(self, policy: Policy | str = "hybrid-splice:2:4:2:1:3") -> None:
        self.name = "crooked"
        self.honest = parse_policy(policy) if isinstance(policy, str) else policy
        self.stops_early = self.honest.stops_early

    def start(self, setup: Setup) -> None:
        self.setup = setup
        self.honest.start(setup)

    def holds_drafter(self, load: int) -> bool:
        return self.honest.holds_drafter(load)

    def forwards(self, batch: Batch) -> int:
        return self.honest.forwards(batch)

    def decide(self, batch: Batch) -> Proposal:
        return self.honest.decide(batch)

    def learn(self, report: Report) -> None:
        self.honest.learn(report)


class Deciding(Honest):
    """Drafts two tokens, then decides as the test says."""

    def __init__(self, decide: Callable[[Batch], Any], forwards: object = 2) -> None:
        super().__init__("fixed:neural:2")
        self._decide, self._forwards = decide, forwards

    def forwards(self, batch: Batch) -> int:
        return self._forwards  # type: ignore[return-value]

    def decide(self, batch: Batch) -> Proposal:
        return self._decide(batch)

    def learn(self, report: Report) -> None:
        pass

"""Policies that hand every call on to an honest one; the base of those that misbehave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adaspec.policy.protocol import Arrival, Batch, Drafts, Outcome, Policy, Proposal, Setup
from adaspec.policy.spec import parse_policy


class Honest:
    """Hands every call to a policy, which may be given by its spec."""

    def __init__(self, policy: Policy | str = "hybrid-splice:2:4:2:1:3") -> None:
        self.name = "crooked"
        self.honest = parse_policy(policy) if isinstance(policy, str) else policy

    def start(self, setup: Setup) -> None:
        self.setup = setup
        self.honest.start(setup)

    def admit(self, arrival: Arrival) -> bool:
        return self.honest.admit(arrival)

    def plan(self, batch: Batch) -> int:
        return self.honest.plan(batch)

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        return self.honest.proceed(batch, drafts)

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        return self.honest.settle(batch, drafts)

    def learn(self, batch: Batch, proposal: Proposal, outcome: Outcome) -> None:
        self.honest.learn(batch, proposal, outcome)

    def release(self, slots: np.ndarray) -> None:
        self.honest.release(slots)


class Settling(Honest):
    """Drafts two tokens, then settles as the test says."""

    def __init__(self, settle: Callable[[Batch, Drafts], Any], plan: object = 2) -> None:
        super().__init__("fixed:neural:2")
        self._settle, self._plan = settle, plan

    def plan(self, batch: Batch) -> int:
        return self._plan  # type: ignore[return-value]

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        return True

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        return self._settle(batch, drafts)

    def learn(self, batch: Batch, proposal: Proposal, outcome: Outcome) -> None:
        pass

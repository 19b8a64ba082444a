"""A policy that drafts nothing: what one's own policy need not say, it inherits."""

from __future__ import annotations

from typing import Any

import numpy as np

from adaspec.policy.protocol import Arrival, Batch, Drafts, Ints, Outcome, Policy, Proposal, Setup


class BasePolicy:
    """Every stage of the `Policy` protocol, answered so that nothing happens."""

    name = "base"

    def start(self, setup: Setup) -> None:
        """Nothing is remembered between steps."""

    def admit(self, arrival: Arrival) -> bool:
        """With the neural drafter."""
        return True

    def keep(self, batch: Batch) -> bool:
        """Whether requests go on holding the neural drafter; False takes it from all, for good.

        Asked before `plan` in every step in which some row holds it; where the answer is False,
        `plan` sees a batch in which none does.
        """
        return True

    def plan(self, batch: Batch) -> int:
        """No forwards."""
        return 0

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """As far as planned."""
        return True

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """Nothing."""
        nothing = np.zeros(len(batch), dtype=np.int32)
        return Proposal(nothing, nothing.copy())

    def learn(self, batch: Batch, proposal: Proposal, outcome: Outcome) -> None:
        """Nothing is learned."""

    def release(self, slots: Ints) -> None:
        """Nothing is kept per request."""


def keeps_drafter(policy: Policy, batch: Batch) -> bool:
    """What a policy says to `keep`, which it need not have."""
    keep: Any = getattr(policy, "keep", None)
    return keep is None or bool(keep(batch))

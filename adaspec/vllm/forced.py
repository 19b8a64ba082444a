"""A policy that does as it is told: the same plan for every request, to measure what it takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaspec.policy.base import BasePolicy
from adaspec.policy.protocol import Arrival, Batch, Drafts, Proposal


@dataclass(frozen=True, slots=True, order=True)
class Plan:
    """One step's draft, alike for every request: neural tokens, then copied ones."""

    forwards: int = 0
    """Of the neural drafter; where it is held and this is 0, it runs once to keep its KV whole."""
    neural_len: int = 0
    ngram_len: int = 0

    @property
    def draft_len(self) -> int:
        """Tokens that each request has verified, where the text gives enough to copy."""
        return self.neural_len + self.ngram_len

    @property
    def source(self) -> str:
        """Who drafts what is verified."""
        if self.neural_len:
            return "splice" if self.ngram_len else "neural"
        return "ngram" if self.ngram_len else "none"


class Forced(BasePolicy):
    """Every request by the same plan, which may be changed between steps."""

    name = "forced"

    def __init__(self) -> None:
        self.want = Plan()
        self.holds = False
        """Whether requests that enter from here on hold the neural drafter."""

    def admit(self, arrival: Arrival) -> bool:
        """As told."""
        return self.holds

    def plan(self, batch: Batch) -> int:
        """As told."""
        return self.want.forwards if batch.holds_neural.any() else 0

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """As told; copies are from the text's beginning, which is always there and seldom right."""
        rows = len(batch)
        held = np.minimum(self.want.neural_len, drafts.count)
        neural = np.where(batch.holds_neural, held, 0).astype(np.int32)
        ngram = np.full(rows, self.want.ngram_len, np.int32)
        # Behind neural tokens only a look-up says where to copy from.
        start = np.where(neural > 0, -1, 0).astype(np.int32)
        return Proposal(neural, ngram, start if (start == 0).any() else None)

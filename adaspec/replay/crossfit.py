"""Several policies in one batch: each request is decided by one that never saw it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.base import Needs
from adaspec.policy.learned import LearnedPolicy

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

    @property
    def needs(self) -> Needs:
        """What each of them needs."""
        return self.policies[0].needs

    def of_entries(self, order: Ints) -> CrossfitPolicy:
        """The same for a recording of the entries of an order."""
        return replace(self, policy_of_request=self.policy_of_request[order])

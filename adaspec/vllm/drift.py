"""Whether traffic and drafter are still as in training: what comes of drafts, as against expected.

A learned policy corrects for that by itself, within bounds. Here an operator is told.
"""

from __future__ import annotations

import logging

from adaspec.policy.learned import LearnedPolicy, ServedPolicy
from adaspec.vllm.events import DRAFT_SOURCES, Observers

log = logging.getLogger("vllm.adaspec")

PERIOD = 16
"""It is looked at once in so many steps."""
DRIFTED = 0.7
"""Where less of what is expected of a source comes, its model is taken for outdated."""


class Drift:
    """What comes of a started policy's drafts, told to observers and, once, to the log."""

    def __init__(self, policy: ServedPolicy, observers: Observers) -> None:
        self._policy = policy if isinstance(policy, LearnedPolicy) else None
        self._observers = observers
        self._steps = 0
        self._drifted: set[str] = set()
        self._paused = False

    def step(self) -> None:
        """Count a step, and look if it is time."""
        self._steps += 1
        if self._policy is None or self._steps % PERIOD:
            return
        if self._policy.pauses_drafter and not self._paused:
            self._paused = True
            log.info(
                "adaspec: the neural drafter pauses, since with this traffic its drafts are worth "
                "less than it takes: requests copy alone, and it is tried again now and then"
            )
        ratios = self._policy.acceptance_ratios()
        self._observers.notify("recalibrated", ratios)
        for source, share in zip(DRAFT_SOURCES, ratios, strict=True):
            if share < DRIFTED and source not in self._drifted:
                self._drifted.add(source)
                log.warning(
                    "adaspec: of the tokens that the policy lately expected of %s drafts, %.0f%% "
                    "were accepted: traffic or drafter are not as in training, train it again; "
                    "plans expect that much less meanwhile",
                    source,
                    100 * share,
                )

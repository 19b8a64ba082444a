"""Faults degrade to no proposal: counted, said once, and the policy is switched off if repeated."""

from __future__ import annotations

import logging
import traceback
from collections import Counter

from adaspec.vllm.observer import Audience, Fault

log = logging.getLogger("vllm.adaspec")

MOST_IN_A_ROW = 8
"""Steps that fail one after another before the policy is switched off."""
MOST_EVER = 100
"""The same for failures in between steps that went well."""


class Guard:
    """Counts what went wrong; `off` is for good."""

    def __init__(self, policy: str, audience: Audience) -> None:
        self.off = False
        self.counts: Counter[str] = Counter()
        """Faults by stage."""
        self.noted: Counter[str] = Counter()
        """What was counted and had no consequence, by stage."""
        self._policy, self._audience = policy, audience
        self._in_a_row = 0

    def note(self, step: int, stage: str, error: Exception) -> None:
        """Something that is counted and said once, and never switches the policy off."""
        self.noted[stage] += 1
        if self.noted[stage] == 1:
            log.warning(
                "adaspec: policy '%s', %s: %s; further ones are only counted",
                self._policy,
                stage,
                _line(error),
            )
        self._audience.tell("fault", Fault(step, stage, _line(error), self.off))

    def fault(self, step: int, stage: str, error: Exception, rows: int = 0) -> None:
        """Something failed; `rows` requests get no proposal for it, and 0 keeps the step's."""
        self._in_a_row += 1
        first = self.counts[stage] == 0
        self.counts[stage] += 1
        if self._in_a_row >= MOST_IN_A_ROW or self.counts.total() >= MOST_EVER:
            self.off = True
        said = _line(error)
        if first:
            log.warning(
                "adaspec: policy '%s' failed in %s; %s, and further failures there are only "
                "counted: %s",
                self._policy,
                stage,
                "nothing is proposed in this step" if rows else "what it proposed stands",
                said,
            )
            log.debug("%s", "".join(traceback.format_exception(error)))
        if self.off:
            log.error(
                "adaspec: policy '%s' is switched off after %d failures: serving goes on without "
                "speculation until a restart",
                self._policy,
                self.counts.total(),
            )
        self._audience.tell("fault", Fault(step, stage, said, self.off, rows))

    def went_well(self) -> None:
        """A step was decided and learned from without a fault."""
        self._in_a_row = 0


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]

"""Faults degrade to no proposal: counted, said once, and the policy is switched off if repeated."""

from __future__ import annotations

import logging
import traceback
from collections import Counter

from adaspec.vllm.observer import Audience, Fault

log = logging.getLogger("vllm.adaspec")

MOST_IN_A_ROW = 8
"""Steps that fail one after another before the policy is switched off."""
STEPS_PER_FAULT = 100
"""Steps that go well and together make up for one that failed among them."""
MOST_LEFT = 100
"""Failures not made up for before the policy is switched off: one that fails in more than a step in
a hundred ends there, one that fails once an hour never does."""


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
        # Counted by steps, not by a clock, and in whole numbers: all ranks must switch off alike.
        self._left = 0

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
        self._left += STEPS_PER_FAULT
        first = self.counts[stage] == 0
        self.counts[stage] += 1
        in_a_row = self._in_a_row >= MOST_IN_A_ROW
        if in_a_row or self._left >= MOST_LEFT * STEPS_PER_FAULT:
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
                "adaspec: policy '%s' is switched off %s (failures since the start: %s): serving "
                "goes on without speculation until a restart",
                self._policy,
                f"after {MOST_IN_A_ROW} failed steps in a row"
                if in_a_row
                else f"for failing more often than once in {STEPS_PER_FAULT} steps",
                ", ".join(f"{count} in {stage}" for stage, count in sorted(self.counts.items())),
            )
        self._audience.tell("fault", Fault(step, stage, said, self.off, rows))

    def went_well(self) -> None:
        """A step was decided and learned from without a fault."""
        self._in_a_row = 0
        self._left = max(0, self._left - 1)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]

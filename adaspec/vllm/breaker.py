"""Counts the faults of a policy, and switches off a policy that fails too often."""

from __future__ import annotations

import logging
import traceback
from collections import Counter

from adaspec.vllm.events import Observers
from adaspec.vllm.patching import in_one_line

log = logging.getLogger("vllm.adaspec")

MAX_IN_A_ROW = 8
"""How many steps must fail in a row before the policy is switched off."""
STEPS_PER_FAULT = 100
"""How many successful steps make up for one failure."""
MAX_OUTSTANDING = 100
"""How many failures that were not made up for switch the policy off. A policy that fails in more
than one step in a hundred is switched off in the end; one that fails once an hour never is."""


class CircuitBreaker:
    """Counts the faults of a policy; once it is switched `off`, it stays off."""

    def __init__(self, policy: str, observers: Observers) -> None:
        self.off = False
        self.counts: Counter[str] = Counter()
        """Faults by stage."""
        self._noted: set[str] = set()
        self._policy, self._observers = policy, observers
        self._in_a_row = 0
        # All ranks must switch off in the same step, so this is a whole number of steps and uses
        # no clock.
        self._outstanding_steps = 0

    def note(self, stage: str, error: Exception) -> None:
        """Count an error that never switches the policy off; only the first one is logged."""
        if stage not in self._noted:
            self._noted.add(stage)
            log.warning(
                "adaspec: policy '%s', %s: %s; further ones are only counted",
                self._policy,
                stage,
                in_one_line(error, 300),
            )
        self._observers.notify("fault", stage, self.off)

    def fault(self, stage: str, error: Exception, *, proposals_stand: bool = False) -> None:
        """Count a failure, which leaves the step's requests without a proposal or lets it stand."""
        self._in_a_row += 1
        self._outstanding_steps += STEPS_PER_FAULT
        self.counts[stage] += 1
        in_a_row = self._in_a_row >= MAX_IN_A_ROW
        was_off = self.off
        self.off |= in_a_row or self._outstanding_steps >= MAX_OUTSTANDING * STEPS_PER_FAULT
        if self.counts[stage] == 1:
            log.warning(
                "adaspec: policy '%s' failed in %s; %s, and further failures there are only "
                "counted: %s",
                self._policy,
                stage,
                "what it proposed stands"
                if proposals_stand
                else "nothing is proposed in this step",
                in_one_line(error, 300),
            )
            log.debug("%s", "".join(traceback.format_exception(error)))
        if self.off and not was_off:  # batches that cannot be read go on failing
            log.error(
                "adaspec: policy '%s' is switched off %s (failures since the start: %s): serving "
                "goes on without speculation until a restart",
                self._policy,
                f"after {MAX_IN_A_ROW} failed steps in a row"
                if in_a_row
                else f"for failing more often than once in {STEPS_PER_FAULT} steps",
                ", ".join(f"{count} in {stage}" for stage, count in sorted(self.counts.items())),
            )
        self._observers.notify("fault", stage, self.off)

    def step_succeeded(self) -> None:
        """Note that a step was decided and learned from without a fault."""
        self._in_a_row = 0
        self._outstanding_steps = max(0, self._outstanding_steps - 1)

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
            text = "adaspec: policy '%s', %s: %s; further ones are only counted"
            log.warning(text, self._policy, stage, in_one_line(error, 300))
        self._observers.notify("fault", stage, self.off)

    def fault(self, stage: str, error: Exception, *, proposals_stand: bool = False) -> None:
        """Count a failure, which leaves the step's requests without a proposal or lets it stand."""
        self._in_a_row += 1
        self._outstanding_steps += STEPS_PER_FAULT
        self.counts[stage] += 1
        if self.counts[stage] == 1:
            text = "adaspec: policy '%s' failed in %s; %s, and more failures are only counted: %s"
            cost = "what it proposed stands" if proposals_stand else "the step has no drafts"
            log.warning(text, self._policy, stage, cost, in_one_line(error, 300))
            log.debug("%s", "".join(traceback.format_exception(error)))
        why = ""
        if self._in_a_row >= MAX_IN_A_ROW:
            why = f"after {MAX_IN_A_ROW} failed steps in a row"
        elif self._outstanding_steps >= MAX_OUTSTANDING * STEPS_PER_FAULT:
            why = f"for failing more often than once in {STEPS_PER_FAULT} steps"
        if why and not self.off:  # batches that cannot be read go on failing
            self.off = True
            counted = ", ".join(f"{count} in {each}" for each, count in sorted(self.counts.items()))
            text = (
                "adaspec: policy '%s' is switched off %s (failures since the start: %s): serving "
                "goes on without speculation until a restart"
            )
            log.error(text, self._policy, why, counted)
        self._observers.notify("fault", stage, self.off)

    def step_succeeded(self) -> None:
        """Note that a step was decided and learned from without a fault."""
        self._in_a_row = 0
        self._outstanding_steps = max(0, self._outstanding_steps - 1)

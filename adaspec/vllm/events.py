"""The events that a session sends to its observers, and the breaker that counts its faults."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.budget import no_settings
from adaspec.policy.protocol import Bools, Ints
from adaspec.vllm.patching import in_one_line

if TYPE_CHECKING:  # they are made of PyTorch's tensors, without which figures can be read
    from adaspec.vllm.session.report import Outcome, StepReport

Floats = NDArray[np.float64]
log = logging.getLogger("vllm.adaspec")

MAX_OBSERVER_FAILURES = 5
"""An observer that has failed this often is removed: observing must not harm serving."""
MAX_IN_A_ROW = 8
"""How many steps must fail in a row before the policy is switched off."""
STEPS_PER_FAULT = 100
"""How many successful steps make up for one failure."""
MAX_OUTSTANDING = 100
"""How many failures that were not made up for switch the policy off. A policy that fails in more
than one step in a hundred is switched off in the end; one that fails once an hour never is."""


@dataclass(eq=False)
class DraftedStep:
    """A step that is drafted for, row by row of the requests whose texts had been read.

    Observers are told of it once it is known what of it is verified.
    """

    slots: Ints
    prompt_tokens: Ints
    holds_neural: Bools
    running: NDArray[Any] = field(default_factory=lambda: np.zeros(0, object))
    """The `RunningRequest` of each row."""
    rows: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """Where these rows stand in the step's batch."""
    recorded: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    """The rows that are drafted for in full, and proposed nothing."""
    forwards: int = 0
    """How many tokens the drafter drafts for each row; for recorded rows it drafts more."""
    is_baseline: bool = False
    """Whether the baseline drafts in it, not the policy."""
    settings: Floats = field(default_factory=no_settings)
    """By what the rows choose: the price of a token, and the factors of each source."""
    budget: int = 0
    """How many of their tokens the next step verifies, all rows together."""
    cut_by_engine: bool = False
    """Whether that is less than the policy wanted: more would leave the step's graph, or be more
    than vLLM's sampler takes."""
    bounded: bool = False
    """Whether the operator's bound let it draft or verify less than it was to."""
    report: StepReport | None = None
    """What the device said of just these rows; None until it has come."""
    outcome: Outcome | StepReport | None = None
    """What the target made of the drafts before, once that is known."""
    ended: Bools | None = None
    """The rows whose request had ended before: an async engine learns of that a step late."""
    verified: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """How many tokens of each draft fit the budget: none where nothing is decided, as in mode
    'record' or in the guard's probes."""
    decision_s: float = 0.0
    """The seconds that deciding took on this machine, without waiting for the device."""

    @cached_property
    def requests(self) -> list[str]:
        """The names of the requests."""
        return [each.name for each in self.running]

    @property
    def drafts(self) -> StepReport:
        """What was drafted."""
        assert self.report is not None
        return self.report

    @cached_property
    def proposed(self) -> list[list[int]]:
        """The tokens that are sent to the target."""
        rows = zip(self.drafts.tokens.tolist(), self.verified.tolist(), strict=True)
        return [tokens[:length] for tokens, length in rows]


@dataclass(frozen=True, slots=True)
class VerifiedStep:
    """The target's verdict on a step's drafts, one entry per row of the step."""

    step: DraftedStep
    known: Bools
    """Whether the row's result is known: not if the request left or its draft was dropped before
    it was verified. If not, its entries in the other arrays mean nothing."""
    drafted: Ints
    """How many tokens the target judged; the scheduler may have cut or dropped the draft."""
    neural_drafted: Ints
    accepted: Ints
    emitted_tokens: Ints


class Observers:
    """All observers of a session. One that raises does not harm the others, and is removed if it
    keeps failing.

    An observer has a method for each event that matters to it. It is called in the engine's own
    thread, and so must be quick:

        admitted(request)               a request is seen for the first time
        proposed(step)                  a step was decided
        verified(step)                  the target has verified the last step's proposal
        forwards(drafting, keep_alive)  the drafter ran; a draft's first forward also keeps its KV
                                        complete
        left(requests)                  these requests will not come back
        switched(mode)                  another mode begins with the next step
        guarded(report)                 the guard's state for the next step, where there is a guard
        fault(stage, switched_off)      something failed that serving survived
        close()                         no more events will come: output is to be finished
    """

    def __init__(self) -> None:
        self._observers: list[Any] = []
        self._failures: Counter[int] = Counter()
        self.muted = False
        """Whether nobody is told of anything."""

    def add(self, *observers: Any) -> None:
        """Notify these observers of future events, too."""
        self._observers += observers

    def notify(self, event: str, *values: object) -> None:
        """Call the method of that name on every observer that has it."""
        for observer in () if self.muted else tuple(self._observers):
            try:
                if hasattr(observer, event):
                    getattr(observer, event)(*values)
            except Exception as error:
                self._failures[id(observer)] += 1
                count, name = self._failures[id(observer)], type(observer).__name__
                if count == 1:
                    log.warning("adaspec: %s failed in %s and goes on: %r", name, event, error)
                if count >= MAX_OBSERVER_FAILURES:
                    log.warning("adaspec: %s failed %d times and is dropped", name, count)
                    self._observers.remove(observer)


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

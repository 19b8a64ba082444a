"""The events that a session sends to its observers, such as recording and metrics."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaspec.policy.choice import no_settings
from adaspec.policy.protocol import Bools, Ints

if TYPE_CHECKING:  # they are made of PyTorch's tensors, without which figures can be read
    from adaspec.vllm.session.report import Outcome, StepReport

Floats = NDArray[np.float64]
log = logging.getLogger("vllm.adaspec")

MAX_OBSERVER_FAILURES = 5
"""An observer that has failed this often is removed: observing must not harm serving."""


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

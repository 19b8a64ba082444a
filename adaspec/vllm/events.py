"""What a session tells its observers; recording and metrics plug in here."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from adaspec.policy.protocol import Batch, Bools, Drafts, Floats, Ints, Proposal, Setup

log = logging.getLogger("vllm.adaspec")

MAX_OBSERVER_FAILURES = 5
"""An observer that has failed so often is removed: observing must not cost serving."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What is being served, and how; it never changes while a session lasts."""

    policy: str
    why: str
    mode: str
    setup: Setup
    target: str
    drafter: str | None
    record_fraction: float = 0.0
    """The fraction of requests that are drafted for at every position, and proposed nothing."""
    record_cap: int = 0
    """How many tokens are drafted at each position of these requests."""
    version: str = ""
    """The policy's version, if it has one."""
    propensity: float | None = None
    """Probability of every plan that the policy chooses; None where it is not known."""
    tokenizer: str | None = None
    vocabulary_hash: str | None = None
    vocabulary: int = 0
    engine_version: str | None = None
    hardware: str | None = None
    replica: int | None = None
    """This engine's number among several that serve the same; None if it is the only one."""


@dataclass(frozen=True, slots=True)
class RequestEntered:
    """A request that is seen for the first time."""

    request: str
    prompt_tokens: Ints
    recorded: bool


@dataclass(frozen=True, slots=True)
class StepProposed:
    """One step's decision, row by row of its batch."""

    step: int
    requests: list[str]
    batch: Batch
    planned: int
    """The most forwards that the policy asked for."""
    drafts: Drafts
    """All that was drafted: `count` forwards, which may be more than the policy asked for where
    rows are recorded."""
    shown: int
    """How many of the drafted tokens the policy saw."""
    recorded: Bools
    """Rows that are drafted for in full and proposed nothing."""
    proposal: Proposal
    neural_len: Ints
    """Lengths after cuts."""
    ngram_len: Ints
    """Lengths after cuts; behind neural tokens they are spliced on."""
    tokens: list[list[int]]
    """What goes to the target: nothing in modes 'shadow' and 'record', whatever the lengths say."""
    chosen: list[list[int]]
    """What would go to the target in mode 'serve'."""
    expected: Floats | None
    """Tokens that the policy expects to be accepted per row, where it says so."""
    decision_s: float
    """Seconds that deciding took on this machine, look-ups and index upkeep included."""
    barred: Bools | None = None
    """Rows for which the engine takes no draft at all, whatever the policy says."""


@dataclass(frozen=True, slots=True)
class StepVerified:
    """What the target made of a step's proposal, row by row of its batch."""

    step: int
    requests: list[str]
    known: Bools
    """False where the request left, or its draft was dropped, before it was verified."""
    drafted: Ints
    """Tokens that were verified."""
    neural_drafted: Ints
    accepted: Ints
    step_s: float
    """The step's time by the cost model."""
    took_s: float | None = None
    """Measured seconds from one decision to the next; None where the step did more than verify
    this proposal, such as reading a prompt."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure that serving survived."""

    step: int
    stage: str
    error: str
    switched_off: bool
    rows: int = 0
    """Requests that got no decision because of it."""


SOURCES = ("none", "ngram", "neural", "splice")


def source_of(neural_len: int, ngram_len: int) -> str:
    """Who drafted, given how many tokens each drafter gave."""
    return SOURCES[2 * (neural_len > 0) + (ngram_len > 0)]


class Observer:
    """Ignores every event: inherit it and override the ones that matter.

    Events come in the engine's own thread: be quick, and copy an array of `StepProposed` to keep
    it. The arrays of `StepVerified` do not change any more.
    """

    def entered(self, event: RequestEntered) -> None:
        """A request is seen for the first time."""

    def proposed(self, event: StepProposed) -> None:
        """A step was decided."""

    def verified(self, event: StepVerified) -> None:
        """The target has verified the last step's proposal."""

    def forwards(self, step: int, drafting: int, keep_alive: int, rows: int) -> None:
        """The drafter ran in a step; the first forward of a draft also keeps its KV complete."""

    def dropped(self, requests: list[str]) -> None:
        """Proposals of these requests were not verified as proposed."""

    def left(self, requests: list[str]) -> None:
        """These requests will not come back."""

    def fault(self, fault: Fault) -> None:
        """Something failed."""

    def close(self) -> None:
        """Nothing more comes: finish what is being written."""


class Observers:
    """All observers of a session; one that raises harms no other, and is removed if it goes on."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._failures: dict[int, int] = {}

    def add(self, *observers: Observer) -> None:
        """Notify these observers too."""
        self._observers += observers

    def notify(self, event: str, *values: object) -> None:
        """Call the method of that name on every observer."""
        for observer in tuple(self._observers):
            try:
                getattr(observer, event)(*values)
            except Exception as error:
                self._failed(observer, event, error)

    def close(self) -> None:
        """Close every observer."""
        for observer in tuple(self._observers):
            observer.close()

    def _failed(self, observer: Observer, event: str, error: Exception) -> None:
        count = self._failures[id(observer)] = self._failures.get(id(observer), 0) + 1
        name = type(observer).__name__
        if count == 1:
            log.warning("adaspec: %s failed in %s and goes on: %r", name, event, error)
        if count >= MAX_OBSERVER_FAILURES:
            log.warning("adaspec: %s failed %d times and is dropped", name, count)
            self._observers.remove(observer)

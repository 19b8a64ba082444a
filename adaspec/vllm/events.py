"""The events that a session sends to its observers, such as recording and metrics."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from adaspec.policy.protocol import Batch, Bools, Drafts, Floats, Ints, Proposal, Setup

log = logging.getLogger("vllm.adaspec")

MAX_OBSERVER_FAILURES = 5
"""An observer that has failed this often is removed: observing must not harm serving."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served and how; it never changes during a session."""

    policy: str
    why: str
    mode: str
    setup: Setup
    target: str
    drafter: str | None
    record_fraction: float = 0.0
    """The fraction of requests that are drafted for at every position, and proposed nothing."""
    record_cap: int = 0
    """How many tokens are drafted at each position of the recorded requests."""
    version: str = ""
    """The policy's version; empty if it has none."""
    propensity: float | None = None
    """The probability of every plan that the policy chooses; None if it is not known."""
    tokenizer: str | None = None
    vocabulary_hash: str | None = None
    vocabulary: int = 0
    engine_version: str | None = None
    hardware: str | None = None
    replica: int | None = None
    """This engine's index among the replicas; None if it is the only one."""


@dataclass(frozen=True, slots=True)
class RequestEntered:
    """A request that is seen for the first time."""

    request: str
    prompt_tokens: Ints
    recorded: bool


@dataclass(frozen=True, slots=True)
class StepProposed:
    """One step's decision, one entry per row of its batch."""

    step: int
    requests: list[str]
    batch: Batch
    planned: int
    """How many forwards the policy asked for at most."""
    drafts: Drafts
    """Everything that was drafted. Its `count` of forwards can exceed what the policy asked for if
    rows are recorded."""
    shown: int
    """How many of the drafted tokens the policy saw."""
    recorded: Bools
    """The rows that are drafted for in full and proposed nothing."""
    proposal: Proposal
    neural_len: Ints
    """The lengths of the neural drafts after cuts."""
    ngram_len: Ints
    """The lengths of the n-gram drafts after cuts; they are spliced on after neural tokens."""
    tokens: list[list[int]]
    """The tokens sent to the target: none in modes 'shadow' and 'record', whatever the lengths."""
    chosen: list[list[int]]
    """The tokens that would be sent to the target in mode 'serve'."""
    expected: Floats | None
    """How many tokens per row the policy expects to be accepted; None if it does not say."""
    decision_s: float
    """The seconds that deciding took on this machine, including look-ups and index upkeep."""
    barred: Bools | None = None
    """The rows for which the engine takes no draft at all, whatever the policy says."""


@dataclass(frozen=True, slots=True)
class StepVerified:
    """The target's verdict on a step's proposal, one entry per row of its batch."""

    step: int
    requests: list[str]
    known: Bools
    """Whether the row's result is known: not if the request left or its draft was dropped before
    it was verified."""
    drafted: Ints
    """How many tokens were verified."""
    neural_drafted: Ints
    accepted: Ints
    step_s: float
    """The step's time according to the cost model."""
    took_s: float | None = None
    """The measured seconds from one decision to the next; None if the step did more than verify
    this proposal, such as reading a prompt."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure that serving survived."""

    step: int
    stage: str
    error: str
    switched_off: bool
    rows: int = 0
    """How many requests got no decision because of the failure."""


SOURCES = ("none", "ngram", "neural", "splice")


def source_of(neural_len: int, ngram_len: int) -> str:
    """Which of `SOURCES` a draft is from, given how many tokens each drafter gave."""
    return SOURCES[2 * (neural_len > 0) + (ngram_len > 0)]


class Observer:
    """Ignores every event: inherit from it and override the methods for the events that matter.

    Events come in the engine's own thread, so an observer must be quick. It must copy an array of
    `StepProposed` to keep it; the arrays of `StepVerified` do not change any more.
    """

    def entered(self, event: RequestEntered) -> None:
        """Called when a request is seen for the first time."""

    def proposed(self, event: StepProposed) -> None:
        """Called when a step was decided."""

    def verified(self, event: StepVerified) -> None:
        """Called when the target has verified the last step's proposal."""

    def forwards(self, step: int, drafting: int, keep_alive: int, rows: int) -> None:
        """Called when the drafter ran; a draft's first forward also keeps its KV complete."""

    def dropped(self, requests: list[str]) -> None:
        """Called when proposals of these requests were not verified as proposed."""

    def left(self, requests: list[str]) -> None:
        """Called when these requests will not come back."""

    def fault(self, fault: Fault) -> None:
        """Called when something failed."""

    def close(self) -> None:
        """Called when no more events will come, so that the observer can finish its output."""


class Observers:
    """All observers of a session. One that raises does not harm the others, and is removed if it
    keeps failing."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._failures: dict[int, int] = {}

    def add(self, *observers: Observer) -> None:
        """Notify these observers of future events, too."""
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

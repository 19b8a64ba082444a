"""What whoever watches the live decisions is told; recorder and metrics plug in here."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from adaspec.policy.protocol import Batch, Bools, Drafts, Floats, Ints, Proposal, Setup

log = logging.getLogger("vllm.adaspec")

MOST_COMPLAINTS = 5
"""An observer that has failed so often is dropped: watching must not cost serving."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What is being served: told once, before anything else."""

    policy: str
    why: str
    mode: str
    setup: Setup
    target: str
    drafter: str | None
    rank: int
    record_fraction: float = 0.0
    """Of the requests, how many are drafted for at every position, and proposed nothing."""
    record_cap: int = 0
    """How far these are drafted for."""
    version: str = ""
    """Of the policy, where it has one."""
    propensity: float | None = None
    """Probability of every plan that the policy chooses, where it is known."""
    tokenizer: str | None = None
    vocabulary_hash: str | None = None
    vocabulary: int = 0
    engine_version: str | None = None
    hardware: str | None = None
    replica: int | None = None
    """Which one this engine is of several that serve the same."""


@dataclass(frozen=True, slots=True)
class Entered:
    """A request that is seen for the first time, with whether it holds the neural drafter."""

    request: str
    slot: int
    prompt_tokens: Ints
    holds_neural: bool
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Proposed:
    """One step's decision, row by row of its batch."""

    step: int
    requests: list[str]
    batch: Batch
    planned: int
    """The most forwards that the policy asked for."""
    drafts: Drafts
    """What the drafter said: `count` forwards were run for drafting; for recorded rows' sake they
    may be more than the policy asked for."""
    shown: int
    """How many of the drafted tokens the policy saw."""
    recorded: Bools
    """Rows that are drafted for in full and proposed nothing."""
    proposal: Proposal
    neural_len: Ints
    """After cuts."""
    ngram_len: Ints
    """After cuts; behind neural tokens they are spliced on."""
    tokens: list[list[int]]
    """What is proposed; nothing in the modes that only watch, whatever the lengths above say."""
    meant: list[list[int]]
    """What would be proposed in mode 'serve'."""
    expected: Floats | None
    """Tokens that the policy expects to be accepted per row, where it says so."""
    decision_s: float
    """What deciding took on this machine, look-ups and index upkeep included."""
    barred: Bools | None = None
    """Rows for which the engine takes no draft at all, whatever the policy says."""


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a step's proposal, row by row of its batch."""

    step: int
    requests: list[str]
    known: Bools
    """False where the request left, or its drafts were dropped, before the target spoke."""
    drafted: Ints
    """Tokens that were verified."""
    neural_drafted: Ints
    accepted: Ints
    emitted: Ints
    emitted_tokens: Ints
    step_s: float
    """Modelled."""
    took_s: float | None = None
    """By the clock, from one decision to the next; None where the step did more than verify this
    proposal, such as reading a prompt."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that failed and was lived with."""

    step: int
    stage: str
    error: str
    switched_off: bool
    rows: int = 0
    """Requests that nothing was decided on for it."""


class Observer(Protocol):
    """Told of everything, in the engine's own thread: be quick, keep no array without a copy."""

    def serving(self, serving: Serving) -> None:
        """The policy has started."""

    def entered(self, entered: Entered) -> None:
        """A request is seen for the first time."""

    def proposed(self, proposed: Proposed) -> None:
        """A step was decided."""

    def came(self, came: Came) -> None:
        """The target has spoken on the last step's proposal."""

    def forwards(self, step: int, drafting: int, keep_alive: int, rows: int) -> None:
        """Drafter forwards of a step; the first of a draft keeps the KV alive too."""

    def dropped(self, requests: list[str]) -> None:
        """Proposals of these requests were not verified as proposed."""

    def left(self, requests: list[str]) -> None:
        """These requests will not come back."""

    def fault(self, fault: Fault) -> None:
        """Something failed."""


class Silent:
    """An observer that cares for nothing: inherit it and write what matters."""

    def serving(self, serving: Serving) -> None:
        """Ignored."""

    def entered(self, entered: Entered) -> None:
        """Ignored."""

    def proposed(self, proposed: Proposed) -> None:
        """Ignored."""

    def came(self, came: Came) -> None:
        """Ignored."""

    def forwards(self, step: int, drafting: int, keep_alive: int, rows: int) -> None:
        """Ignored."""

    def dropped(self, requests: list[str]) -> None:
        """Ignored."""

    def left(self, requests: list[str]) -> None:
        """Ignored."""

    def fault(self, fault: Fault) -> None:
        """Ignored."""


class Audience:
    """All observers as one; an exception in one of them reaches nobody, and ends it if repeated."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._complaints: dict[int, int] = {}

    def add(self, observer: Observer) -> None:
        """Tell this observer too."""
        self._observers.append(observer)

    def tell(self, what: str, *facts: object) -> None:
        """Call the method of that name on every observer."""
        for observer in tuple(self._observers):
            try:
                getattr(observer, what)(*facts)
            except Exception as error:
                self._complain(observer, what, error)

    def close(self) -> None:
        """Have those observers that write finish what they write."""
        for observer in tuple(self._observers):
            close = getattr(observer, "close", None)
            if close is not None:
                close()

    def _complain(self, observer: Observer, what: str, error: Exception) -> None:
        count = self._complaints[id(observer)] = self._complaints.get(id(observer), 0) + 1
        name = type(observer).__name__
        if count == 1:
            log.warning("adaspec: %s failed in %s and goes on: %r", name, what, error)
        if count >= MOST_COMPLAINTS:
            log.warning("adaspec: %s failed %d times and is dropped", name, count)
            self._observers.remove(observer)


__all__ = [
    "Audience",
    "Came",
    "Entered",
    "Fault",
    "Observer",
    "Proposed",
    "Serving",
    "Silent",
]

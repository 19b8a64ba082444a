"""The events that a session sends to its observers, such as recording and metrics."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adaspec.policy.protocol import Ints, Setup
from adaspec.vllm.batch import EngineStep, Verification
from adaspec.vllm.guarding import Guarded

log = logging.getLogger("vllm.adaspec")

MAX_OBSERVER_FAILURES = 5
"""An observer that has failed this often is removed: observing must not harm serving."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served and how; it never changes during a session."""

    policy: str
    why: str
    mode: str
    """The mode at first: a `mode_file` may change it."""
    setup: Setup
    target: str
    drafter: str | None
    record_fraction: float = 0.0
    """The fraction of requests that are drafted for at every position, and proposed nothing."""
    record_cap: int = 0
    """How many tokens are drafted at each position of the recorded requests."""
    version: str = ""
    """The policy's version; empty if it has none."""
    tokenizer: str | None = None
    vocabulary_hash: str | None = None
    vocabulary: int = 0
    engine_version: str | None = None
    hardware: str | None = None
    memory_bytes: int = 0
    """The most that the answers of earlier requests take; 0 if none are remembered."""
    memory_file: Path | None = None
    """Where they are kept for a server that is started again; None if nowhere."""
    serve_fraction: float = 1.0
    max_context_tokens: int | None = None
    max_drafted_tokens: int | None = None
    replica: int | None = None
    """This engine's index among the replicas; None if it is the only one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure that serving survived."""

    stage: str
    switched_off: bool
    rows: int = 0
    """How many requests got no decision because of the failure."""


SOURCES = ("none", "ngram", "neural", "splice")


def source_of(neural_len: int, ngram_len: int) -> str:
    """Which of `SOURCES` a draft is from, given how many tokens each drafter gave."""
    return SOURCES[2 * (neural_len > 0) + (ngram_len > 0)]


REASONS = {
    "none": ("policy", "nothing_to_copy", "recorded", "limited", "output_limit", "fault"),
    "ngram": ("alone", "switched"),
    "neural": ("whole", "trimmed"),
    "splice": ("whole", "trimmed"),
}
"""The possible reasons of a decision, by its source.

none: the policy proposed nothing; the policy proposed to copy but there was nothing to copy; the
request is being recorded; the request or an option forbids drafts for it; the request's
max_tokens or min_tokens leave no room for a draft; or something failed.
ngram: the neural drafter drafted nothing for the request, or the copy was taken instead of its
tokens. neural and splice: all tokens of the neural drafter were taken, or fewer.
"""


def decisions_of(event: EngineStep) -> list[str]:
    """Of each row, the source of its draft and the reason, as SOURCE/REASON; see `REASONS`."""
    step = event.step
    assert step.proposal is not None
    room = event.room if event.room is None else event.room.tolist()
    limited = event.limited if event.limited is None else event.limited.tolist()
    columns = (
        event.cut.neural_len,
        event.cut.ngram_len,
        np.asarray(step.proposal.ngram_len),
        step.holds_neural,
        event.recorded,
    )
    decisions = []
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for row, (neural, ngram, wanted, holds, recorded) in enumerate(rows):
        if neural or ngram:
            decisions.append(_drafted(neural, ngram, step.forwards if holds else 0))
        elif recorded:
            decisions.append("none/recorded")
        elif limited is not None and limited[row]:
            decisions.append("none/limited")
        elif room is not None and room[row] <= 0:
            decisions.append("none/output_limit")
        else:
            decisions.append("none/nothing_to_copy" if wanted > 0 else "none/policy")
    return decisions


def _drafted(neural: int, ngram: int, shown: int) -> str:
    """The source and reason of a draft that is not empty; `shown` tokens were drafted for it."""
    if not neural:
        return "ngram/switched" if shown else "ngram/alone"
    return f"{'splice' if ngram else 'neural'}/{'trimmed' if neural < shown else 'whole'}"


class Observer:
    """Ignores every event: inherit from it and override the methods for the events that matter.

    Events come in the engine's own thread, so an observer must be quick. Of a step that it is told
    of, the policy may still change what `step.batch` holds, and the engine what is `proposed`.
    """

    def entered(
        self,
        request: str,
        prompt_tokens: Ints,
        recorded: bool,
        max_tokens: int | None,
        greedy: bool,
    ) -> None:
        """Called when a request is seen for the first time; its prompt must be copied to keep."""

    def proposed(self, event: EngineStep) -> None:
        """Called when a step was decided."""

    def verified(self, event: Verification) -> None:
        """Called when the target has verified the last step's proposal."""

    def forwards(self, step: int, drafting: int, keep_alive: int, rows: int) -> None:
        """Called when the drafter ran; a draft's first forward also keeps its KV complete."""

    def dropped(self, requests: list[str]) -> None:
        """Called when proposals of these requests were not verified as proposed."""

    def left(self, requests: list[str]) -> None:
        """Called when these requests will not come back."""

    def switched(self, mode: str) -> None:
        """Called when another mode begins with the next step."""

    def guarded(self, guarded: Guarded) -> None:
        """Called with the guard's word for the next step, where there is a guard."""

    def recalibrated(self, came: list[float]) -> None:
        """Called now and then with what came of drafts by source, as in `LearnedPolicy.came`."""

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

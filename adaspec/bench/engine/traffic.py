"""So many requests at once, a new one as one ends; and what of it is timed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Stream = Callable[[Sequence[int], int], Iterator[tuple[float, list[int]]]]
"""(prompt, most tokens) -> (when, which tokens) as they arrive."""


@dataclass(frozen=True, slots=True)
class Call:
    """A prompt to send."""

    workload: str
    id: str
    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call; seconds are since the round began."""

    workload: str
    id: str
    sent_s: float
    arrived_s: tuple[float, ...]
    """When each piece arrived."""
    counts: tuple[int, ...]
    """How many tokens each piece held."""
    tokens: tuple[int, ...]

    def document(self) -> dict[str, Any]:
        """In JSON's own types."""
        return {
            "workload": self.workload,
            "id": self.id,
            "sent_s": self.sent_s,
            "arrived_s": list(self.arrived_s),
            "counts": list(self.counts),
            "tokens": list(self.tokens),
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Answer:
        """What `document` wrote."""
        lists = {key: tuple(document[key]) for key in ("arrived_s", "counts", "tokens")}
        return cls(document["workload"], document["id"], document["sent_s"], **lists)


def drive(calls: Sequence[Call], concurrency: int, stream: Stream) -> list[Answer]:
    """Send all calls, `concurrency` at a time, and read every answer; in the calls' order."""
    answers: list[Answer | None] = [None] * len(calls)
    failures: list[BaseException] = []
    waiting = iter(range(len(calls)))
    lock = threading.Lock()
    began_s = time.perf_counter()

    def work() -> None:
        try:
            while not failures:
                with lock:
                    at = next(waiting, None)
                if at is None:
                    return
                answers[at] = _ask(calls[at], stream, began_s)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, daemon=True) for _ in range(min(concurrency, len(calls)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [answer for answer in answers if answer is not None]


def _ask(call: Call, stream: Stream, began_s: float) -> Answer:
    sent_s = time.perf_counter() - began_s
    arrived: list[float] = []
    counts: list[int] = []
    tokens: list[int] = []
    for at_s, found in stream(call.prompt, call.max_tokens):
        arrived.append(at_s - began_s)
        counts.append(len(found))
        tokens += found
    return Answer(call.workload, call.id, sent_s, tuple(arrived), tuple(counts), tuple(tokens))


@dataclass(frozen=True, slots=True)
class Timing:
    """One round of one cell."""

    tokens: int
    """That arrived while every slot was taken: up to the first that could not be filled again."""
    seconds: float
    first_s: tuple[float, ...]
    """Time to the first token, per request."""
    gap_s: tuple[float, ...]
    """Between one piece and the next, as a reader sees them."""
    token_s: tuple[float, ...]
    """Seconds per output token behind the first, per request."""

    @property
    def tokens_per_s(self) -> float:
        """Throughput of the full house."""
        return self.tokens / self.seconds if self.seconds > 0 else float("nan")


def timing(answers: Sequence[Answer]) -> Timing:
    """What a round took; its tail, in which slots stand empty, counts for latencies alone."""
    sent_last_s = max(answer.sent_s for answer in answers)
    ends = [answer.arrived_s[-1] for answer in answers if answer.arrived_s]
    later = [end for end in ends if end > sent_last_s]
    until_s = min(later, default=max(ends, default=0.0))
    tokens = sum(
        count
        for answer in answers
        for at_s, count in zip(answer.arrived_s, answer.counts, strict=True)
        if at_s <= until_s
    )
    gaps = [np.diff(answer.arrived_s) for answer in answers if len(answer.arrived_s) > 1]
    per_token = [
        (answer.arrived_s[-1] - answer.arrived_s[0]) / (len(answer.tokens) - answer.counts[0])
        for answer in answers
        if len(answer.arrived_s) > 1
    ]
    return Timing(
        tokens=tokens,
        seconds=until_s - min(answer.sent_s for answer in answers),
        first_s=tuple(a.arrived_s[0] - a.sent_s for a in answers if a.arrived_s),
        gap_s=tuple(float(gap) for each in gaps for gap in each),
        token_s=tuple(per_token),
    )

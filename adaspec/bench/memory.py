"""Measures look-ups in earlier answers: adaspec's index beside arctic-inference's suffix cache.

Both hold the same made-up answers, and both look up what follows at every position of further
ones. Look-ups are timed in turns of a few hundred, system after system, so that a busy machine
slows both alike. Memory is what the process holds more after an index was filled than before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaspec.bench.lookup import TREE_DEPTH, installed_systems, make_contexts
from adaspec.bench.machine import held_memory, reserve_memory, without_garbage_collection
from adaspec.draft.answers import BYTES_PER_TOKEN, IN_ANSWERS, AnswerIndex
from adaspec.draft.index import NgramIndex
from adaspec.evaluate.options import Progress, silent
from adaspec.replay.suffix import SuffixCache, cache_of

Ints = NDArray[np.int32]

TOKENS = (10_000, 100_000, 1_000_000, 10_000_000)
ANSWER = 500
"""Tokens of an answer."""
ASKED = 8
"""Further answers that are looked up, at every position."""
PROMPT = 32
TURN = 100
LONGEST = 8
"""Tokens drafted at most."""
_BYTES = {"adaspec": 2 * BYTES_PER_TOKEN, "arctic": 900}
"""What a stored token may take during the benchmark."""
_TOLD_FROM = 32 << 20
"""Less memory than this may come from what the process held before."""


class RememberingSystem(Protocol):
    """Holds answers, and drafts for one request whose text grows token by token."""

    def add(self, number: int, answer: Ints) -> None:
        """Store the answer of an earlier request."""

    def enter(self, prompt: Ints) -> None:
        """Begin the request that look-ups are for; it replaces the last one."""

    def draft(self) -> Sequence[int]:
        """At most `LONGEST` tokens that may follow the text."""

    def append(self, token: int) -> None:
        """Append a token to the text."""


class _AdaspecAnswers:
    """adaspec's n-gram index, with answers."""

    def __init__(self, tokens: int) -> None:
        self._answers = AnswerIndex(BYTES_PER_TOKEN * (tokens + tokens // 50 + 10_000))
        self._index = NgramIndex(self._answers)
        self._slot = -1

    def add(self, number: int, answer: Ints) -> None:
        self._answers.add(answer)

    def enter(self, prompt: Ints) -> None:
        if self._slot >= 0:
            self._index.close(self._slot)
        self._slot = self._index.open(prompt)

    def draft(self) -> Sequence[int]:
        matches, _, copied = self._index.survey([self._slot], 0, LONGEST)
        first = int(matches.start[0])
        count = LONGEST if first >= IN_ANSWERS else min(LONGEST, int(matches.available[0]))
        tokens: list[int] = copied[0, : count if first >= 0 else 0].tolist()
        return tokens

    def append(self, token: int) -> None:
        self._index.extend([self._slot], [token], [1])


class _ArcticAnswers:
    """arctic-inference's suffix cache, as vLLM calls it."""

    def __init__(self, tokens: int) -> None:
        self._cache: SuffixCache = cache_of(tokens // ANSWER + 2 * ASKED)
        self._request = -1
        self._text: list[int] = []

    def add(self, number: int, answer: Ints) -> None:
        self._cache.start_request(number, answer[:PROMPT])
        self._cache.add_active_response(number, answer)
        self._cache.stop_request(number)

    def enter(self, prompt: Ints) -> None:
        if self._request in self._cache.active_requests:
            self._cache.stop_request(self._request)
            self._cache.evict_cached_response(self._request)
        self._request -= 1
        self._text = prompt.tolist()
        self._cache.start_request(self._request, prompt)

    def draft(self) -> Sequence[int]:
        pattern = np.array(self._text[-TREE_DEPTH:], np.int32)
        tokens: Sequence[int] = self._cache.speculate(
            self._request, pattern, max_spec_tokens=LONGEST
        ).token_ids
        return tokens

    def append(self, token: int) -> None:
        self._text.append(token)
        self._cache.add_active_response(self._request, np.array([token], np.int32))


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """The figures of one system with so many tokens stored."""

    system: str
    stored_tokens: int
    median_us: float | None = None
    """A look-up for one request."""
    p99_us: float | None = None
    add_us_per_token: float | None = None
    """Storing an answer, per token."""
    bytes_per_token: float | None = None
    """None where too little memory was taken to tell."""
    accepted_per_lookup: float | None = None
    """Tokens of the drafts that were right, of at most `LONGEST`."""
    skipped: str | None = None
    """The reason why there are no figures; None if there are."""


@dataclass(slots=True)
class _Filled:
    name: str
    system: RememberingSystem
    stored: int
    add_s: float
    nbytes: float
    lookups_s: list[float] = field(default_factory=list)
    accepted: int = 0

    def look_up(self, text: Ints, first: int, last: int) -> None:
        """Draft at the positions from `first` on, each followed by the true token."""
        for position in range(first, last):
            began_s = time.perf_counter()
            drafted = self.system.draft()
            self.lookups_s.append(time.perf_counter() - began_s)
            truth = text[position : position + LONGEST].tolist()
            right = 0
            while right < min(len(drafted), len(truth)) and drafted[right] == truth[right]:
                right += 1
            self.accepted += right
            self.system.append(int(text[position]))

    def row(self) -> MemoryRow:
        times_us = np.array(self.lookups_s) * 1e6
        return MemoryRow(
            self.name,
            self.stored,
            median_us=float(np.median(times_us)),
            p99_us=float(np.quantile(times_us, 0.99)),
            add_us_per_token=self.add_s / self.stored * 1e6,
            bytes_per_token=self.nbytes / self.stored if self.nbytes > _TOLD_FROM else None,
            accepted_per_lookup=self.accepted / len(times_us),
        )


def bench_memory(sizes: Sequence[int] = TOKENS, report: Progress = silent) -> list[MemoryRow]:
    """Time every installed system with every number of tokens stored."""
    systems: dict[str, Any] = {"adaspec": _AdaspecAnswers}
    installed, missing = installed_systems()
    rows = []
    if "arctic" in installed:
        systems["arctic"] = _ArcticAnswers
    else:
        rows += [MemoryRow("arctic", size, skipped=missing["arctic"]) for size in sizes]
    _measure({name: make(ANSWER * 4) for name, make in systems.items()}, 4)  # compiles
    for done, size in enumerate(sizes):
        report(f"{size:,} tokens", done, len(sizes))
        shortage = reserve_memory(size * sum(_BYTES[name] for name in systems))
        if shortage is not None:
            rows += [MemoryRow(name, size, skipped=shortage) for name in systems]
            continue
        made = {name: make(size) for name, make in systems.items()}
        rows += _measure(made, max(size // ANSWER, 1))
    report("done", len(sizes), len(sizes))
    return sorted(rows, key=lambda row: (row.stored_tokens, row.system))


def _measure(systems: dict[str, RememberingSystem], answers: int) -> list[MemoryRow]:
    """Fill the systems with the same answers, and look the same texts up in them."""
    made = make_contexts(1, (answers + ASKED) * ANSWER, seed=answers)[0].reshape(-1, ANSWER)
    filled = []
    with without_garbage_collection():
        for name, system in systems.items():
            held = held_memory()
            began_s = time.perf_counter()
            for number in range(answers):
                system.add(number, made[number])
            took_s = time.perf_counter() - began_s
            stored = answers * ANSWER
            filled.append(_Filled(name, system, stored, took_s, held_memory() - held))
        for text in made[answers:]:
            for each in filled:
                each.system.enter(text[:PROMPT])
            for first in range(PROMPT, ANSWER, TURN):
                for each in filled:
                    each.look_up(text, first, min(first + TURN, ANSWER))
    return [each.row() for each in filled]

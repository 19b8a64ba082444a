"""Measures the speed of n-gram look-ups, adaspec's and others', on the same contexts in one run.

Every step appends one token to each context of a batch and looks up what follows. Rounds are
interleaved: each system and batch makes a few steps before it is the next one's turn, so that a
busy machine slows all of them alike. Medians are compared, and a fixed loop, timed in every round,
shows the noise. The first step of a turn has its own column, because it finds the caches full of
other systems' data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaspec.bench.machine import (
    reference_loop_s,
    reserve_memory,
    without_garbage_collection,
)
from adaspec.draft.index import NgramIndex
from adaspec.evaluate.options import Progress, silent

Ints = NDArray[np.int32]

CONTEXTS = (1024, 4096, 8192, 32768, 131072)
BATCHES = (1, 8, 32, 128)
ROUNDS = 20
STEPS_PER_ROUND = 10
# The most memory that one context token takes during the benchmark, including the benchmark's
# copies.
BYTES_PER_TOKEN = {"adaspec": 72, "vllm": 12, "arctic": 300}
MIN_N, MAX_N, MAX_DRAFTED = 3, 7, 8
TREE_DEPTH = 24
VOCABULARY = 32_000
COPIES_PER_TOKEN = 0.03
MEAN_COPY = 25.0
DISTINCT = 8


class LookupSystem(Protocol):
    """Holds the contexts of one batch and drafts for all of them in each step."""

    def admit(self, row: int, prompt: Ints) -> None:
        """Add the next request, which is that of this row, with its prompt."""

    def step(self, column: Ints) -> None:
        """Append one token to every context and look up what follows."""

    def nbytes(self) -> int | None:
        """The bytes held for all contexts; None if the system cannot say."""


MakeSystem = Callable[[int, int], LookupSystem]
"""Makes a system with room for (number of requests, maximum tokens per request)."""


class _AdaspecIndex:
    """adaspec's n-gram index, which appends and looks up all facts of a match."""

    def __init__(self, requests: int, max_tokens: int) -> None:
        self._index = NgramIndex()
        self._slots = np.arange(requests)  # the numbers that `open` will give
        self._ones = np.ones(requests, np.int64)

    def admit(self, row: int, prompt: Ints) -> None:
        self._index.open(prompt)

    def step(self, column: Ints) -> None:
        self._index.extend(self._slots, column, self._ones)
        self._index.lookup(self._slots)

    def nbytes(self) -> int:
        return self._index.nbytes()


class _VllmProposer:
    """vLLM's NgramProposer for matches of 3 to 7 tokens, which scans every context in each step."""

    def __init__(self, proposer_class: Any, requests: int, max_tokens: int) -> None:
        """Lay out an input batch as vLLM does."""
        width = max_tokens + MAX_DRAFTED
        self._proposer = proposer_class(
            SimpleNamespace(
                speculative_config=SimpleNamespace(
                    prompt_lookup_min=MIN_N,
                    prompt_lookup_max=MAX_N,
                    num_speculative_tokens=MAX_DRAFTED,
                ),
                model_config=SimpleNamespace(max_model_len=width),
                scheduler_config=SimpleNamespace(max_num_seqs=requests),
                parallel_config=SimpleNamespace(tensor_parallel_size=1),
            )
        )
        self._tokens = np.zeros((requests, width), np.int32)
        self._known = np.zeros(requests, np.int32)

    def admit(self, row: int, prompt: Ints) -> None:
        self._tokens[row, : len(prompt)] = prompt
        self._known[row] = len(prompt)

    def step(self, column: Ints) -> None:
        self._tokens[np.arange(len(column)), self._known] = column
        self._known += 1
        sampled = [[token] for token in column.tolist()]
        self._proposer.propose(MAX_DRAFTED, sampled, self._known, self._tokens)

    def nbytes(self) -> int:
        """The bytes of the token ids, which vLLM keeps anyway."""
        return self._tokens.nbytes


class _ArcticCache:
    """arctic-inference's suffix cache with per-request trees only, called as vLLM calls it."""

    def __init__(self, cache_class: Any, requests: int, max_tokens: int) -> None:
        """Make room for the contexts, because patterns are cut from their ends."""
        self._cache = cache_class(max_tree_depth=TREE_DEPTH, max_cached_requests=0)
        self._contexts = np.zeros((requests, max_tokens), np.int32)
        self._known = 0

    def admit(self, row: int, prompt: Ints) -> None:
        self._contexts[row, : len(prompt)] = prompt
        self._known = len(prompt)
        self._cache.start_request(row, prompt)

    def step(self, column: Ints) -> None:
        self._contexts[:, self._known] = column
        self._known += 1
        first = max(0, self._known - TREE_DEPTH)
        # The cache has no call for a batch.
        for row, token in enumerate(column.tolist()):
            self._cache.add_active_response(row, [token])
            self._cache.speculate(
                row, self._contexts[row, first : self._known], max_spec_tokens=MAX_DRAFTED
            )

    def nbytes(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class LookupRow:
    """The figures of one system, context length and batch; microseconds per request and step."""

    system: str
    context_tokens: int
    batch: int
    median_us: float | None = None
    p99_us: float | None = None
    cold_us: float | None = None
    """The median time of the first step after other systems have run."""
    index_prompt_ms: float | None = None
    """The median processor time for taking in one prompt of `context_tokens`."""
    bytes_per_token: float | None = None
    reference_us: float | None = None
    """The median time of a fixed loop in the same rounds."""
    skipped: str | None = None
    """The reason why there are no figures; None if there are."""


@dataclass(slots=True)
class _Measured:
    """One system with one batch, and its times so far."""

    name: str
    system: LookupSystem
    contexts: Ints
    prompts_s: list[float] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)

    def admit(self, tokens: int) -> None:
        for row, context in enumerate(self.contexts):
            # A prompt takes long enough for other processes to get a turn in between, so only
            # this thread's processor time is counted.
            began_s = time.thread_time()
            self.system.admit(row, context[:tokens])
            self.prompts_s.append(time.thread_time() - began_s)

    def step(self, position: int) -> None:
        column = np.ascontiguousarray(self.contexts[:, position])
        began_s = time.perf_counter()
        self.system.step(column)
        self.steps_s.append(time.perf_counter() - began_s)

    def row(self, tokens: int, reference_s: float) -> LookupRow:
        batch = len(self.contexts)
        per_request_us = np.array(self.steps_s) / batch * 1e6
        nbytes = self.system.nbytes()
        total_tokens = batch * (tokens + len(self.steps_s))
        return LookupRow(
            system=self.name,
            context_tokens=tokens,
            batch=batch,
            median_us=float(np.median(per_request_us)),
            p99_us=float(np.quantile(per_request_us, 0.99)),
            cold_us=float(np.median(per_request_us[::STEPS_PER_ROUND])),
            index_prompt_ms=float(np.median(self.prompts_s)) * 1e3,
            bytes_per_token=None if nbytes is None else nbytes / total_tokens,
            reference_us=reference_s * 1e6,
        )


def bench_lookup(
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = BATCHES,
    rounds: int = ROUNDS,
    report: Progress = silent,
) -> list[LookupRow]:
    """Time every installed system at every context length and batch size.

    `report` is called with the progress.
    """
    systems, missing = installed_systems()
    rows = [
        LookupRow(system, tokens, batch, skipped=reason)
        for system, reason in missing.items()
        for tokens in contexts
        for batch in batches
    ]
    for name, make in systems.items():  # compile now, so that the timed rounds do not pay for it
        warm_up = _Measured(name, make(2, 1000), make_contexts(2, 1000, seed=1))
        warm_up.admit(500)
        for position in range(500, 1000):
            warm_up.step(position)
    reference_loop_s(1)
    done, total = 0, len(contexts) * (rounds + 1)
    for tokens in contexts:
        report(f"{tokens:,} tokens: taking in prompts", done, total)
        measured, skipped = _admit_batches(systems, tokens, batches, rounds)
        reference = []
        with without_garbage_collection():
            for turn in range(rounds):
                reference.append(reference_loop_s(200))
                first = tokens + turn * STEPS_PER_ROUND
                for system_run in measured:
                    for position in range(first, first + STEPS_PER_ROUND):
                        system_run.step(position)
                done += 1
                report(f"{tokens:,} tokens", done, total)
        done += 1
        reference_s = float(np.median(reference))
        rows += skipped + [system_run.row(tokens, reference_s) for system_run in measured]
    order = [*systems, *missing]
    return sorted(rows, key=lambda row: (row.context_tokens, row.batch, order.index(row.system)))


def _admit_batches(
    systems: dict[str, MakeSystem], tokens: int, batches: Sequence[int], rounds: int
) -> tuple[list[_Measured], list[LookupRow]]:
    """Make every system with the prompts of every batch; also rows of those that lack memory."""
    measured, skipped = [], []
    for batch in batches:
        contexts = None
        for name, make in systems.items():
            shortage = reserve_memory(batch * tokens * BYTES_PER_TOKEN[name])
            if shortage is not None:
                skipped.append(LookupRow(name, tokens, batch, skipped=shortage))
                continue
            if contexts is None:
                contexts = make_contexts(batch, tokens + rounds * STEPS_PER_ROUND, tokens + batch)
            measured.append(_Measured(name, make(*contexts.shape), contexts))
            measured[-1].admit(tokens)
    return measured, skipped


def installed_systems() -> tuple[dict[str, MakeSystem], dict[str, str]]:
    """How to make each installed system, and why each of the others cannot be made."""
    systems: dict[str, MakeSystem] = {"adaspec": _AdaspecIndex}
    missing: dict[str, str] = {}
    for name, full_name, make, module, class_name in _OPTIONAL_SYSTEMS:
        try:
            systems[name] = partial(make, getattr(import_module(module), class_name))
        except Exception as error:  # a half-installed package fails in many ways
            line = (str(error) or type(error).__name__).splitlines()[0]
            missing[name] = f"{full_name} cannot be imported: {line}"
    return systems, missing


_VLLM = "vllm.v1.spec_decode.ngram_proposer"
_ARCTIC = "arctic_inference.suffix_decoding"
_OPTIONAL_SYSTEMS: tuple[tuple[str, str, Callable[..., LookupSystem], str, str], ...] = (
    ("vllm", "vLLM's NgramProposer", _VllmProposer, _VLLM, "NgramProposer"),
    ("arctic", "arctic-inference", _ArcticCache, _ARCTIC, "SuffixDecodingCache"),
)


def make_contexts(count: int, tokens: int, seed: int) -> Ints:
    """Make `count` different contexts of that many tokens; the seed determines them.

    Words follow Zipf's law, and about every 30th starts a copy of some 25 earlier tokens. Per
    token, this gives about the matches, nodes and table entries of recorded chats and code edits.
    After the first few, each context is an earlier one with its words replaced by others, which
    costs the same to index.
    """
    generator = np.random.default_rng(seed)
    distinct_contexts = [_made_up_context(tokens, generator) for _ in range(min(count, DISTINCT))]
    contexts = np.empty((count, tokens), np.int32)
    for row in range(count):
        words = distinct_contexts[row % DISTINCT]
        if row >= DISTINCT:
            words = generator.permutation(VOCABULARY).astype(np.int32)[words]
        contexts[row] = words
    return contexts


def _made_up_context(tokens: int, generator: np.random.Generator) -> Ints:
    shares = 1.0 / np.arange(1, VOCABULARY + 1)
    cumulative = np.cumsum(shares) / shares.sum()
    fresh = np.searchsorted(cumulative, generator.random(tokens)).astype(np.int32)
    context = np.minimum(fresh, VOCABULARY - 1)
    position = int(generator.geometric(COPIES_PER_TOKEN))
    while position < tokens:
        span = min(int(generator.geometric(1 / MEAN_COPY)), position, tokens - position)
        source = int(generator.integers(0, position - span + 1))
        context[position : position + span] = context[source : source + span]
        position += span + int(generator.geometric(COPIES_PER_TOKEN))
    return context

"""How fast is the n-gram look-up: ours beside others', same contexts, one run.

Every step appends one token to each context of a batch and looks up what follows. Rounds are
interleaved: each system and batch makes a few steps, then the next one, so that a busy machine
slows all of them alike; medians are compared, and a fixed loop timed in every round shows the
noise. The first step of each turn finds the caches full of the others' data: it has a column of
its own.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from adaspec.bench.contexts import make_contexts
from adaspec.bench.lookup_systems import LookupSystem, installed_systems
from adaspec.bench.machine import free_memory, reference_loop, touch_memory
from adaspec.errors import BenchError

CONTEXTS = (1024, 4096, 8192, 32768, 131072)
BATCHES = (1, 8, 32, 128)
ROUNDS = 20
STEPS_PER_ROUND = 10
# What one context token costs at the worst while the bench runs, the bench's own copies included.
BYTES_PER_TOKEN = {"adaspec": 72, "vllm": 12, "arctic": 300}
MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class LookupRow:
    """One system at one context length and batch; times in microseconds per request and step."""

    system: str
    context_tokens: int
    batch: int
    median_us: float | None = None
    p99_us: float | None = None
    cold_us: float | None = None
    """Median of the first step after the other systems have run."""
    index_prompt_ms: float | None = None
    """Median processor time of taking in one prompt of `context_tokens`."""
    bytes_per_token: float | None = None
    reference_us: float | None = None
    """Median of a fixed loop in the same rounds."""
    skipped: str | None = None
    """Why there are no figures."""

    def to_json(self) -> dict[str, object]:
        """The row as `--json` prints it."""
        return asdict(self)


@dataclass(slots=True)
class _Lane:
    name: str
    batch: int
    system: LookupSystem
    contexts: NDArray[np.int32]
    prompts_s: list[float]
    steps_s: list[float]


def bench_lookup(
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = BATCHES,
    rounds: int = ROUNDS,
    report: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[LookupRow]:
    """Time every installed system at every context length and batch; `report` hears of progress."""
    for name, values in (("contexts", contexts), ("batches", batches), ("rounds", [rounds])):
        if not values or min(values) < 1:
            raise BenchError(f"{name}={list(values)}: give whole numbers from 1 up")
    systems, missing = installed_systems()
    rows: list[LookupRow] = []
    _warm_up(systems)
    total = len(contexts) * (rounds + 1)
    for at, tokens in enumerate(contexts):
        before = at * (rounds + 1)
        report(f"{tokens:,} tokens: taking in prompts", before, total)
        lanes = _start_lanes(systems, tokens, batches, rounds, rows)
        reference_s = _run_rounds(
            lanes,
            tokens,
            rounds,
            partial(_report_round, report, f"{tokens:,} tokens", before + 1, total),
        )
        rows += [_row_of(lane, tokens, reference_s) for lane in lanes]
    rows += [
        LookupRow(system, tokens, batch, skipped=reason)
        for system, reason in missing.items()
        for tokens in contexts
        for batch in batches
    ]
    order = {name: at for at, name in enumerate([*systems, *missing])}
    return sorted(rows, key=lambda row: (row.context_tokens, row.batch, order[row.system]))


def _report_round(
    report: Callable[[str, int, int], None], what: str, before: int, total: int, done: int
) -> None:
    report(what, before + done, total)


def _warm_up(systems: dict[str, Callable[[], LookupSystem]]) -> None:
    """Compile and page in what the timed rounds must not pay for."""
    for make in systems.values():
        words = make_contexts(2, 1000, seed=1)
        system = make()
        system.start(2, 1000)
        for row in range(2):
            system.admit(words[row, :500])
        for at in range(500, 1000):
            system.step(np.ascontiguousarray(words[:, at]))
    reference_loop(1)


def _start_lanes(
    systems: dict[str, Callable[[], LookupSystem]],
    tokens: int,
    batches: Sequence[int],
    rounds: int,
    rows: list[LookupRow],
) -> list[_Lane]:
    lanes: list[_Lane] = []
    for batch in batches:
        words = None
        for name, make in systems.items():
            needed = batch * tokens * BYTES_PER_TOKEN[name]
            free = free_memory()
            if needed > MEMORY_SHARE * free:
                reason = f"needs about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
                rows.append(LookupRow(name, tokens, batch, skipped=reason))
                continue
            if words is None:
                words = make_contexts(batch, tokens + rounds * STEPS_PER_ROUND, tokens + batch)
            touch_memory(needed)
            system = make()
            system.start(*words.shape)
            prompts_s = []
            for context in words:
                # Processor time: a prompt takes long enough for others to get a turn in between.
                began = time.thread_time()
                system.admit(context[:tokens])
                prompts_s.append(time.thread_time() - began)
            lanes.append(_Lane(name, batch, system, words, prompts_s, []))
    return lanes


def _run_rounds(
    lanes: list[_Lane], tokens: int, rounds: int, report: Callable[[int], None]
) -> float:
    """Step all lanes in turn; returns the reference loop's median in seconds."""
    reference: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for done in range(rounds):
            began = time.perf_counter()
            reference_loop(200)
            reference.append(time.perf_counter() - began)
            first = tokens + done * STEPS_PER_ROUND
            for lane in lanes:
                for at in range(first, first + STEPS_PER_ROUND):
                    column = np.ascontiguousarray(lane.contexts[:, at])
                    began = time.perf_counter()
                    lane.system.step(column)
                    lane.steps_s.append(time.perf_counter() - began)
            report(done)
    finally:
        if collecting:
            gc.enable()
    return float(np.median(reference))


def _row_of(lane: _Lane, tokens: int, reference_s: float) -> LookupRow:
    per_request_us = np.array(lane.steps_s) / lane.batch * 1e6
    held = lane.system.nbytes()
    known = lane.batch * (tokens + len(lane.steps_s))
    return LookupRow(
        system=lane.name,
        context_tokens=tokens,
        batch=lane.batch,
        median_us=float(np.median(per_request_us)),
        p99_us=float(np.quantile(per_request_us, 0.99)),
        cold_us=float(np.median(per_request_us[::STEPS_PER_ROUND])),
        index_prompt_ms=float(np.median(lane.prompts_s)) * 1e3,
        bytes_per_token=None if held is None else held / known,
        reference_us=reference_s * 1e6,
    )

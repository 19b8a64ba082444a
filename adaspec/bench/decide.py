"""What deciding costs: whole steps of learned policies, as the engine would drive them.

A step takes in what the last one emitted, looks up, plans, listens to a draft of three tokens and
settles. Rounds are interleaved: each policy, batch and context makes a few steps, then the next
one, so that a busy machine slows all of them alike; a fixed loop timed in every round shows the
noise.
"""

from __future__ import annotations

import gc
import itertools
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from adaspec.bench.machine import free_memory, held_memory, reference_loop, touch_memory
from adaspec.bench.requests import DRAFTED, OUTPUT, MadeUpBatch
from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.cost.model import CostModel
from adaspec.errors import BenchError
from adaspec.policy.learned import LearnedPolicy, load_policy
from adaspec.policy.shipped import shipped_policies

CONTEXTS = (1024, 4096, 32768)
BATCHES = (1, 8, 32, 128, 256)
STEPS = 400
STEPS_PER_ROUND = 10
_WARM_UP = 20
"""Steps before the clock runs: code is loaded, caches and branch predictors learn."""
_TENTHS = 10
BYTES_PER_TOKEN = 80
"""What one context token costs at the worst: its index, and the made-up text."""
MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class DecideRow:
    """One policy, batch and context; times in microseconds per step of the whole batch."""

    policy: str
    evidence: bool
    """Whether the policy listens to drafted tokens and confidences."""
    drafted: int
    """Tokens that the neural drafter drafted per step."""
    batch: int
    context_tokens: int
    median_us: float | None = None
    p99_us: float | None = None
    lookup_us: float | None = None
    """Taking in what came and looking up what follows it (medians, like those below)."""
    before_us: float | None = None
    """Features, prediction and planning."""
    while_us: float | None = None
    """Listening to drafted tokens but the last, and deciding to go on."""
    after_us: float | None = None
    """Choosing again, looking up behind the draft, splicing, and learning what came of it."""
    reference_us: float | None = None
    """Median of a fixed loop in the same rounds."""
    first_tenth_us: float | None = None
    last_tenth_us: float | None = None
    matched: float | None = None
    """Share of rows that had a match."""
    steps: int = 0
    skipped: str | None = None
    """Why there are no figures."""


@dataclass(frozen=True, slots=True)
class Decided:
    """All rows, and what memory the run took."""

    rows: list[DecideRow]
    first_tenth_mb: float
    last_tenth_mb: float
    peak_mb: float

    def to_json(self) -> dict[str, object]:
        """The result as `--json` prints it."""
        return asdict(self)


def find_benched(names: Sequence[str]) -> list[LearnedPolicy]:
    """The policies that are meant; without a name each shipped one."""
    if not names and not shipped_policies():
        raise BenchError(
            "no policy is shipped with this build: name one with --policy DIR "
            "(`adaspec train TRACES -o DIR` makes one)"
        )
    found: dict[str, LearnedPolicy] = {}
    for name in dict.fromkeys(names or shipped_policies()):
        policy = load_policy(name)
        if policy.name in found:
            raise BenchError(f"{name}: another policy is called {policy.name} too: rename a folder")
        found[policy.name] = policy
    return list(found.values())


def bench_decide(
    policies: Sequence[LearnedPolicy],
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = BATCHES,
    steps: int = STEPS,
    report: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Decided:
    """Time so many whole steps of every policy at every context length and batch.

    `report` hears of progress.
    """
    for name, values in (("contexts", contexts), ("batches", batches), ("steps", [steps])):
        if not values or min(values) < 1:
            raise BenchError(f"{name}={list(values)}: give whole numbers from 1 up")
    costs = [_cost_of(policy) for policy in policies]
    reference_loop(1)
    running: list[MadeUpBatch] = []
    rows: list[DecideRow] = []
    # Those that are compared make their steps one right after the other.
    cells = list(itertools.product(contexts, batches, zip(policies, costs, strict=True)))
    for done, (tokens, batch, (policy, cost)) in enumerate(cells):
        report("taking in prompts", done, len(cells))
        needed, free = batch * (tokens + OUTPUT) * BYTES_PER_TOKEN, free_memory()
        if needed > MEMORY_SHARE * free:
            reason = f"needs about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
            rows.append(_new_row(policy, batch, tokens, skipped=reason))
            continue
        touch_memory(needed)
        running.append(MadeUpBatch(policy, cost, batch, tokens))
    report("taking in prompts", len(cells), len(cells))
    reference_s, memory = _run(running, steps, report)
    rows += [_row_of(made_up, reference_s) for made_up in running]
    tenth = max(1, len(memory) // _TENTHS)
    order = [policy.name for policy in policies]
    rows.sort(key=lambda row: (order.index(row.policy), row.context_tokens, row.batch))
    return Decided(
        rows=rows,
        first_tenth_mb=float(np.median(memory[:tenth])) / 2**20,
        last_tenth_mb=float(np.median(memory[-tenth:])) / 2**20,
        peak_mb=_peak_memory() / 2**20,
    )


def _run(
    running: Sequence[MadeUpBatch], steps: int, report: Callable[[str, int, int], None]
) -> tuple[float, list[float]]:
    """Step all batches in turn; the reference loop's median in seconds, and memory per round."""
    reference: list[float] = []
    memory: list[float] = []
    for made_up in running:
        for _ in range(_WARM_UP):
            made_up.step(timed=False)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        done = 0
        while done < steps:
            turns = min(STEPS_PER_ROUND, steps - done)
            began = time.perf_counter()
            reference_loop(200)
            reference.append(time.perf_counter() - began)
            for made_up in running:
                for _ in range(turns):
                    made_up.step(timed=True)
            done += turns
            memory.append(held_memory())
            report("steps", done, steps)
    finally:
        if collecting:
            gc.enable()
    return float(np.median(reference)), memory


def _row_of(made_up: MadeUpBatch, reference_s: float) -> DecideRow:
    seconds = np.frombuffer(made_up.seconds).reshape(-1, 4)
    total = seconds.sum(1) * 1e6
    parts = np.median(seconds, axis=0) * 1e6
    tenth = max(1, len(total) // _TENTHS)
    return _new_row(
        made_up.policy,
        made_up.batch,
        made_up.tokens,
        median_us=float(np.median(total)),
        p99_us=float(np.quantile(total, 0.99)),
        lookup_us=float(parts[0]),
        before_us=float(parts[1]),
        while_us=float(parts[2]),
        after_us=float(parts[3]),
        reference_us=reference_s * 1e6,
        first_tenth_us=float(np.median(total[:tenth])),
        last_tenth_us=float(np.median(total[-tenth:])),
        matched=made_up.matched / (made_up.batch * made_up.steps),
        steps=len(total),
    )


def _new_row(policy: LearnedPolicy, batch: int, tokens: int, **figures: Any) -> DecideRow:
    drafted = min(DRAFTED, policy.neural_cap)
    return DecideRow(policy.name, policy.model.reads_evidence, drafted, batch, tokens, **figures)


def _cost_of(policy: LearnedPolicy) -> CostModel:
    """The cost model that the policy was trained for, or the default where it is not at hand."""
    found = None if policy.manifest is None else policy.manifest.cost_model
    return found or load_cost(DEFAULT)


def _peak_memory() -> float:
    """The most bytes that this process has held."""
    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return peak if sys.platform == "darwin" else peak * 1024

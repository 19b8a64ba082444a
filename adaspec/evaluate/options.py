"""How an evaluation is run, and how it reports progress."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from adaspec.cost.engine import ASYNC, ENGINES
from adaspec.documents import TRUTH, Rule, Rules, check_values, one_of, whole
from adaspec.errors import EvaluationError

CONCURRENCY = (1, 8, 32, 128)
LOADS = ",".join(map(str, CONCURRENCY))
MAX_CONCURRENCY = 4096
ORDERS = 3
RESAMPLES = 40
CAP = 48
MAX_SEED = 2**31 - 1
"""LightGBM's seeds are 32 bits."""

REPORT_SCHEMA = 1
ALL = "all"
"""The name of the mix of all workloads in reports."""
NONE = "none"
"""The name of no speculation in reports."""
MIN_GAP = 0.05
"""The smallest gap, as a share of none's throughput, for which "gap closed" is computed."""
Cell = tuple[str | None, int]
"""A workload, or None for the equal-weight mix of all, at a concurrency."""


class Progress(Protocol):
    """A function that is called as work advances, one stage after another."""

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Take note that `done` of `total` are finished in this stage."""


def silent(stage: str, done: float, total: float) -> None:
    """A `Progress` that ignores every call."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to evaluate: concurrencies, orders, intervals, and what steps are charged for."""

    concurrency: tuple[int, ...] = CONCURRENCY
    orders: int = ORDERS
    resamples: int = RESAMPLES
    seed: int = 0
    cap: int = CAP
    prefill: bool = True
    """Whether reading prompts takes time, by the target and by the neural drafter."""
    free_decisions: bool = False
    """Whether deciding takes no time."""
    engine: str = ASYNC
    """The engine whose order of events is replayed: one of `cost.engine.ENGINES`."""
    jobs: int = 0
    """The number of worker threads or processes; 0 means one per core."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and sort the concurrencies without repeats."""
        loads = self.concurrency
        loads = tuple(loads) if isinstance(loads, Iterable) else (loads,)
        object.__setattr__(self, "concurrency", loads)
        check_values(self, _RULES, "evaluation", EvaluationError)
        object.__setattr__(self, "concurrency", tuple(sorted(set(loads))))

    @property
    def workers(self) -> int:
        """The number of workers to use."""
        return self.jobs if self.jobs > 0 else os.cpu_count() or 1


_LOAD = whole(1, MAX_CONCURRENCY)
_RULES: Rules = {
    "concurrency": Rule(
        lambda loads: loads and all(map(_LOAD.holds, loads)),
        f"at least one number, each {_LOAD.expected}",
    ),
    "orders": whole(1, 1000),
    "resamples": whole(0, 10_000),
    "seed": whole(0, MAX_SEED),
    "cap": whole(1, 1000),
    **dict.fromkeys(("prefill", "free_decisions"), TRUTH),
    "engine": one_of(ENGINES),
    "jobs": whole(0, 4096),
}


def cells(workloads: tuple[str, ...], options: Options) -> list[Cell]:
    """The cells to replay: first those of the mix, then those of each workload.

    One workload alone is its own mix, and not replayed again.
    """
    names = (None, *workloads) if len(workloads) > 1 else (None,)
    return [(name, load) for name in names for load in options.concurrency]

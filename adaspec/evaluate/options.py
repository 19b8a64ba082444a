"""How an evaluation is run, and how it reports progress."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from adaspec.arguments import numbers_of, one_of, truth, whole_number
from adaspec.cost.engine import ENGINES, SYNC
from adaspec.errors import EvaluationError

CONCURRENCY = (1, 8, 32, 128)
MAX_CONCURRENCY = 4096
ORDERS = 3
RESAMPLES = 40
CAP = 48

ALL = "all"
"""The name of the mix of all workloads in reports."""
NONE = "none"
"""The name of no speculation in reports."""
MIN_GAP = 0.05
"""The smallest gap, as a share of none's throughput, for which "gap closed" is computed."""
Cell = tuple[str | None, int]
"""A workload, or None for the equal-weight mix of all, at a concurrency."""


def flag_of(option: str) -> str:
    """An option's flag on the command line, without its dashes."""
    return "no-prefill" if option == "prefill" else option.replace("_", "-")


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
    stress_splices: bool = False
    engine: str = SYNC
    """The engine whose order of events is replayed: one of `cost.engine.ENGINES`."""
    jobs: int = 0
    """The number of worker threads or processes; 0 means one per core."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and sort the concurrencies without repeats."""
        for name, (least, most) in _RANGES.items():
            number = whole_number(getattr(self, name), name, least, most, EvaluationError)
            object.__setattr__(self, name, number)
        for name in ("prefill", "free_decisions", "stress_splices"):
            truth(getattr(self, name), name, EvaluationError)
        one_of(self.engine, ENGINES, "engine", EvaluationError)
        loads = numbers_of(self.concurrency, "concurrency", 1, MAX_CONCURRENCY, EvaluationError)
        object.__setattr__(self, "concurrency", tuple(sorted(set(loads))))

    @property
    def workers(self) -> int:
        """The number of workers to use."""
        return self.jobs if self.jobs > 0 else os.cpu_count() or 1


_RANGES: dict[str, tuple[int, int | None]] = {
    "orders": (1, 1000),
    "resamples": (0, 10_000),
    "seed": (0, None),
    "cap": (1, 1000),
    "jobs": (0, None),
}


def cells(workloads: tuple[str, ...], options: Options) -> list[Cell]:
    """All cells of a report: first those of the mix, then those of each workload."""
    return [(name, load) for name in (None, *workloads) for load in options.concurrency]

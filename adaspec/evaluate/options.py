"""How an evaluation is run, and how it reports progress."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from adaspec.arguments import numbers_of, truth, whole_number
from adaspec.errors import EvaluationError

CONCURRENCY = (1, 8, 32, 128)
MAX_CONCURRENCY = 4096
ORDERS = 3
RESAMPLES = 40
CAP = 48

ALL = "all"
"""The name of the mix of all workloads in reports."""
MIN_GAP = 0.05
"""The smallest gap, as a share of none's throughput, for which "gap closed" is stated."""
Cell = tuple[str | None, int]
"""A workload (None: the equal-weight mix of all) at a concurrency."""


class Progress(Protocol):
    """Called as work advances; stages follow one another."""

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Take note that `done` of `total` are finished in this stage."""


def silent(stage: str, done: float, total: float) -> None:
    """A `Progress` that ignores every call."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to evaluate: loads, orders, intervals, and what steps are charged for."""

    concurrency: tuple[int, ...] = CONCURRENCY
    orders: int = ORDERS
    resamples: int = RESAMPLES
    seed: int = 0
    cap: int = CAP
    prefill: bool = False
    charge_decisions: bool = False
    stress_splices: bool = False
    jobs: int = 0
    """Worker threads or processes; 0: one per core."""

    def __post_init__(self) -> None:
        """Refuse values out of range; concurrencies ascend, each once."""
        for name, (least, most) in _RANGES.items():
            number = whole_number(getattr(self, name), name, least, most, EvaluationError)
            object.__setattr__(self, name, number)
        for name in ("prefill", "charge_decisions", "stress_splices"):
            truth(getattr(self, name), name, EvaluationError)
        loads = numbers_of(self.concurrency, "concurrency", 1, MAX_CONCURRENCY, EvaluationError)
        object.__setattr__(self, "concurrency", tuple(sorted(set(loads))))

    @property
    def workers(self) -> int:
        """How many workers to use."""
        return self.jobs if self.jobs > 0 else os.cpu_count() or 1


_RANGES: dict[str, tuple[int, int | None]] = {
    "orders": (1, 1000),
    "resamples": (0, 10_000),
    "seed": (0, None),
    "cap": (1, 1000),
    "jobs": (0, None),
}


def cells(workloads: tuple[str, ...], options: Options) -> list[Cell]:
    """Every cell of a report: the mix first, then each workload alone."""
    return [(name, load) for name in (None, *workloads) for load in options.concurrency]

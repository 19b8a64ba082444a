"""How an evaluation is run, and how it says how far it is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from adaspec.arguments import numbers_of, truth, whole_number
from adaspec.errors import EvaluationError

CONCURRENCY = (1, 8, 32, 128)
LARGEST_CONCURRENCY = 4096
ORDERS = 3
RESAMPLES = 40
CAP = 48


class Progress(Protocol):
    """Called as work advances; stages follow one another."""

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Say that `done` of `total` are through in this stage."""


def silent(stage: str, done: float, total: float) -> None:
    """A `Progress` that says nothing."""


@dataclass(frozen=True, slots=True)
class Options:
    """Everything about an evaluation but what is evaluated."""

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
        """Refuse what no evaluation can be run with; concurrencies ascend, each once."""
        for name, least, most in _WHOLE:
            number = whole_number(getattr(self, name), name, least, most, EvaluationError)
            object.__setattr__(self, name, number)
        for name in ("prefill", "charge_decisions", "stress_splices"):
            truth(getattr(self, name), name, EvaluationError)
        found = numbers_of(self.concurrency, "concurrency", 1, LARGEST_CONCURRENCY, EvaluationError)
        object.__setattr__(self, "concurrency", tuple(sorted(set(found))))

    @property
    def workers(self) -> int:
        """How many workers to use."""
        return self.jobs if self.jobs > 0 else os.cpu_count() or 1


_WHOLE = (
    ("orders", 1, 1000),
    ("resamples", 0, 10_000),
    ("seed", 0, None),
    ("cap", 1, 1000),
    ("jobs", 0, None),
)
"""(field, least, most)."""

Cell = tuple[str | None, int]
"""A workload (None: the equal-weight mix of all) at a concurrency."""


def cells(workloads: tuple[str, ...], options: Options) -> list[Cell]:
    """Every cell of a report: the mix first, then each workload alone."""
    names = (None, *workloads)
    return [(name, concurrency) for name in names for concurrency in options.concurrency]

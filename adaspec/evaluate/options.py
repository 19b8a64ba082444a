"""How an evaluation is run, and how it reports progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from adaspec.cost.engine import ASYNC, Engine
from adaspec.errors import EvaluationError
from adaspec.records import check

CONCURRENCY = (1, 8, 32, 128)
LOADS = ",".join(map(str, CONCURRENCY))
ORDERS = 3
RESAMPLES = 40
CAP = 48
MAX_SEED = 2**31 - 1
"""LightGBM's seeds are 32 bits."""

REPORT_SCHEMA = 1
ALL = "all"
NONE = "none"
MIN_GAP = 0.05
"""The smallest gap, as a share of none's throughput, for which "gap closed" is computed."""
Cell = tuple[str | None, int]
"""A workload, or None for the equal-weight mix of all, at a concurrency."""


Progress = Callable[[str, float, float], None]
"""A function that is told that so much of a total is done in a stage of the work."""


def silent(stage: str, done: float, total: float) -> None:
    """A `Progress` that ignores every call."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to evaluate: concurrencies, orders, intervals, and what steps are charged for."""

    concurrency: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=4096)], ...],
        Meta(min_length=1, description="at least one number, each a whole number from 1 to 4096"),
    ] = CONCURRENCY
    orders: Annotated[int, Meta(ge=1, le=1000)] = ORDERS
    resamples: Annotated[int, Meta(ge=0, le=10_000)] = RESAMPLES
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] = 0
    cap: Annotated[int, Meta(ge=1, le=1000)] = CAP
    prefill: bool = True
    """Whether reading prompts takes time, by the target and by the neural drafter."""
    free_decisions: bool = False
    engine: Engine = ASYNC
    jobs: Annotated[int, Meta(ge=0, le=4096)] = 0
    """The number of worker threads or processes; 0 means one per core."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and sort the concurrencies without repeats."""
        loads = self.concurrency
        loads = tuple(loads) if isinstance(loads, Iterable) else (loads,)
        object.__setattr__(self, "concurrency", loads)
        check(self, "evaluation", EvaluationError)
        object.__setattr__(self, "concurrency", tuple(sorted(set(loads))))

    @property
    def workers(self) -> int:
        """The number of workers to use."""
        return self.jobs if self.jobs > 0 else os.cpu_count() or 1

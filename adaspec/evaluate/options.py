"""How an evaluation is run, and how it reports progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Meta

from adaspec.cost import ASYNC, Engine
from adaspec.errors import EvaluationError
from adaspec.records import check

if TYPE_CHECKING:  # replays take a second to load
    from adaspec.replay.loop import Result

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


Positive = Annotated[float, Meta(gt=0, le=1e9, description="a number above 0")]
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
    arrivals: str | None = None
    """When requests come: see `traffic.parse_arrivals`. None: as others end, in a closed loop."""
    rate_scale: Positive = 1.0
    """Requests come so many times as fast as the arrivals say."""
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096)] = 256
    """How many requests run at once in an open loop; others wait."""
    slo_ttft_ms: Positive | None = None
    """What a request's first token may take for it to count as served well, and each next one."""
    slo_tpot_ms: Positive | None = None
    max_step_ms: Positive | None = None
    """Policies plan no step that takes longer."""
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
    def has_goal(self) -> bool:
        """Whether requests are to be served within some time."""
        return self.slo_ttft_ms is not None or self.slo_tpot_ms is not None

    def goodput(self, result: Result) -> float:
        """Requests per second that were served within the time that they may take."""
        first, token = (
            np.inf if x is None else x / 1e3 for x in (self.slo_ttft_ms, self.slo_tpot_ms)
        )
        well = (result.first_s <= first) & (result.token_s <= token)
        return float(well.sum()) / result.time_s

    def score(self, result: Result) -> float:
        """What contenders are compared by: goodput where requests have a goal, else tokens/s."""
        return self.goodput(result) if self.has_goal else result.tokens_per_s

    @property
    def longest_s(self) -> float | None:
        """The operator's bound in seconds."""
        return None if self.max_step_ms is None else self.max_step_ms / 1e3

    @property
    def workers(self) -> int:
        """The number of workers to use."""
        return self.jobs if self.jobs > 0 else os.cpu_count() or 1

"""The headline: how far ahead a named policy is, and how much of the gap it closes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from adaspec.evaluate.hindsight import (
    ADAPTIVE_BEST,
    FIXED_BEST,
    HYBRID_BEST,
    STATIC_BEST,
    STATIC_ONE,
)
from adaspec.evaluate.intervals import Interval
from adaspec.evaluate.measures import Measure

LEAST_GAP = 0.05
"""The least gap, as a share of none's throughput, of which a share is worth stating."""


class Compared(Protocol):
    """Contenders of one cell, comparable by the name of their row."""

    measures: dict[str, Measure]
    tuned: dict[str, str]
    """By policy, the row of the static rule tuned on its training requests."""

    def speed(self, name: str) -> float | None:
        """Tokens per second of a row."""

    def ratio(self, name: str, other: str) -> float | None:
        """Throughput of one row over that of another."""

    def ratio_interval(self, name: str, other: str) -> Interval | None:
        """Paired interval of that ratio."""


def headline_entry(
    workload: str, concurrency: int, name: str, cell: Compared, alone: Sequence[Compared]
) -> dict[str, Any]:
    """One entry; `alone` are the cells of each workload at the same concurrency."""
    spread = cell.ratio_interval(name, STATIC_BEST)
    lifts = [_lift(each, name, STATIC_BEST) for each in alone]
    known = [lift for lift in lifts if lift is not None]
    tuned = cell.tuned.get(name)
    return {
        "workload": workload,
        "concurrency": concurrency,
        "policy": name,
        "lift_over_static_best": _lift(cell, name, STATIC_BEST),
        "lift_ci95": _minus_1(spread),
        "lift_over_static_tuned": None if tuned is None else _lift(cell, name, tuned),
        "lift_over_static_tuned_ci95": _minus_1(
            None if tuned is None else cell.ratio_interval(name, tuned)
        ),
        "lift_over_static_one": _lift(cell, name, STATIC_ONE),
        "lift_over_adaptive_best": _lift(cell, name, ADAPTIVE_BEST),
        "lift_over_hybrid_best": _lift(cell, name, HYBRID_BEST),
        "lift_over_fixed_best": _lift(cell, name, FIXED_BEST),
        "gap_closed": _gap_closed(cell, name, "oracle:plan-splice"),
        "gap_closed_combine": _gap_closed(cell, name, "oracle:combine"),
        "worst_workload_lift": min(known) if known else None,
        "decide_share_of_step": cell.measures[name].decision_share,
    }


def _minus_1(spread: Interval | None) -> list[float] | None:
    return None if spread is None else [spread[0] - 1, spread[1] - 1]


def _lift(cell: Compared, name: str, other: str) -> float | None:
    ratio = cell.ratio(name, other)
    return None if ratio is None else ratio - 1


def _gap_closed(cell: Compared, name: str, oracle: str) -> float | None:
    """(policy - fixed:best) / (oracle - fixed:best); None where there is hardly a gap to close.

    Below `LEAST_GAP` of none's throughput the quotient is noise: at concurrency 128 a greedy
    oracle may lie under fixed:best, or so little over it that any policy "closes" -300%.
    """
    mine, bound, start = cell.speed(name), cell.speed(oracle), cell.speed(FIXED_BEST)
    plain = cell.speed("none")
    if mine is None or bound is None or start is None or plain is None:
        return None
    if bound <= start or bound - start < LEAST_GAP * plain:
        return None
    return (mine - start) / (bound - start)

"""A report.json as one typed value, which all tables and plots are made from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from adaspec.errors import EvaluationError
from adaspec.evaluate.options import ALL
from adaspec.evaluate.render.table import Interval

SCHEMA = 1

BASELINES = ("fixed:best", "hybrid:best", "adaptive:best", "static:one", "static:tuned")
OPPONENT = "static:best"
ORACLES = (
    "oracle:ngram",
    "oracle:neural",
    "oracle:combine",
    "oracle:plan",
    "oracle:plan-splice",
    "oracle:dp",
    "oracle:dp-splice",
)
BOUNDS = ("oracle:combine", "oracle:plan", "oracle:plan-splice", "oracle:dp", "oracle:dp-splice")
"""The oracles that bound a policy which uses both sources."""
OPPONENTS = (OPPONENT, *BASELINES)
"""The rows over which a headline states a lift."""

Cell = tuple[str, int, str]
"""Workload, concurrency, policy."""


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one workload at one concurrency; None means not computed."""

    speedup: float | None = None
    interval: Interval | None = None
    """The 95% interval of the speedup."""
    accepted_per_step: float | None = None
    drafted_per_step: float | None = None
    neural_steps_share: float | None = None
    token_s_median: float | None = None
    token_s_p95: float | None = None
    """The 95th percentile over requests of seconds per output token."""
    spec: str | None = None
    """The winning setting, if the policy is the best of several."""
    edge: tuple[str, ...] = ()
    """The parameters of the winning setting whose value is on the edge of the grid."""
    seen_in_training: bool = False


@dataclass(frozen=True, slots=True)
class Headline:
    """The lifts of a named policy; None means not computed."""

    lifts: Mapping[str, float | None] = field(default_factory=dict)
    """Opponent -> the lift over it."""
    interval: Interval | None = None
    """The paired 95% interval of the lift over static:best."""
    gap_closed: float | None = None
    gap_closed_combine: float | None = None
    worst_workload_lift: float | None = None
    decide_share_of_step: float | None = None

    @property
    def lift(self) -> float | None:
        """The lift over static:best."""
        return self.lifts.get(OPPONENT)

    @property
    def is_winner(self) -> bool:
        """Whether the policy is the same setting that static:best picked."""
        return self.lift == 0 and self.interval in (None, (0.0, 0.0))


@dataclass(frozen=True, slots=True)
class Winner:
    """A setting, and the neighbouring concurrencies at which it won."""

    spec: str
    edge: tuple[str, ...]
    concurrencies: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A report, with rows and headlines by workload, concurrency and policy."""

    document: Mapping[str, Any]
    """The document that `eval --json` prints."""
    rows: Mapping[Cell, Row]
    headlines: Mapping[Cell, Headline]
    workloads: tuple[str, ...]
    """The workloads, with the mix first if it was run."""
    concurrencies: tuple[int, ...]
    policies: tuple[str, ...]
    """The policies that `--policy` named, in the order given."""
    baselines: tuple[str, ...]
    oracles: tuple[str, ...]
    """The oracles that have rows and were not named by `--policy`; `baselines` is alike."""
    used: Mapping[str, int]
    """Workload -> the number of requests evaluated."""
    left_out: Mapping[str, Mapping[str, int]]
    """Workload -> reason -> the number of requests left out."""
    calibration: Mapping[str, Any] | None
    ablations: Mapping[str, Any] | None

    @property
    def main(self) -> str | None:
        """The workload to show first: the mix, or else the first workload."""
        return self.workloads[0] if self.workloads else None

    @property
    def representative(self) -> str | None:
        """The workload that stands for all: the mix, or the only one; None if there is neither."""
        return self.main if self.has_all or len(self.workloads) == 1 else None

    @property
    def has_all(self) -> bool:
        """Whether the mix of all workloads was run."""
        return ALL in self.workloads

    @property
    def alone(self) -> tuple[str, ...]:
        """The workloads that were run by themselves; none if there is only one beside the mix."""
        names = tuple(name for name in self.workloads if name != ALL)
        return names if len(names) > 1 or not self.has_all else ()

    @property
    def named(self) -> tuple[str, ...]:
        """The policies that `--policy` named and that have rows."""
        present = {policy for _, _, policy in self.rows}
        return tuple(policy for policy in self.policies if policy in present)

    @property
    def shown(self) -> tuple[str, ...]:
        """All policies that have rows, in the order of the tables."""
        return (*self.baselines, *self.named, *self.oracles)

    @property
    def is_lockstep(self) -> bool:
        """Whether copies of one request advanced together."""
        return self.document.get("batching") == "lockstep"

    def row(self, workload: str, concurrency: int, policy: str) -> Row:
        """The row of a cell and policy, or an empty one if there is none."""
        return self.rows.get((workload, concurrency, policy), Row())

    def headline(self, workload: str, concurrency: int, policy: str) -> Headline:
        """The headline of a cell and policy, or an empty one if there is none."""
        return self.headlines.get((workload, concurrency, policy), Headline())

    def speedups(self, workload: str, policy: str) -> list[float | None]:
        """The speedup at each concurrency."""
        return [self.row(workload, load, policy).speedup for load in self.concurrencies]

    def lifts(self, workload: str, policy: str) -> list[float | None]:
        """The lift over static:best at each concurrency."""
        return [self.headline(workload, load, policy).lift for load in self.concurrencies]

    def seen_in_training(self, policy: str) -> bool:
        """Whether any row of `policy` has requests that the policy was trained on."""
        return any(row.seen_in_training for cell, row in self.rows.items() if cell[2] == policy)

    def equals_opponent(self, policy: str) -> bool:
        """Whether a baseline is as fast as static:best in every cell, as the same settings won."""
        return all(
            self.speedups(name, policy) == self.speedups(name, OPPONENT) for name in self.workloads
        )

    def winners(self, workload: str, policy: str) -> list[Winner]:
        """The settings that won; one entry for neighbouring concurrencies with the same setting."""
        rows = [(self.row(workload, load, policy), load) for load in self.concurrencies]
        won = [((row.spec, row.edge), load) for row, load in rows if row.spec not in (None, policy)]
        return [
            Winner(str(spec), edge, tuple(load for _, load in pairs))
            for (spec, edge), pairs in groupby(won, key=lambda pair: pair[0])
        ]

    def left_out_by_reason(self) -> dict[str, int]:
        """Reason -> the number of requests left out, over all workloads."""
        return dict(sum(map(Counter, self.left_out.values()), Counter[str]()))

    def known(self, values: Sequence[float | None]) -> list[tuple[int, float]]:
        """(concurrency, value) for each value but None; `values` has one per concurrency."""
        pairs = zip(self.concurrencies, values, strict=True)
        return [(load, value) for load, value in pairs if value is not None]


def parse_report(document: Mapping[str, Any]) -> Report:
    """The report in a document; raises an `EvaluationError` if the schema is another."""
    schema = document.get("schema")
    if schema != SCHEMA:
        raise EvaluationError(
            f"report: schema {schema!r} is not {SCHEMA}, the one this build reads: "
            "run 'adaspec eval' again with this build, or install a newer adaspec"
        )
    traces = document.get("traces", {})
    rows = {_cell(entry): _row(entry) for entry in document["rows"]}
    present = {policy for _, _, policy in rows}
    policies = tuple(document.get("policies", ()))
    return Report(
        document=document,
        rows=rows,
        headlines={_cell(entry): _headline(entry) for entry in document.get("headline", ())},
        workloads=tuple(
            sorted(dict.fromkeys(cell[0] for cell in rows), key=lambda name: name != ALL)
        ),
        concurrencies=tuple(sorted({concurrency for _, concurrency, _ in rows})),
        policies=policies,
        baselines=_others(("none", *BASELINES, OPPONENT), present, policies),
        oracles=_others(ORACLES, present, policies),
        used=traces.get("requests", {}),
        left_out=traces.get("left_out", {}),
        calibration=document.get("calibration") or None,
        ablations=document.get("ablations") or None,
    )


def _row(entry: Mapping[str, Any]) -> Row:
    detail = entry["detail"]
    latency = detail.get("latency_s") or {}
    return Row(
        speedup=number(entry["speedup"]),
        interval=_interval(entry["ci95"]),
        accepted_per_step=number(entry["accepted_per_step"]),
        drafted_per_step=number(entry["drafted_per_step"]),
        neural_steps_share=number(entry["neural_steps_share"]),
        token_s_median=number(latency.get("median")),
        token_s_p95=number(latency.get("p95")),
        spec=detail.get("spec"),
        edge=tuple(detail.get("edge") or ()),
        seen_in_training=bool(detail.get("seen_in_training")),
    )


def _headline(entry: Mapping[str, Any]) -> Headline:
    return Headline(
        # An older report lacks opponents that were added since.
        lifts={
            name: number(entry.get(f"lift_over_{name.replace(':', '_')}")) for name in OPPONENTS
        },
        interval=_interval(entry["lift_ci95"]),
        gap_closed=number(entry["gap_closed"]),
        gap_closed_combine=number(entry["gap_closed_combine"]),
        worst_workload_lift=number(entry["worst_workload_lift"]),
        decide_share_of_step=number(entry["decide_share_of_step"]),
    )


def number(value: Any) -> float | None:
    """`value` as a float, or None if it is null or not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


def _interval(value: Sequence[Any] | None) -> Interval | None:
    low, high = (number(end) for end in value or (None, None))
    return None if low is None or high is None else (low, high)


def _cell(entry: Mapping[str, Any]) -> Cell:
    return entry["workload"], entry["concurrency"], entry["policy"]


def _others(names: Sequence[str], present: set[str], policies: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in present and name not in policies)

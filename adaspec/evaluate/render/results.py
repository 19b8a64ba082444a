"""One report read by name: rows by (workload, concurrency, policy), numbers or None."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adaspec.errors import EvaluationError

Report = Mapping[str, Any]
"""What `eval --json` prints, as a dict."""

SCHEMA = 1
ALL = "all"

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
"""The oracles that hold for a policy free to use both sources."""

LIFTS = {
    "static:best": "lift_over_static_best",
    "static:tuned": "lift_over_static_tuned",
    "static:one": "lift_over_static_one",
    "adaptive:best": "lift_over_adaptive_best",
    "hybrid:best": "lift_over_hybrid_best",
    "fixed:best": "lift_over_fixed_best",
}
"""Opponent -> its key in a headline entry."""

Interval = tuple[float, float]


def number(value: object) -> float | None:
    """`value` as a float, or None where it is null, not a number or not finite."""
    if value is None or isinstance(value, bool):
        return None
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def interval(value: object) -> Interval | None:
    """`value` as (low, high), or None where either end is missing."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return None
    low, high = number(value[0]), number(value[1])
    return None if low is None or high is None else (low, high)


@dataclass(frozen=True, slots=True)
class Winner:
    """The spec that won a grid, for the concurrencies where it did."""

    concurrencies: tuple[int, ...]
    spec: str
    edge: tuple[str, ...]
    """Parameters on the grid's edge; ("",) where the report only says that there is one."""


class Results:
    """A report's rows and headline by name; what was not computed is None."""

    def __init__(self, report: Report) -> None:
        schema = report.get("schema")
        if schema != SCHEMA:
            raise EvaluationError(
                f"report: schema {schema!r} is not {SCHEMA}, the one this build reads: "
                "run 'adaspec eval' again with this build, or install a newer adaspec"
            )
        self.report = report
        rows: list[Mapping[str, Any]] = list(report.get("rows") or [])
        headline: list[Mapping[str, Any]] = list(report.get("headline") or [])
        self._rows = {_key(row): row for row in rows}
        self._headline = {_key(entry): entry for entry in headline}
        found = _unique(str(row["workload"]) for row in rows)
        self.workloads = sorted(found, key=lambda name: name != ALL)
        self.concurrencies = sorted({int(row["concurrency"]) for row in rows})
        self.has_all = ALL in found
        present = _unique(str(row["policy"]) for row in rows)
        self.is_protocol = bool(report.get("protocol")) or (not headline and "none" not in present)
        reference = {"none", OPPONENT, *BASELINES, *ORACLES}
        self.policies: list[str] = _unique(
            [
                *(str(name) for name in report.get("policies") or []),
                *(str(entry["policy"]) for entry in headline),
                *(name for name in present if self.is_protocol or name not in reference),
            ]
        )
        """What `--policy` named, in the order given."""
        self._present = set(present)

    @property
    def main(self) -> str | None:
        """The workload to show first: "all", else the only or first one."""
        return self.workloads[0] if self.workloads else None

    @property
    def alone(self) -> list[str]:
        """The workloads run by themselves; none where "all" already is the one there is."""
        names = [name for name in self.workloads if name != ALL]
        return names if len(names) > 1 or not self.has_all else []

    def shown(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that some row holds and that `--policy` did not name."""
        return [name for name in names if name in self._present and name not in self.policies]

    def order(self) -> list[str]:
        """Every policy that has rows: none, baselines, the opponent, named ones, oracles."""
        first = self.shown(("none", *BASELINES, OPPONENT))
        return [*first, *(p for p in self.policies if p in self._present), *self.shown(ORACLES)]

    def row(self, workload: str, concurrency: int, policy: str) -> Mapping[str, Any]:
        """The row, or an empty mapping where there is none."""
        return self._rows.get((workload, concurrency, policy), {})

    def value(self, workload: str, concurrency: int, policy: str, key: str) -> float | None:
        """One number of a row."""
        return number(self.row(workload, concurrency, policy).get(key))

    def interval(self, workload: str, concurrency: int, policy: str) -> Interval | None:
        """The 95% interval of a row's speedup."""
        return interval(self.row(workload, concurrency, policy).get("ci95"))

    def detail(self, workload: str, concurrency: int, policy: str) -> Mapping[str, Any]:
        """A row's `detail`, or an empty mapping."""
        found = self.row(workload, concurrency, policy).get("detail")
        return found if isinstance(found, Mapping) else {}

    def headline(self, workload: str, concurrency: int, policy: str) -> Mapping[str, Any]:
        """A headline entry, or an empty mapping where there is none."""
        return self._headline.get((workload, concurrency, policy), {})

    def lift(self, workload: str, concurrency: int, policy: str) -> float | None:
        """The lift over static:best."""
        return number(self.headline(workload, concurrency, policy).get(LIFTS[OPPONENT]))

    def lift_interval(self, workload: str, concurrency: int, policy: str) -> Interval | None:
        """The paired 95% interval of the lift over static:best."""
        return interval(self.headline(workload, concurrency, policy).get("lift_ci95"))

    def is_winner(self, workload: str, concurrency: int, policy: str) -> bool:
        """Whether a named policy is the very setting that static:best picked in a cell."""
        spread = self.lift_interval(workload, concurrency, policy)
        return self.lift(workload, concurrency, policy) == 0 and spread in (None, (0.0, 0.0))

    @property
    def is_lockstep(self) -> bool:
        """Whether copies of one request advanced together."""
        return self.report.get("batching") == "lockstep"

    def coincides(self, policy: str) -> bool:
        """Whether a baseline is as fast as static:best in every cell: the same settings won."""
        cells = [(w, c) for w in self.workloads for c in self.concurrencies]
        pairs = [
            (self.value(w, c, policy, "speedup"), self.value(w, c, OPPONENT, "speedup"))
            for w, c in cells
        ]
        known = [pair for pair in pairs if pair != (None, None)]
        return bool(known) and all(mine == best for mine, best in known)

    def adaptive_wins(self) -> list[tuple[str, int, float, float]]:
        """Cells where adaptive:best beats static:best by over 0.1%: both their speedups."""
        found = []
        for workload in self.workloads:
            for concurrency in self.concurrencies:
                mine = self.value(workload, concurrency, "adaptive:best", "speedup")
                best = self.value(workload, concurrency, OPPONENT, "speedup")
                if mine is not None and best is not None and mine > 1.001 * best:
                    found.append((workload, concurrency, mine, best))
        return found

    def latency(self, workload: str, concurrency: int, policy: str, key: str) -> float | None:
        """Seconds per output token over requests; `key` is median or p95."""
        found = self.detail(workload, concurrency, policy).get("latency_s")
        return number(found.get(key)) if isinstance(found, Mapping) else None

    @property
    def has_headline(self) -> bool:
        """Whether any named policy has a lift to show."""
        return bool(self._headline)

    def seen_in_training(self, policy: str) -> bool:
        """Whether any row of `policy` was decided by a model that had trained on its requests."""
        return any(
            isinstance(row.get("detail"), Mapping) and row["detail"].get("seen_in_training")
            for key, row in self._rows.items()
            if key[2] == policy
        )

    def winners(self, workload: str, policy: str) -> list[Winner]:
        """The specs behind a `...:best`, neighbouring concurrencies with the same one together."""
        found: list[Winner] = []
        for concurrency in self.concurrencies:
            detail = self.detail(workload, concurrency, policy)
            spec = detail.get("spec")
            if spec is None or str(spec) == policy:
                continue
            edge = _edge(detail.get("edge"))
            if found and (found[-1].spec, found[-1].edge) == (str(spec), edge):
                together = (*found[-1].concurrencies, concurrency)
                found[-1] = Winner(together, str(spec), edge)
            else:
                found.append(Winner((concurrency,), str(spec), edge))
        return found


def _edge(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    if isinstance(value, Sequence):
        return tuple(str(each) for each in value)
    return ("",) if value else ()


def _key(entry: Mapping[str, Any]) -> tuple[str, int, str]:
    return str(entry["workload"]), int(entry["concurrency"]), str(entry["policy"])


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))

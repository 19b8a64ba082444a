"""What of a report a policy's manifest keeps: rounded, by name, nothing that names a folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from adaspec.evaluate.hindsight import STATIC_BEST

DIGITS = 6
NONE = "none"
LIFTS = (
    "lift_over_static_best",
    "lift_ci95",
    "lift_over_static_tuned",
    "lift_over_static_tuned_ci95",
    "lift_over_static_one",
    "lift_over_adaptive_best",
    "lift_over_fixed_best",
    "gap_closed",
    "worst_workload_lift",
)


def cells_of(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By workload and concurrency: speedups, lifts and latencies of the one policy judged."""
    rows = {(row["workload"], row["concurrency"], row["policy"]): row for row in report["rows"]}
    cells: dict[str, dict[str, Any]] = {}
    for entry in report["headline"]:
        at = (entry["workload"], entry["concurrency"])
        shown = {
            "policy": rows[(*at, entry["policy"])],
            "none": rows[(*at, NONE)],
            "static_best": rows[(*at, STATIC_BEST)],
        }
        none = shown["none"]["tokens_per_s"]
        cells.setdefault(at[0], {})[str(at[1])] = {
            "speedup": rounded(shown["policy"]["tokens_per_s"] / none),
            "speedup_static_best": rounded(shown["static_best"]["tokens_per_s"] / none),
            **{name: rounded(entry[name]) for name in LIFTS},
            "latency_s": {
                name: {key: rounded(value, 9) for key, value in row["detail"]["latency_s"].items()}
                for name, row in shown.items()
            },
        }
    return cells


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """A number, or each of a list, to so many digits; None where there is none."""
    if isinstance(value, list):
        return [rounded(each, digits) for each in value]
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), digits)

"""The part of a report that a policy's manifest keeps, and what it comes to in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adaspec.evaluate.hindsight import STATIC_BEST
from adaspec.evaluate.options import ALL
from adaspec.records import json_types

FEW = 30
"""A policy that was judged on fewer requests may be anything."""
_OPPONENTS = (
    ("lift_over_vllm_best", "lift_over_vllm_best_ci95", "the best of vLLM's own methods"),
    ("lift_over_static_best", "lift_ci95", "the best static rule"),
)


def metrics_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest keeps of a report, but for the policy's name, which is its folder's."""
    kept = ("orders", "resamples", "headline", "calibration")
    metrics = {key: json_types(document[key]) for key in kept if key in document}
    for entry in metrics.get("headline", ()):
        del entry["policy"]
    return {"requests": document["traces"]["requests"], **metrics}


def verdict(report: Mapping[str, Any]) -> list[str]:
    """What a policy gains on the requests kept back, a line for each load; and what is in doubt."""
    rows = {(row["workload"], row["concurrency"], row["policy"]): row for row in report["rows"]}
    lines = []
    for entry in report["headline"]:
        load = entry["concurrency"]
        if entry["workload"] != ALL:
            continue
        mine, rule = (rows.get((ALL, load, name)) for name in (entry["policy"], STATIC_BEST))
        leads = [
            f"{_lead(entry[key], entry.get(ends))} over {opponent}"
            for key, ends, opponent in _OPPONENTS
            if entry.get(key) is not None
        ]
        speedup = "" if mine is None else f"{mine['speedup']:.2f}x no speculation, "
        lines.append(f"{load} at once: {speedup}{', '.join(leads)}")
        lead = entry.get("lift_over_static_best")
        if lead is not None and lead < 0 and rule is not None:
            spec = rule["detail"].get("spec")
            lines.append(f"  that rule, '{spec}', is ahead: if you serve at this load, serve it")
    judged = sum(report["traces"]["requests"].values())
    if lines and judged < FEW:
        lines.append(f"judged on {judged} requests alone: record {4 * FEW} or more to be sure")
    return lines


def _lead(lead: float, ends: Sequence[float] | None) -> str:
    between = "" if ends is None else f" ({ends[0]:+.1%} .. {ends[1]:+.1%})"
    return f"{lead:+.1%}{between}"

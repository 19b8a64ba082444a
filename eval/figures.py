"""The figures that README and docs show, from the committed reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
REPORTS = CHECKOUT / "eval" / "reports"
Row = dict[str, Any]
REPLAYS = {
    "llama-3.1-8b-instruct-h100-async": "Llama-3.1-8B-Instruct with EAGLE, public recordings",
    "reference-pair-h100-async": "SmolLM2-135M-Instruct with an EAGLE-3 head, traces that ship",
}
"""Cross-fitted report of an async engine at measured costs -> its models."""
PAPER = {
    "llama-3.1-8b-instruct-h100-sync-paper": "Llama-3.1-8B-Instruct",
    "reference-pair-sync-paper": "SmolLM2-135M-Instruct",
}
"""The same of a sync engine at the published costs."""


def report(name: str) -> dict[str, Any]:
    """A committed report."""
    document: dict[str, Any] = json.loads((REPORTS / name / "report.json").read_text("utf-8"))
    return document


def lead_rows(name: str) -> list[Row]:
    """The figures of one cross-fitted report per load, beside vLLM's methods and static rules."""
    crossfit = report(name)
    (policy,) = crossfit["policies"]
    cells = {(row["concurrency"], row["policy"]): row for row in crossfit["rows"] if is_mixed(row)}
    rows = []
    for entry in filter(is_mixed, crossfit["headline"]):
        load = entry["concurrency"]
        mine, vllm, static, foresight = (
            cells[load, row] for row in (policy, "vllm:best", "static:best", "oracle:plan-splice")
        )
        rows.append(
            {
                "concurrency": load,
                "speedup": mine["speedup"],
                "speedup_ci95": mine["ci95"],
                "vllm_best": vllm["detail"]["spec"].split(", "),
                "vllm_best_speedup": vllm["speedup"],
                "lift_over_vllm_best": entry["lift_over_vllm_best"],
                "lift_over_vllm_best_ci95": entry["lift_over_vllm_best_ci95"],
                "static_best": static["detail"]["spec"].split(", "),
                "static_best_speedup": static["speedup"],
                "lift_over_static_best": entry["lift_over_static_best"],
                "lift_ci95": entry["lift_ci95"],
                "worst_workload_lift": entry["worst_workload_lift"],
                "foresight_speedup": foresight["speedup"],
                "gap_closed": entry["gap_closed"],
            }
        )
    return rows


def summary() -> dict[str, Any]:
    """All derived figures that README and docs show."""
    return {
        "schema": 1,
        "command": "python eval/summary.py",
        "replays": {name: lead_rows(name) for name in REPLAYS},
    }


def is_mixed(row: dict[str, Any]) -> bool:
    """Whether a row is of all workloads together."""
    return bool(row["workload"] == "all")

"""The figures that README and docs show, from the committed reports."""

from __future__ import annotations

import json
import math
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
OLDER = ("llama-3.1-8b-instruct-h100", "reference-pair-h100")
"""Those of a sync engine at the published costs, with policies of before."""
WITH_MEMORY = {
    "llama-3.1-8b-instruct-h100": ("llama-3.1-8b-memory", "llama-3.1-8b-memory"),
    "reference-pair-h100": ("reference-pair-memory-warm", "reference-pair-memory"),
}
"""Cross-fitted report -> the report of earlier answers on the same recordings, and its policy."""
VLLM_OFFERS = ("fixed:best", "adaptive:best")
"""The rows of a report that stand for vLLM's own methods; suffix decoding has its own report."""
CONTEXT_TOKENS = 1024
"""The context length of the decisions with quoted times; longer contexts take as long."""


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
                "vllm_best": vllm["detail"]["spec"],
                "vllm_best_speedup": vllm["speedup"],
                "lift_over_vllm_best": entry["lift_over_vllm_best"],
                "lift_over_vllm_best_ci95": entry["lift_over_vllm_best_ci95"],
                "static_best": static["detail"]["spec"],
                "static_best_speedup": static["speedup"],
                "lift_over_static_best": entry["lift_over_static_best"],
                "lift_ci95": entry["lift_ci95"],
                "worst_workload_lift": entry["worst_workload_lift"],
                "foresight_speedup": foresight["speedup"],
                "gap_closed": entry["gap_closed"],
            }
        )
    return rows


def older_rows(name: str) -> list[Row]:
    """The same of a report of before, with suffix decoding and memory."""
    crossfit = report(name)
    (policy,) = crossfit["policies"]
    cells = {(row["concurrency"], row["policy"]): row for row in crossfit["rows"] if is_mixed(row)}
    remembering = with_memory(name)
    rows = []
    for entry in filter(is_mixed, crossfit["headline"]):
        load = entry["concurrency"]
        adaspec_row, suffixes = cells[load, policy], best_suffix_rows(f"{name}-suffix", load)
        offered = [(cells[load, row]["detail"]["spec"], cells[load, row]) for row in VLLM_OFFERS]
        offered.append((suffixes["all"]["policy"], suffixes["all"]))
        spec, best = max(offered, key=lambda each: each[1]["tokens_per_s"])
        emitted = 1 + adaspec_row["accepted_per_step"]
        rows.append(
            {
                "concurrency": load,
                "speedup": adaspec_row["speedup"],
                "speedup_ci95": adaspec_row["ci95"],
                "vllm_best": spec,
                "vllm_best_speedup": best["speedup"],
                "lift_over_fixed_best": entry["lift_over_fixed_best"],
                "lift_over_fixed_best_ci95": entry["lift_over_fixed_best_ci95"],
                "lift_over_adaptive_best": entry["lift_over_adaptive_best"],
                "lift_over_adaptive_best_ci95": entry["lift_over_adaptive_best_ci95"],
                **lead_between("lift_over_suffix", adaspec_row, suffixes["all"]),
                "suffix_best": suffixes["all"]["policy"],
                "suffix_best_speedup": suffixes["all"]["speedup"],
                "worst_workload_over_suffix": min(
                    row["tokens_per_s"] / suffixes[row["workload"]]["tokens_per_s"] - 1
                    for row in crossfit["rows"]
                    if (row["concurrency"], row["policy"]) == (load, policy) and not is_mixed(row)
                ),
                "static_best": cells[load, "static:best"]["detail"]["spec"],
                "static_best_speedup": cells[load, "static:best"]["speedup"],
                "lift_over_static_best": entry["lift_over_static_best"],
                "lift_ci95": entry["lift_ci95"],
                "worst_workload_lift": entry["worst_workload_lift"],
                "foresight_speedup": cells[load, "oracle:plan-splice"]["speedup"],
                "step_s": load * emitted / adaspec_row["tokens_per_s"],
                "decision_share_of_step": entry["decide_share_of_step"],
                "with_memory_over_suffix": remembering[load]["lift_over_suffix"],
                "with_memory_over_suffix_ci95": remembering[load]["lift_over_suffix_ci95"],
            }
        )
    return rows


def with_memory(name: str) -> dict[int, Row]:
    """By load, the headline of the policy with memory on a cross-fitted report's recordings."""
    memory_report, policy = WITH_MEMORY[name]
    entries = [
        e for e in report(memory_report)["headline"] if is_mixed(e) and e["policy"] == policy
    ]
    return {entry["concurrency"]: entry for entry in entries}


def best_suffix_rows(name: str, load: int) -> dict[str, Row]:
    """By workload, the row of suffix decoding at its best setting in hindsight."""
    found: dict[str, Row] = {}
    for row in sorted(report(name)["rows"], key=lambda row: row["tokens_per_s"]):
        if row["concurrency"] == load and row["policy"].startswith("suffix"):
            found[row["workload"]] = row
    return found


def lead_between(key: str, ours: Row, theirs: Row) -> Row:
    """The lead of a row over one of another report on the same requests, and its interval.

    The two are taken for independent. They are fast and slow on the same requests, so that the
    interval is rather too wide.
    """
    ratio = ours["tokens_per_s"] / theirs["tokens_per_s"]
    spreads = [(row["ci95"][1] - row["ci95"][0]) / 2 / row["speedup"] for row in (ours, theirs)]
    half = ratio * math.hypot(*spreads)
    return {key: ratio - 1, f"{key}_ci95": [ratio - half - 1, ratio + half - 1]}


def decisions() -> list[Row]:
    """The rows of `adaspec bench decide --json` for one context length."""
    rows: list[Row] = report("decide")["rows"]
    return [row for row in rows if row["context_tokens"] == CONTEXT_TOKENS]


def summary() -> dict[str, Any]:
    """All derived figures that README and docs show."""
    return {
        "schema": 1,
        "command": "python eval/summary.py",
        "replays": {name: lead_rows(name) for name in REPLAYS},
        "older": {name: older_rows(name) for name in OLDER},
    }


def speedups(name: str) -> dict[tuple[str, int], dict[str, float]]:
    """A report's speedups over no speculation, by cell and row."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in report(name)["rows"]:
        cell = found.setdefault((row["workload"], row["concurrency"]), {})
        cell[row["policy"]] = row["speedup"]
    return found


def best_suffix(cell: dict[str, float]) -> str:
    """Suffix decoding at its best setting in hindsight."""
    return max((name for name in cell if name.startswith("suffix")), key=lambda name: cell[name])


def is_mixed(row: dict[str, Any]) -> bool:
    """Whether a row is of all workloads together."""
    return bool(row["workload"] == "all")

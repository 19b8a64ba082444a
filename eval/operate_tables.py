"""The generated tables on operating: guard, other traffic, decision times."""

from __future__ import annotations

from typing import Any

from figures import decisions, report
from table_cells import AT_ONCE, percent, times, without_repeats

DRIFTS = {
    "gsm8k": "mathematics, not trained on",
    "humaneval": "code, not trained on",
    "instructcoder": "code edits, not trained on",
    "mt_bench": "dialogue, not trained on",
    "drafter": "EAGLE in place of EAGLE-3",
    "temperature": "sampled at 0.8 in place of greedy",
}
"""Report of a drift -> what the policy met."""


def drift_table() -> list[list[str]]:
    """The table of what policies recover by themselves on traffic that they were not trained on."""
    rows = [["traffic", AT_ONCE, "serving", "trained on it", "recovered", "the old static rule"]]
    for name, traffic in DRIFTS.items():
        for cell in report(f"drift/{name}")["cells"]:
            share = cell["recovered"]
            gains = (percent(cell[key]) for key in ("serving", "trained on it"))
            rows.append([
                f"[{traffic}](../eval/reports/drift/{name}/report.json)",
                str(cell["load"]),
                *gains,
                "" if share is None else f"{share:.0%}",
                percent(cell["static rule of before"]),
            ])  # fmt: skip
    return without_repeats(rows)


def guard_table() -> list[list[str]]:
    """The table of what policies come to with the guard and without, over loads and costs."""
    kinds = {"trained policies": True, "static rules": False}
    parts = [f"{kind}: {part}" for kind in kinds for part in ("cells", "without guard", "with")]
    rows = [["workload", *parts]]
    cells: dict[str, list[dict[str, Any]]] = {}
    for cell in report("guard")["cells"]:
        jumps = " to " in cell["load"]
        name = f"{cell['workload']}, load jumps" if jumps else cell["workload"]
        cells.setdefault(name, []).append(cell)
    for name, found in cells.items():
        row = [name]
        for is_trained in kinds.values():
            some = [cell for cell in found if (":" not in cell["policy"]) == is_trained]
            row.append(str(len(some)))
            for key in ("unguarded", "guarded"):
                speeds = [cell[key] for cell in some]
                row.append(f"{times(min(speeds))} .. {times(max(speeds))}")
        rows.append(row)
    return rows


def decide_table() -> list[list[str]]:
    """The table of a decision's median time by batch and policy."""
    rows = decisions()
    batches = sorted({row["batch"] for row in rows})
    table = [["policy", *(f"batch {batch}" for batch in batches)]]
    for policy, evidence in sorted({(row["policy"], row["evidence"]) for row in rows}):
        by_batch = {row["batch"]: row for row in rows if row["policy"] == policy}
        name = f"`{policy}`, which {'reads' if evidence else 'knows no'} confidences"
        table.append([name, *(f"{by_batch[batch]['median_us']:.0f}" for batch in batches)])
    return table

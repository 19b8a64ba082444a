"""The generated tables on operating: guard, decision times."""

from __future__ import annotations

from typing import Any

from figures import report
from table_cells import times


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
    """The table of a decision's median time by policy and number of requests."""
    rows = report("decide")["rows"]
    batches = sorted({row["batch"] for row in rows})
    table = [["policy", *(f"{batch} at once" for batch in batches)]]
    for policy in dict.fromkeys(row["policy"] for row in rows):
        times_us = {row["batch"]: row["median_us"] for row in rows if row["policy"] == policy}
        table.append([f"`{policy}`", *(f"{times_us[batch]:.0f}" for batch in batches)])
    return table

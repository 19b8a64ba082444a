"""The generated tables on operating: guard, decision times."""

from __future__ import annotations

from typing import Any

from figures import report
from table_cells import (
    AT_ONCE,
    OVER_NONE,
    joined,
    percent,
    settings,
    times,
    with_interval,
    without_repeats,
)


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


def bound_table() -> list[list[str]]:
    """The table of what bounds on a step's time cost: each load without a bound and with each."""
    rows = [
        ["recordings", AT_ONCE, "bound, in plain steps", OVER_NONE, "TPOT, median", "gaps: p95"]
    ]
    for name, found in report("latency")["sets"].items():
        for load in dict.fromkeys(row["concurrency"] for row in found["bounds"]):
            some = [row for row in found["bounds"] if row["concurrency"] == load]
            bounds = [
                "none" if row["bound"] is None else f"{row['bound']:g} ({row['bound_ms']:.1f} ms)"
                for row in some
            ]
            rows.append([
                name,
                str(load),
                " / ".join(bounds),
                joined([times(row["speedup"]) for row in some]),
                " / ".join(f"{row['tpot_p50_ms']:.1f}" for row in some) + " ms",
                " / ".join(f"{row['itl_ms'][1]:.1f}" for row in some) + " ms",
            ])  # fmt: skip
    return without_repeats(rows)


def latency_table() -> list[list[str]]:
    """The table of what users wait for: without speculation, by the best of vLLM's, by a policy."""
    kinds = {
        "TTFT p50": ("ttft_s", "p50"),
        "TPOT p50": ("tpot_s", "p50"),
        "TPOT p95": ("tpot_s", "p95"),
        "gaps p50": ("itl_s", "p50"),
        "gaps p95": ("itl_s", "p95"),
        "gaps p99": ("itl_s", "p99"),
        "to the end p50": ("e2e_s", "p50"),
    }
    rows = [["recordings", AT_ONCE, "tokens/s", *kinds]]
    for name, found in report("latency")["sets"].items():
        cells = {(row["policy"], row["concurrency"]): row for row in found["rows"]}
        for load in sorted({load for _, load in cells}):
            some = [cells[policy, load] for policy in ("none", "vllm:best", found["policy"])]
            rows.append([
                name,
                str(load),
                " / ".join(f"{row['tokens_per_s']:,.0f}" for row in some),
                *(
                    " / ".join(_milliseconds(row["latencies"][kind][of]) for row in some)
                    for kind, of in kinds.values()
                ),
            ])  # fmt: skip
    return without_repeats(rows)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


def traffic_table() -> list[list[str]]:
    """The table of traffic that varies."""
    heads = [
        "over vLLM's best single setting",
        "over the best single rule",
        "over a rule for each load",
        "TPOT, median",
    ]
    rows = [
        ["recordings", "requests come", "run at once", "adaspec: served in time, a second", *heads]
    ]
    for name, found in report("latency")["sets"].items():
        for kind, traffic in found["traffic"].items():
            by_policy = {row["policy"]: row for row in traffic["rows"]}
            mine, (headline,) = by_policy[found["policy"]], traffic["headline"]
            rivals = [by_policy[each]["detail"] for each in ("vllm:best", "static:best")]
            lead = mine["detail"]["score"] / by_policy["static:by-load"]["detail"]["score"] - 1
            three = "none", "vllm:best", found["policy"]
            tpot = [by_policy[each]["latencies"]["tpot_s"]["p50"] for each in three]
            over_vllm = with_interval(headline, "lift_over_vllm_best", "lift_over_vllm_best_ci95")
            over_static = with_interval(headline, "lift_over_static_best", "lift_ci95")
            names = [settings(each["spec"].split(", ")) for each in rivals]
            rows.append([
                name,
                kind,
                " .. ".join(f"{each:.0f}" for each in mine["detail"]["load"]),
                f"{mine['detail']['score']:.1f}",
                f"**{over_vllm}** {names[0]}",
                f"{over_static} {names[1]}",
                percent(lead),
                " / ".join(f"{1e3 * each:.1f}" for each in tpot) + " ms",
            ])  # fmt: skip
    return without_repeats(rows)


def decide_table() -> list[list[str]]:
    """The table of a decision's median time by policy and number of requests."""
    rows = report("decide")["rows"]
    batches = sorted({row["batch"] for row in rows})
    table = [["policy", *(f"{batch} at once" for batch in batches)]]
    for policy in dict.fromkeys(row["policy"] for row in rows):
        times_us = {row["batch"]: row["median_us"] for row in rows if row["policy"] == policy}
        table.append([f"`{policy}`", *(f"{times_us[batch]:.0f}" for batch in batches)])
    return table

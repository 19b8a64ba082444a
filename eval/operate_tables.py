"""The generated tables on operating: guard, decision times."""

from __future__ import annotations

from typing import Any

from figures import report
from table_cells import AT_ONCE, settings, share, times, with_interval, without_repeats


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
    """The table of what bounds on a step's time cost."""
    rows = [["recordings", AT_ONCE, "bound, in plain steps", "over no speculation", "of that lost",
             "time per token", "gaps: median / p95 / p99", "gaps beyond the bound"]]  # fmt: skip
    for name, found in report("latency")["sets"].items():
        for row in found["bounds"]:
            free = next(r for r in found["bounds"] if r["concurrency"] == row["concurrency"])
            bound = row["bound"]
            rows.append([
                name,
                str(row["concurrency"]),
                "none" if bound is None else f"{bound:g} ({row['bound_ms']:.1f} ms)",
                times(row["speedup"]),
                "" if bound is None else share(1 - row["speedup"] / free["speedup"]),
                f"{row['tpot_p50_ms']:.1f} ms",
                " / ".join(f"{each:.1f}" for each in row["itl_ms"]) + " ms",
                "" if bound is None else f"{row['beyond']:.1%} (without speculation {row['beyond_without']:.1%})",
            ])  # fmt: skip
    return without_repeats(rows)


def latency_table() -> list[list[str]]:
    """The table of what users wait for, of a policy and of the best of vLLM's own methods."""
    kinds = {"TTFT": ("ttft_s", "p50", "p95"), "TPOT": ("tpot_s", "p50", "p95"),
             "gaps": ("itl_s", "p50", "p95", "p99"), "whole": ("e2e_s", "p50", "p95")}  # fmt: skip
    heads = [f"{name} {' / '.join(of)}" for name, (_, *of) in kinds.items()]
    rows = [["recordings", AT_ONCE, "served by", *heads]]
    for name, found in report("latency")["sets"].items():
        for load in sorted({row["concurrency"] for row in found["rows"]}):
            for policy in ("none", "vllm:best", found["policy"]):
                (row,) = (
                    each for each in found["rows"]
                    if (each["concurrency"], each["policy"]) == (load, policy)
                )  # fmt: skip
                taken = [
                    " / ".join(f"{1e3 * row['latencies'][kind][q]:,.3g}" for q in of)
                    for kind, *of in kinds.values()
                ]
                rows.append([name, str(load), policy, *taken])
    return without_repeats(rows)


def traffic_table() -> list[list[str]]:
    """The table of traffic that varies."""
    rows = [["recordings", "requests come", "run at once", "adaspec: served well a second",
             "over vLLM's best single setting", "over the best single rule", "TPOT of the median"]]  # fmt: skip
    for name, found in report("latency")["sets"].items():
        for kind, traffic in found["traffic"].items():
            by_policy = {row["policy"]: row for row in traffic["rows"]}
            mine, (headline,) = by_policy[found["policy"]], traffic["headline"]
            rivals = [by_policy[each]["detail"] for each in ("vllm:best", "static:best")]
            tpot = [by_policy[each]["latencies"]["tpot_s"]["p50"] for each in ("none", "vllm:best", found["policy"])]
            rows.append([
                name,
                kind,
                f"{mine['detail']['running']:.0f}",
                f"{mine['detail']['score']:.1f}",
                f"**{with_interval(headline, 'lift_over_vllm_best', 'lift_over_vllm_best_ci95')}** {settings(rivals[0]['spec'].split(', '))}",
                f"{with_interval(headline, 'lift_over_static_best', 'lift_ci95')} {settings(rivals[1]['spec'].split(', '))}",
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

"""The generated tables of README and docs, as Markdown."""

from __future__ import annotations

from typing import Any

from figures import PAPER, REPLAYS, lead_rows
from gpu_tables import gpu_costs_table, gpu_row, gpu_table
from judged_tables import (
    across_models_table,
    spec_bench_kinds_table,
    spec_bench_table,
    suffix_table,
    without_training,
    workloads_table,
)
from operate_tables import bound_table, decide_table, guard_table, latency_table, traffic_table
from server_tables import servers_table
from table_cells import (
    AT_ONCE,
    GAP_CLOSED,
    OVER_NONE,
    OVER_STATIC,
    OVER_VLLM,
    markdown,
    percent,
    settings,
    share,
    times,
    with_interval,
    without_repeats,
)


def headline_table(found: dict[str, Any]) -> list[list[str]]:
    """The README's table of replays."""
    heads = [
        "recordings",
        AT_ONCE,
        OVER_NONE,
        OVER_VLLM,
        OVER_STATIC,
        GAP_CLOSED,
    ]
    rows = [[*heads, f"without training: {OVER_VLLM}"]]
    for name, models in REPLAYS.items():
        untrained = without_training(name)
        for row in found["replays"][name]:
            rows.append([
                f"[{models}](eval/reports/{name}/report.json)",
                str(row["concurrency"]),
                times(row["speedup"]),
                f"**{with_interval(row, 'lift_over_vllm_best', 'lift_over_vllm_best_ci95')}**",
                with_interval(row, "lift_over_static_best", "lift_ci95"),
                _gap(row),
                percent(untrained[row["concurrency"]]),
            ])  # fmt: skip
    rows.append(gpu_row())
    return without_repeats(rows)


def _gap(row: dict[str, Any]) -> str:
    """How much of the gap to foresight is closed.

    Foresight that knows no graphs can be passed by adaspec, and by the best opponent.
    """
    closed = row["gap_closed"]
    if closed is None:
        return "no gap"
    return "beyond" if closed > 1 else share(closed)


def replays_table(found: dict[str, Any]) -> list[list[str]]:
    """The table of all opponents in the replays of an async engine."""
    rows = [[
        "recordings", AT_ONCE, "adaspec", "the best of vLLM's own", "over it", "best static rule",
        "over it", "perfect foresight", "of the gap to it", "worst workload",
    ]]  # fmt: skip
    for name, models in REPLAYS.items():
        for row in found["replays"][name]:
            low, high = row["speedup_ci95"]
            rows.append([
                f"[{models.partition(' ')[0]}](../eval/reports/{name}/report.json)",
                str(row["concurrency"]),
                f"{times(row['speedup'])} ({times(low)} .. {times(high)})",
                f"{times(row['vllm_best_speedup'])} {settings(row['vllm_best'])}",
                with_interval(row, "lift_over_vllm_best", "lift_over_vllm_best_ci95"),
                f"{times(row['static_best_speedup'])} {settings(row['static_best'])}",
                with_interval(row, "lift_over_static_best", "lift_ci95"),
                times(row["foresight_speedup"]),
                _gap(row),
                percent(row["worst_workload_lift"]),
            ])  # fmt: skip
    return without_repeats(rows)


def paper_table() -> list[list[str]]:
    """Replays of a sync engine at the published costs."""
    rows = [["recordings", AT_ONCE, OVER_NONE, OVER_VLLM, OVER_STATIC, GAP_CLOSED]]
    for name, models in PAPER.items():
        for row in lead_rows(name):
            rows.append([
                f"[{models}](../eval/reports/{name}/report.json)",
                str(row["concurrency"]),
                times(row["speedup"]),
                with_interval(row, "lift_over_vllm_best", "lift_over_vllm_best_ci95"),
                with_interval(row, "lift_over_static_best", "lift_ci95"),
                share(row["gap_closed"]),
            ])  # fmt: skip
    return without_repeats(rows)


def tables(found: dict[str, Any]) -> dict[str, str]:
    """All generated tables as Markdown, by the name in their markers."""
    rows_of_table = {
        "headline": headline_table(found),
        "replays": replays_table(found),
        "decide": decide_table(),
        "gpu": gpu_table(),
        "gpu-costs": gpu_costs_table(),
        "general": across_models_table(),
        "workloads": workloads_table(),
        "spec-bench": spec_bench_table(),
        "spec-bench-kinds": spec_bench_kinds_table(),
        "suffix": suffix_table(),
        "guard": guard_table(),
        "bound": bound_table(),
        "latency": latency_table(),
        "traffic": traffic_table(),
        "paper": paper_table(),
        "servers": servers_table(),
    }
    return {name: markdown(rows) for name, rows in rows_of_table.items()}

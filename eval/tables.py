"""The generated tables of README and docs, as Markdown."""

from __future__ import annotations

from typing import Any

from figures import OLDER, REPLAYS, best_suffix, is_mixed, report, speedups
from gpu_tables import gpu_costs_table, gpu_table
from operate_tables import (
    decide_table,
    guard_table,
)
from server_tables import all_servers_table, latency_table, servers_table
from table_cells import (
    AT_ONCE,
    OVER_NONE,
    OVER_STATIC,
    OVER_VLLM,
    markdown,
    percent,
    share,
    times,
    with_interval,
    without_repeats,
)

LONG_REQUEST = (
    "llama-3.1-8b-instruct-h100",
    "llama-3.1-8b-instruct-h100-without-sharegpt-239",
)
"""The older cross-fitted report of the Llama recordings, and the same without one long request."""
ALL_WORKLOADS = "all, in equal parts"


def headline_table(found: dict[str, Any]) -> list[list[str]]:
    """The README's table of replays."""
    rows = [["recordings", AT_ONCE, OVER_NONE, OVER_VLLM, OVER_STATIC, "of the gap to foresight"]]
    for name, models in REPLAYS.items():
        for row in found["replays"][name]:
            rows.append([
                f"[{models}](eval/reports/{name}/report.json)",
                str(row["concurrency"]),
                times(row["speedup"]),
                f"**{with_interval(row, 'lift_over_vllm_best', 'lift_over_vllm_best_ci95')}**",
                with_interval(row, "lift_over_static_best", "lift_ci95"),
                share(row["gap_closed"]),
            ])  # fmt: skip
    return without_repeats(rows)


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
                f"{times(row['vllm_best_speedup'])} `{row['vllm_best']}`",
                with_interval(row, "lift_over_vllm_best", "lift_over_vllm_best_ci95"),
                f"{times(row['static_best_speedup'])} `{row['static_best']}`",
                with_interval(row, "lift_over_static_best", "lift_ci95"),
                times(row["foresight_speedup"]),
                share(row["gap_closed"]),
                percent(row["worst_workload_lift"]),
            ])  # fmt: skip
    return without_repeats(rows)


def without_request_table() -> list[list[str]]:
    """The table of the leads on the Llama recordings with one very long request, and without."""
    rows = [[AT_ONCE, "over the best static rule", "without `sharegpt/239`"]]
    both = (filter(is_mixed, report(name)["headline"]) for name in LONG_REQUEST)
    for entry, without in zip(*both, strict=True):
        assert entry["concurrency"] == without["concurrency"]
        leads = (with_interval(e, "lift_over_static_best", "lift_ci95") for e in (entry, without))
        rows.append([str(entry["concurrency"]), *leads])
    return rows


def older_table(found: dict[str, Any], name: str) -> list[list[str]]:
    """The table of all opponents in one older cross-fitted report."""
    opponents = ["vLLM's own best", "suffix decoding", "best static rule", "perfect foresight"]
    worst = ["worst workload", "the same over suffix decoding"]
    rows = [[AT_ONCE, "adaspec", *opponents, *worst, "deciding, ms of a step"]]
    for row in found["older"][name]:
        low, high = row["speedup_ci95"]
        rows.append([
            str(row["concurrency"]),
            f"{times(row['speedup'])} ({times(low)} .. {times(high)})",
            f"{times(row['vllm_best_speedup'])} `{row['vllm_best']}`",
            f"{times(row['suffix_best_speedup'])} `{row['suffix_best']}`",
            f"{times(row['static_best_speedup'])} `{row['static_best']}`",
            times(row["foresight_speedup"]),
            percent(row["worst_workload_lift"]),
            percent(row["worst_workload_over_suffix"]),
            f"{1e3 * row['step_s'] * row['decision_share_of_step']:.2f}"
            f" of {1e3 * row['step_s']:.1f} ({row['decision_share_of_step']:.1%})",
        ])  # fmt: skip
    return rows


def memory_table() -> list[list[str]]:
    """The table of what earlier answers bring on the mix of the reference pair."""
    sets = {at: speedups(f"reference-pair-memory-{at}") for at in ("warm", "cold", "warm-async")}
    rows = [[
        AT_ONCE, "without memory", "cold", "warm", "suffix decoding, warm", "over it",
        "best static rule with memory, warm", "over it", "async: without", "async: warm",
    ]]  # fmt: skip
    own, with_memory = "reference-pair-h100", "reference-pair-memory"
    leads = {
        each["concurrency"]: each
        for each in report("reference-pair-memory-warm")["headline"]
        if is_mixed(each) and each["policy"] == with_memory
    }

    for load in sorted({load for _, load in sets["warm"]}):
        warm, cold = sets["warm"]["all", load], sets["cold"]["all", load]
        late, suffix = sets["warm-async"]["all", load], best_suffix(warm)
        rows.append([
            str(load),
            times(warm[own]),
            times(cold[with_memory]),
            f"**{times(warm[with_memory])}**",
            f"{times(warm[suffix])} `{suffix}`",
            with_interval(leads[load], "lift_over_suffix", "lift_over_suffix_ci95"),
            times(warm["static:memory"]),
            with_interval(leads[load], "lift_over_static_memory", "lift_over_static_memory_ci95"),
            times(late[own]),
            times(late[with_memory]),
        ])  # fmt: skip
    return rows


def with_requests(name: str, workload: str) -> str:
    """A workload of a report, with the number of requests that the report rests on."""
    count = report(name)["traces"]["requests"].get(workload)
    return ALL_WORKLOADS if count is None else f"{workload} ({count} requests)"


def memory_by_workload_table() -> list[list[str]]:
    """The lead with a warm memory over the policy without, and over suffix decoding."""
    found = speedups("reference-pair-memory-warm")
    loads = sorted({load for _, load in found})
    rows = [["workload", *(f"at {load}: over no memory / over suffix" for load in loads)]]
    for workload in sorted({workload for workload, _ in found}):
        line = []
        for load in loads:
            cell = found[workload, load]
            here = cell["reference-pair-memory"]
            over = [cell["reference-pair-h100"], cell[best_suffix(cell)]]
            line.append(" / ".join(percent(here / each - 1) for each in over))
        rows.append([with_requests("reference-pair-memory-warm", workload), *line])
    return rows


def memory_by_cell_table(name: str, policy: str) -> list[list[str]]:
    """The table of what memory gains over the policy without, in every cell of a report."""
    found = speedups(name)
    rows = [[
        "workload", AT_ONCE, "best static rule", "policy", "policy with memory",
        "over the policy without", "best static rule with memory", "over it", "suffix decoding",
        "over it",
    ]]  # fmt: skip
    leads = {
        (each["workload"], each["concurrency"]): each
        for each in report(name)["headline"]
        if each["policy"] == f"{policy}-memory"
    }
    for workload, load in sorted(found):
        cell, lead = found[workload, load], leads[workload, load]
        suffix, own, mine = best_suffix(cell), cell[policy], cell[f"{policy}-memory"]
        rows.append([
            with_requests(name, workload),
            str(load),
            times(cell["static:best"]),
            times(own),
            f"**{times(mine)}**",
            percent(mine / own - 1),
            times(cell["static:memory"]),
            with_interval(lead, "lift_over_static_memory", "lift_over_static_memory_ci95"),
            f"{times(cell[suffix])} `{suffix}`",
            with_interval(lead, "lift_over_suffix", "lift_over_suffix_ci95"),
        ])  # fmt: skip
    return without_repeats(rows)


def left_out_table(name: str, policy: str) -> list[list[str]]:
    """The table of how a policy does on a workload that it was trained with, and without."""
    found = speedups(name)
    rows = [[
        "workload", AT_ONCE, OVER_NONE, "trained without it", "over the best static rule",
        "trained without it",
    ]]  # fmt: skip
    leads = {
        (each["workload"], each["concurrency"], each["policy"]): each
        for each in report(name)["headline"]
    }
    for workload, load, judged in leads:
        if judged != f"{policy}-without-{workload}":
            continue
        both = (policy, judged)
        lifts = (leads[workload, load, each] for each in both)
        rows.append([
            with_requests(name, workload),
            str(load),
            *(times(found[workload, load][each]) for each in both),
            *(with_interval(each, "lift_over_static_best", "lift_ci95") for each in lifts),
        ])  # fmt: skip
    return without_repeats(rows)


def trainings_table() -> list[list[str]]:
    """The table of how far ahead policies of other trainings are: other seeds, fewer requests."""
    name = "reference-pair-trainings"
    document = report(name)
    seen = document["traces"]["left_out"].values()
    everything = f"all {sum(each['seen in training'] for each in seen)} requests"
    trainings = {
        "reference-pair-h100": everything,
        "reference-pair-seed-1": f"{everything}, another seed",
        "reference-pair-seed-2": f"{everything}, a third seed",
        "reference-pair-half": "half of them",
        "reference-pair-quarter": "a quarter",
    }
    leads = {
        (each["policy"], each["concurrency"]): each
        for each in document["headline"]
        if is_mixed(each)
    }
    loads = sorted({load for _, load in leads})
    rows = [["trained on", *(f"{load} at once" for load in loads)]]
    for policy, trained_on in trainings.items():
        lifts = (leads[policy, load] for load in loads)
        cells = [with_interval(each, "lift_over_static_best", "lift_ci95") for each in lifts]
        rows.append([trained_on, *cells])
    return rows


def fresh_table() -> list[list[str]]:
    """The table of the run on prompts that no trace held."""
    document = report("reference-pair-fresh")
    found = speedups("reference-pair-fresh")
    (policy,) = document["policies"]
    rows = [
        ["workload", AT_ONCE, OVER_NONE, OVER_STATIC, "over the rule tuned where it was trained"]
    ]
    for entry in document["headline"]:
        cell = found[entry["workload"], entry["concurrency"]]
        rows.append([
            with_requests("reference-pair-fresh", entry["workload"]),
            str(entry["concurrency"]),
            times(cell[policy]),
            with_interval(entry, "lift_over_static_best", "lift_ci95"),
            percent(entry["lift_over_static_tuned"]),
        ])  # fmt: skip
    return without_repeats(rows)


def tables(found: dict[str, Any]) -> dict[str, str]:
    """All generated tables as Markdown, by the name in their markers."""
    rows_of_table = {
        "headline": headline_table(found),
        "replays": replays_table(found),
        "without-request": without_request_table(),
        "trainings": trainings_table(),
        "agents": memory_by_cell_table("agents-memory", "agents"),
        "decide": decide_table(),
        "fresh": fresh_table(),
        "gpu": gpu_table(),
        "gpu-costs": gpu_costs_table(),
        "guard": guard_table(),
        "left-out": left_out_table("llama-3.1-8b-without-workload", "llama-3.1-8b"),
        "left-out-pair": left_out_table("reference-pair-without-workload", "reference-pair-h100"),
        "memory": memory_table(),
        "memory-workloads": memory_by_workload_table(),
        "no-drafter": memory_by_cell_table("llama-3.1-8b-no-drafter-memory", "no-drafter"),
        "public-memory": memory_by_cell_table("llama-3.1-8b-memory", "llama-3.1-8b"),
        "servers": servers_table(),
        "servers-all": all_servers_table(),
        "servers-latency": latency_table(),
    }
    for name in OLDER:
        rows_of_table[f"replay-{name.partition('-')[0]}"] = older_table(found, name)
    return {name: markdown(rows) for name, rows in rows_of_table.items()}

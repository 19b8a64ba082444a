"""The generated tables of README and docs, as Markdown."""

from __future__ import annotations

from typing import Any

from figures import REPLAYS, best_suffix, decisions, is_mixed, report, speedups

LATE = {
    "llama-3.1-8b-instruct-h100": "llama-3.1-8b-instruct-h100",
    "reference-pair-h100": "reference-pair",
}
"""Cross-fitted report -> the report of what late decisions cost on the same recordings."""
FREE = {True: "", False: ", deciding and prompts free"}
"""What a replay that charges everything, or not, is called."""
ALL_WORKLOADS = "all, in equal parts"
AT_ONCE, OVER_NONE = "requests at once", "over no speculation"
OVER_VLLM = "over the best of vLLM's own methods"
OVER_STATIC = "over the best static rule with splicing"


def headline_table(found: dict[str, Any]) -> list[list[str]]:
    """The table of the README."""
    rows = [["what it rests on", AT_ONCE, OVER_NONE, OVER_VLLM, OVER_STATIC]]
    for name, (models, _) in REPLAYS.items():
        for row in found["replays"][name]:
            low, high = row["lift_ci95"]
            rows.append([
                f"[replay{FREE[row['charged']]}: {models}](eval/reports/{name}/report.md)",
                str(row["concurrency"]),
                times(row["speedup"]),
                f"{percent(row['lift_over_vllm_best'])} ({method(row['vllm_best'])})",
                f"**{percent(row['lift_over_static_best'])}** ({percent(low)} .. {percent(high)})",
            ])  # fmt: skip
    for row in found["servers_pooled"]:
        rows.append([
            "[servers: vLLM 0.32 on two CPU cores, the second pair](docs/results.md#in-vllm)",
            f"{row['concurrency']} ({row['speedup']['rounds']} rounds)",
            times(row["speedup"]["mean"]),
            _pooled(row["over_vllm_best"], row["speedup"]["rounds"]),
            _pooled(row["over_static_best"], row["speedup"]["rounds"]),
        ])  # fmt: skip
    return _without_repeats(rows)


def charged_table() -> list[list[str]]:
    """The table of the second set's leads, with deciding and prompts free and with all charged."""
    leads = ["over no speculation", "over the best static rule", "worst workload"]
    rows = [[AT_ONCE, *leads, *(f"all charged: {lead}" for lead in leads), "deciding"]]
    documents = [report("reference-pair-h100-free"), report("reference-pair-h100")]
    by_load: dict[int, list[str]] = {}
    for document in documents:
        (policy,) = document["policies"]
        speedups = {
            row["concurrency"]: row["speedup"]
            for row in document["rows"]
            if is_mixed(row) and row["policy"] == policy
        }
        for entry in filter(is_mixed, document["headline"]):
            low, high = entry["lift_ci95"]
            by_load.setdefault(entry["concurrency"], []).extend([
                times(speedups[entry["concurrency"]]),
                f"{percent(entry['lift_over_static_best'])} ({percent(low)} .. {percent(high)})",
                percent(entry["worst_workload_lift"]),
            ])  # fmt: skip
    shares = {e["concurrency"]: e["decide_share_of_step"] for e in documents[1]["headline"]
              if is_mixed(e)}  # fmt: skip
    rows += [[str(load), *cells, f"{shares[load]:.1%}"] for load, cells in by_load.items()]
    return rows


def replay_table(found: dict[str, Any], name: str) -> list[list[str]]:
    """The table of all opponents in one cross-fitted report."""
    opponents = ["vLLM's own best", "suffix decoding", "best static rule", "perfect foresight"]
    worst = ["worst workload", "the same over suffix decoding"]
    rows = [[AT_ONCE, "adaspec", *opponents, *worst, "deciding, ms of a step"]]
    for row in found["replays"][name]:
        low, high = row["speedup_ci95"]
        rows.append([
            str(row["concurrency"]),
            f"{times(row['speedup'])} ({times(low)} .. {times(high)})",
            f"{times(row['vllm_best_speedup'])} `{row['vllm_best']}`",
            times(row["suffix_best_speedup"]),
            f"{times(row['static_best_speedup'])} `{row['static_best']}`",
            times(row["foresight_speedup"]),
            percent(row["worst_workload_lift"]),
            percent(row["worst_workload_over_suffix"]),
            f"{1e3 * row['decision_s']:.2f} of {1e3 * row['step_s']:.1f}"
            f" ({row['decision_share_of_step']:.1%})",
        ])  # fmt: skip
    return rows


def engine_table(found: dict[str, Any]) -> list[list[str]]:
    """The table of a policy's leads where decisions are made at once, and where they come late."""
    leads = {
        "sync: over the best static rule": "sync_over_static_best",
        "sync: over `static:tuned`": "sync_over_static_tuned",
        "async: over `static:fresh`": "async_over_static_fresh",
        "async: over the best static rule": "async_over_static_best",
    }
    rows = [["recordings", AT_ONCE, *leads, "async's tokens per second over sync's"]]
    for name, (models, _) in REPLAYS.items():
        for row in found["engines"][name]:
            cells = []
            for key in leads.values():
                low, high = row[f"{key}_ci95"]
                cells.append(f"{percent(row[key])} ({percent(low)} .. {percent(high)})")
            rows.append([
                f"[{models.partition(' ')[0]}](../eval/reports/{name}-async/report.md)",
                str(row["concurrency"]),
                *cells,
                percent(row["async_over_sync"]),
            ])  # fmt: skip
    return _without_repeats(rows)


def late_table(name: str) -> list[list[str]]:
    """The table of a policy's lead over `static:fresh`, by what is decided late."""
    lifts: dict[str, dict[str, float]] = report(f"late-decisions/{name}")["lift_over_static_fresh"]
    loads = list(next(iter(lifts.values())))
    rows = [["what is decided when", *(f"at {load}" for load in loads)]]
    return rows + [[part, *(percent(lift[load]) for load in loads)] for part, lift in lifts.items()]


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

    def lead(load: int, key: str) -> str:
        low, high = leads[load][f"{key}_ci95"]
        return f"{percent(leads[load][key])} ({percent(low)} .. {percent(high)})"

    for load in sorted({load for _, load in sets["warm"]}):
        warm, cold = sets["warm"]["all", load], sets["cold"]["all", load]
        late, suffix = sets["warm-async"]["all", load], best_suffix(warm)
        rows.append([
            str(load),
            times(warm[own]),
            times(cold[with_memory]),
            f"**{times(warm[with_memory])}**",
            f"{times(warm[suffix])} `{suffix}`",
            lead(load, "lift_over_suffix"),
            times(warm["static:memory"]),
            lead(load, "lift_over_static_memory"),
            times(late[own]),
            times(late[with_memory]),
        ])  # fmt: skip
    return rows


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
        rows.append([ALL_WORKLOADS if workload == "all" else workload, *line])
    return rows


def memory_by_cell_table(name: str, policy: str) -> list[list[str]]:
    """The table of what memory gains over the policy without, in every cell of a report."""
    found = speedups(name)
    rows = [[
        "workload", AT_ONCE, "best static rule", "policy", "best static rule with memory",
        "policy with memory", "over the policy without", "suffix decoding", "over it",
    ]]  # fmt: skip
    for workload, load in sorted(found):
        cell = found[workload, load]
        suffix, own, mine = best_suffix(cell), cell[policy], cell[f"{policy}-memory"]
        rows.append([
            ALL_WORKLOADS if workload == "all" else workload,
            str(load),
            times(cell["static:best"]),
            times(own),
            times(cell["static:memory"]),
            f"**{times(mine)}**",
            percent(mine / own - 1),
            f"{times(cell[suffix])} `{suffix}`",
            percent(mine / cell[suffix] - 1),
        ])  # fmt: skip
    return rows


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
            workload,
            str(load),
            *(times(found[workload, load][each]) for each in both),
            *(with_interval(each, "lift_over_static_best", "lift_ci95") for each in lifts),
        ])  # fmt: skip
    return _without_repeats(rows)


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
            ALL_WORKLOADS if is_mixed(entry) else entry["workload"],
            str(entry["concurrency"]),
            times(cell[policy]),
            with_interval(entry, "lift_over_static_best", "lift_ci95"),
            percent(entry["lift_over_static_tuned"]),
        ])  # fmt: skip
    return _without_repeats(rows)


def learning_table() -> list[list[str]]:
    """The table of what is gained by refitting wrong step costs while serving."""
    rows = [["steps cost", AT_ONCE, "the true costs", "learned", "learned by a bad clock"]]
    for cell in report("learning")["cells"]:
        gains = (
            percent(cell[key] / cell["believed"] - 1) for key in ("told", "learned", "bad_clock")
        )
        rows.append([cell["costs"], str(cell["load"]), *gains])
    return rows


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


def logged_table() -> list[list[str]]:
    """The table of estimates from logs against the truth."""
    rows = [["logged by", "explores", "judged", "estimator", "true tokens per second",
             "bias", "RMSE", "coverage of 95%"]]  # fmt: skip
    for row in report("logged")["rows"]:
        figures = ["", "", "", ""]
        if "bias" in row:
            figures = [
                f"{row['true_tokens_per_s']:,.0f}", percent(row["bias"]),
                f"{row['rmse']:.1%}", f"{row['coverage']:.1%}",
            ]  # fmt: skip
        rows.append([
            f"`{row['logging']}`", f"{row['explore']:.0%}", f"`{row['target']}`",
            row["estimator"], *figures,
        ])  # fmt: skip
    return rows


def lookup_table() -> list[list[str]]:
    """The table of look-ups in earlier answers, beside arctic-inference's."""
    rows = [["stored tokens", "system", "look-up, us", "p99, us", "storing, us per token",
             "bytes per token", "accepted of 8"]]  # fmt: skip
    for row in report("memory-lookup")["rows"]:
        size = row["bytes_per_token"]
        rows.append([
            f"{row['stored_tokens']:,}",
            row["system"],
            f"{row['median_us']:.1f}",
            f"{row['p99_us']:.1f}",
            f"{row['add_us_per_token']:.2f}",
            "" if size is None else f"{size:.0f}",
            f"{row['accepted_per_lookup']:.2f}",
        ])  # fmt: skip
    return rows


def server_table(found: dict[str, Any], key: str) -> list[list[str]]:
    """The table of all benchmarks of full servers."""
    rows = [[AT_ONCE, "report", "rounds", OVER_NONE, OVER_VLLM, OVER_STATIC]]
    for row in found[key]:
        rows.append([
            str(row["concurrency"]),
            f"[{row['report']}](../eval/reports/reference-pair-engine/{row['report']}/report.md)",
            str(row["rounds"]),
            times(row["speedup"]),
            _over(row["over_vllm_best"], row["vllm_best"]),
            _over(row["over_static_best"], row["static_best"]),
        ])  # fmt: skip
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
    fixed = min(row["reference_us"] for row in rows), max(row["reference_us"] for row in rows)
    times_of_loop = f"{fixed[0]:.1f} to {fixed[1]:.1f}"
    return [
        *table,
        ["a fixed loop, to judge the machine by", times_of_loop, *[""] * (len(batches) - 1)],
    ]


def _pooled(found: dict[str, Any], rounds: int) -> str:
    least, greatest = found["range"]
    of = "" if found["rounds"] == rounds else f"{found['rounds']} rounds, "
    spread = f"{percent(least - 1)} .. {percent(greatest - 1)}" if found["runs"] > 1 else "one run"
    return f"{percent(found['mean'] - 1)} ({of}{spread})"


def _over(ratio: float | None, opponent: str | None) -> str:
    return "not run" if ratio is None else f"{percent(ratio - 1)} (`{opponent}`)"


def tables(found: dict[str, Any]) -> dict[str, str]:
    """All generated tables as Markdown, by the name in their markers."""
    rows_of_table = {
        "headline": headline_table(found),
        "agents": memory_by_cell_table("agents-memory", "agents"),
        "charged": charged_table(),
        "decide": decide_table(),
        "engines": engine_table(found),
        "fresh": fresh_table(),
        "guard": guard_table(),
        "learning": learning_table(),
        "left-out": left_out_table("llama-3.1-8b-without-workload", "llama-3.1-8b"),
        "left-out-pair": left_out_table("reference-pair-without-workload", "reference-pair-h100"),
        "logged": logged_table(),
        "memory": memory_table(),
        "memory-lookup": lookup_table(),
        "memory-workloads": memory_by_workload_table(),
        "no-drafter": memory_by_cell_table("llama-3.1-8b-no-drafter-memory", "no-drafter"),
        "public-memory": memory_by_cell_table("llama-3.1-8b-memory", "llama-3.1-8b"),
        "servers": server_table(found, "servers"),
        "servers-alone": server_table(found, "servers_alone"),
    }
    for name in REPLAYS:
        short = name.partition("-")[0]
        rows_of_table[f"replay-{short}"] = replay_table(found, name)
        rows_of_table[f"late-{short}"] = late_table(LATE[name])
    return {name: markdown(rows) for name, rows in rows_of_table.items()}


def markdown(rows: list[list[str]]) -> str:
    """The rows as a Markdown table; the first row is its head."""
    head, *body = rows
    lines = [head, ["--"] * len(head), *body]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def with_interval(row: dict[str, Any], key: str, interval: str) -> str:
    """A lift and its interval."""
    low, high = row[interval]
    return f"{percent(row[key])} ({percent(low)} .. {percent(high)})"


def times(value: float) -> str:
    """A ratio, as 1.23x."""
    return f"{value:.2f}x"


def percent(value: float) -> str:
    """A lift, as +1.2%."""
    return f"{round(100 * value, 1) + 0.0:+.1f}%"


def method(spec: str) -> str:
    """The method of vLLM that a spec stands for."""
    names = {"fixed:ngram": "n-gram", "fixed:neural": "EAGLE", "batch-table": "batch-size table"}
    for start, name in names.items():
        if spec.startswith(start):
            return name
    return {"suffix": "suffix decoding", "budget": "adaptive verification"}.get(
        spec.partition(":")[0], spec
    )


def _without_repeats(rows: list[list[str]]) -> list[list[str]]:
    """The same table, in which first cells that repeat the one above are empty."""
    return [
        ["", *row[1:]] if at and rows[at - 1][0] == row[0] else row for at, row in enumerate(rows)
    ]

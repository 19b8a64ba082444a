"""Draw the picture and write the tables of README and docs from the committed reports.

    python eval/summary.py            # writes what has changed
    python eval/summary.py --check    # writes nothing; exit code 1 where a table is out of date

Reads the reports in `eval/reports/`; writes `eval/reports/summary.json`, `docs/headline.png`, and
the tables between `<!-- table NAME -->` and `<!-- end -->` in README.md and docs/.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
REPORTS = CHECKOUT / "eval" / "reports"
SUMMARY = REPORTS / "summary.json"
PICTURE = CHECKOUT / "docs" / "headline.png"
TABLE = re.compile(r"(<!-- table ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

REPLAYS = {
    "llama-3.1-8b-instruct-h100": (
        "Llama-3.1-8B-Instruct with EAGLE, public recordings",
        "llama-3.1-8b-instruct-h100",
    ),
    "reference-pair-h100": (
        "SmolLM2-135M-Instruct with an EAGLE-3 head, traces that ship",
        "reference-pair-cpu",
    ),
}
"""Cross-fitted report -> its models, and the shipped policy with the same kind of evidence."""
VLLM_OFFERS = ("fixed:best", "adaptive:best")
"""The rows of a report that stand for vLLM's own methods; suffix decoding has its own report."""
MIXES = {
    1: ("1", "1-suffix", "1-heads", "all-methods-1"),
    4: ("4", "4-workloads", "4-suffix", "all-methods-4"),
    16: ("16", "16-workloads", "16-suffix", "16-refit", "all-methods-16"),
}
"""Requests at once -> the benchmarks of full servers on the mix of all workloads."""
ALONE = {4: ("4-mt_bench",), 16: ("16-mt_bench",)}
"""Requests at once -> the benchmarks of full servers on one workload alone."""
LATE = {
    "llama-3.1-8b-instruct-h100": "llama-3.1-8b-instruct-h100",
    "reference-pair-h100": "reference-pair",
}
"""Cross-fitted report -> the report of what late decisions cost on the same recordings."""
FREE = {True: "", False: ", deciding and prompts free"}
"""What a replay that charges everything, or not, is called."""
CONTEXT_TOKENS = 1024
"""The context length of the decisions with quoted times; longer contexts take as long."""
ALL_WORKLOADS = "all, in equal parts"
AT_ONCE, OVER_NONE = "requests at once", "over no speculation"
OVER_VLLM = "over the best of vLLM's own methods"
OVER_STATIC = "over the best static rule with splicing"
SERVER_METHODS = ("none", "ngram", "neural", "suffix", "batch-table")


def report(name: str) -> dict[str, Any]:
    """A committed report."""
    document: dict[str, Any] = json.loads((REPORTS / name / "report.json").read_text("utf-8"))
    return document


def replay_rows(name: str) -> list[dict[str, Any]]:
    """The figures of one cross-fitted report per load, beside vLLM's methods and static rules."""
    crossfit, suffix = report(name), report(f"{name}-suffix")
    (policy,) = crossfit["policies"]
    cells = {(row["concurrency"], row["policy"]): row for row in crossfit["rows"] if _mixed(row)}
    suffixes = [row for row in suffix["rows"] if row["policy"].startswith("suffix")]
    rows = []
    for entry in filter(_mixed, crossfit["headline"]):
        load = entry["concurrency"]
        adaspec_row = cells[load, policy]
        offered = [(cells[load, row]["detail"]["spec"], cells[load, row]) for row in VLLM_OFFERS]
        suffixes_at_load = [row for row in suffixes if row["concurrency"] == load]
        offered += [(row["policy"], row) for row in suffixes_at_load if _mixed(row)]
        spec, best = max(offered, key=lambda each: each[1]["tokens_per_s"])
        emitted = 1 + adaspec_row["accepted_per_step"]
        step_s = load * emitted / adaspec_row["tokens_per_s"]
        # Reports from before deciding was charged know no share of it.
        charged = bool(crossfit.get("charge_decisions"))
        share = entry["decide_share_of_step"] if charged else None
        decision_s = decision(REPLAYS[name][1], load) if share is None else share * step_s
        rows.append(
            {
                "concurrency": load,
                "charged": charged,
                "speedup": adaspec_row["speedup"],
                "speedup_ci95": adaspec_row["ci95"],
                "vllm_best": spec,
                "vllm_best_speedup": best["speedup"],
                "lift_over_vllm_best": adaspec_row["tokens_per_s"] / best["tokens_per_s"] - 1,
                "suffix_best_speedup": max(
                    row["speedup"] for row in suffixes_at_load if _mixed(row)
                ),
                "worst_workload_over_suffix": min(
                    row["tokens_per_s"]
                    / max(
                        each["tokens_per_s"]
                        for each in suffixes_at_load
                        if each["workload"] == row["workload"]
                    )
                    - 1
                    for row in crossfit["rows"]
                    if (row["concurrency"], row["policy"]) == (load, policy) and not _mixed(row)
                ),
                "static_best": cells[load, "static:best"]["detail"]["spec"],
                "static_best_speedup": cells[load, "static:best"]["speedup"],
                "lift_over_static_best": entry["lift_over_static_best"],
                "lift_ci95": entry["lift_ci95"],
                "worst_workload_lift": entry["worst_workload_lift"],
                "foresight_speedup": cells[load, "oracle:plan-splice"]["speedup"],
                "step_s": step_s,
                "decision_s": decision_s,
                "decision_share_of_step": decision_s / step_s,
            }
        )
    return rows


def engine_rows(name: str) -> list[dict[str, Any]]:
    """The leads of one cross-fitted report per load, and those of its counterpart for async."""
    by_engine = {"sync": report(name), "async": report(f"{name}-async")}
    entries, speeds = {}, {}
    for engine, document in by_engine.items():
        (policy,) = document["policies"]
        entries[engine] = [entry for entry in document["headline"] if _mixed(entry)]
        speeds[engine] = {
            row["concurrency"]: row["tokens_per_s"]
            for row in document["rows"]
            if _mixed(row) and row["policy"] == policy
        }
    rows = []
    for sync, late in zip(entries["sync"], entries["async"], strict=True):
        load = sync["concurrency"]
        assert late["concurrency"] == load
        rows.append(
            {
                "concurrency": load,
                "sync_over_static_best": sync["lift_over_static_best"],
                "sync_over_static_best_ci95": sync["lift_ci95"],
                "sync_over_static_tuned": sync["lift_over_static_tuned"],
                "sync_over_static_tuned_ci95": sync["lift_over_static_tuned_ci95"],
                "async_over_static_fresh": late["lift_over_static_fresh"],
                "async_over_static_fresh_ci95": late["lift_over_static_fresh_ci95"],
                "async_over_static_best": late["lift_over_static_best"],
                "async_over_static_best_ci95": late["lift_ci95"],
                "async_over_sync": speeds["async"][load] / speeds["sync"][load] - 1,
            }
        )
    return rows


def decision(policy: str, batch: int) -> float:
    """The median seconds of a full decision of a shipped policy, by `adaspec bench decide`."""
    (row,) = (row for row in decisions() if (row["policy"], row["batch"]) == (policy, batch))
    return float(row["median_us"]) * 1e-6


def decisions() -> list[dict[str, Any]]:
    """The rows of `adaspec bench decide --json` for one context length."""
    rows: list[dict[str, Any]] = report("decide")["rows"]
    return [row for row in rows if row["context_tokens"] == CONTEXT_TOKENS]


def server_row(name: str, load: int) -> dict[str, Any]:
    """A benchmark of full servers: adaspec over no speculation and over the best other methods."""
    rows = [row for row in report(f"reference-pair-engine/{name}")["rows"] if _mixed(row)]
    speed = {(row["method"], row["setting"]): row["speedup"] for row in rows}
    (adaspec_row,) = (row for row in rows if row["method"] == "adaspec")

    def over(methods: tuple[str, ...]) -> tuple[str | None, float | None]:
        candidates = [key for key in speed if key[0] in methods]
        best = max(candidates, key=lambda key: speed[key], default=None)
        return (
            (None, None)
            if best is None
            else (" ".join(best).strip(), adaspec_row["speedup"] / speed[best])
        )

    # If neither of vLLM's two best methods ran, the best of the others means little.
    ran = any(key[0] in ("ngram", "suffix") for key in speed)
    vllm, over_vllm = over(SERVER_METHODS) if ran else (None, None)
    static, over_static = over(("hybrid-splice",))
    return {
        "report": name,
        "concurrency": load,
        "rounds": adaspec_row["rounds"],
        "speedup": adaspec_row["speedup"],
        "vllm_best": vllm,
        "over_vllm_best": over_vllm,
        "static_best": static,
        "over_static_best": over_static,
    }


def pooled(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The geometric means over all benchmarks at one load, weighted by their rounds."""

    def mean(key: str) -> dict[str, Any]:
        known = [row for row in rows if row[key] is not None]
        rounds = sum(row["rounds"] for row in known)
        logs = sum(row["rounds"] * math.log(row[key]) for row in known)
        values = [row[key] for row in known]
        spread = [min(values), max(values)]
        return {
            "rounds": rounds,
            "runs": len(known),
            "mean": math.exp(logs / rounds),
            "range": spread,
        }

    return {"concurrency": rows[0]["concurrency"]} | {
        key: mean(key) for key in ("speedup", "over_vllm_best", "over_static_best")
    }


def summary() -> dict[str, Any]:
    """All derived figures that README and docs show."""
    servers = [server_row(name, load) for load, names in MIXES.items() for name in names]
    return {
        "schema": 1,
        "command": "python eval/summary.py",
        "replays": {name: replay_rows(name) for name in REPLAYS},
        "engines": {name: engine_rows(name) for name in REPLAYS},
        "servers": servers,
        "servers_alone": [
            server_row(name, load) for load, names in ALONE.items() for name in names
        ],
        "servers_pooled": [
            pooled([row for row in servers if row["concurrency"] == load]) for load in MIXES
        ],
    }


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
            if _mixed(row) and row["policy"] == policy
        }
        for entry in filter(_mixed, document["headline"]):
            low, high = entry["lift_ci95"]
            by_load.setdefault(entry["concurrency"], []).extend([
                times(speedups[entry["concurrency"]]),
                f"{percent(entry['lift_over_static_best'])} ({percent(low)} .. {percent(high)})",
                percent(entry["worst_workload_lift"]),
            ])  # fmt: skip
    shares = {e["concurrency"]: e["decide_share_of_step"] for e in documents[1]["headline"]
              if _mixed(e)}  # fmt: skip
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
        if _mixed(each) and each["policy"] == with_memory
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


def no_drafter_table() -> list[list[str]]:
    """The table of what is gained where no neural drafter is served."""
    found = speedups("llama-3.1-8b-no-drafter-memory")
    rows = [[
        "workload", AT_ONCE, "best static rule", "policy", "best static rule with memory",
        "policy with memory", "over the policy without", "suffix decoding", "over it",
    ]]  # fmt: skip
    for workload, load in sorted(found):
        cell = found[workload, load]
        suffix, own, mine = best_suffix(cell), cell["no-drafter"], cell["no-drafter-memory"]
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


def learning_table() -> list[list[str]]:
    """The table of what is gained by refitting wrong step costs while serving."""
    rows = [["steps cost", AT_ONCE, "the true costs", "learned", "learned by a bad clock"]]
    for cell in report("learning")["cells"]:
        gains = (
            percent(cell[key] / cell["believed"] - 1) for key in ("told", "learned", "bad_clock")
        )
        rows.append([cell["costs"], str(cell["load"]), *gains])
    return rows


def agents_table() -> list[list[str]]:
    """The table of made-up agent-like traffic."""
    found = speedups("agents-memory")
    rows = [["workload", AT_ONCE, "best static rule", "the same with memory", "suffix decoding"]]
    for workload, load in sorted(found):
        cell = found[workload, load]
        suffix = best_suffix(cell)
        rows.append([
            ALL_WORKLOADS if workload == "all" else workload,
            str(load),
            times(cell["static:best"]),
            times(cell["static:memory"]),
            f"{times(cell[suffix])} `{suffix}`",
        ])  # fmt: skip
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
        "agents": agents_table(),
        "charged": charged_table(),
        "decide": decide_table(),
        "engines": engine_table(found),
        "guard": guard_table(),
        "learning": learning_table(),
        "logged": logged_table(),
        "memory": memory_table(),
        "memory-lookup": lookup_table(),
        "memory-workloads": memory_by_workload_table(),
        "no-drafter": no_drafter_table(),
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


def _mixed(row: dict[str, Any]) -> bool:
    return bool(row["workload"] == "all")


def _without_repeats(rows: list[list[str]]) -> list[list[str]]:
    """The same table, in which first cells that repeat the one above are empty."""
    return [
        ["", *row[1:]] if at and rows[at - 1][0] == row[0] else row for at, row in enumerate(rows)
    ]


def draw(found: dict[str, Any], path: Path) -> None:
    """The README's picture: speedup over no speculation by load, one panel per pair of models."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.9), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(REPLAYS), sharey=True)
    hindsight = "in hindsight"
    lines = (
        ("foresight", "perfect foresight", "#8A8A8A", "--", "", 1.2),
        ("", "adaspec, on requests that it never saw", "#C8390E", "-", "o", 2.4),
        ("static_best", f"best static rule with splicing, {hindsight}", "#1F262E", "-", "s", 1.6),
        ("vllm_best", f"best of vLLM's own methods, {hindsight}", "#0B5FA5", "-", "^", 1.6),
    )
    for axes, (name, (models, _)) in zip(panels, REPLAYS.items(), strict=True):
        rows = found["replays"][name]
        loads = [row["concurrency"] for row in rows]
        for key, label, colour, style, marker, width in lines:
            values = [row[f"{key}_speedup".lstrip("_")] for row in rows]
            axes.plot(
                loads, values, style, color=colour, marker=marker, lw=width, ms=5, label=label
            )
        axes.axhline(1, color="#444444", lw=1, label="no speculation")
        axes.set_xscale("log", base=2)
        axes.set_xticks(loads, [str(load) for load in loads])
        axes.fill_between(
            loads,
            [row["speedup_ci95"][0] for row in rows],
            [row["speedup_ci95"][1] for row in rows],
            color="#C8390E",
            alpha=0.13,
            lw=0,
            label="95% interval of adaspec",
        )
        axes.set_title(models.replace(", ", "\n"), fontsize=9.5, loc="left")
        axes.set_xlabel("requests running at once", fontsize=9)
        axes.grid(axis="y", color="#DDDDDD", lw=0.8)
        axes.tick_params(labelsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_ylabel("speedup over no speculation", fontsize=9)
    panels[0].set_ylim(bottom=0.9)
    figure.suptitle(
        "Replayed recordings under the step times of Llama-3.1-8B on one H100",
        fontsize=11,
        fontweight="bold",
        x=0.01,
        ha="left",
    )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    figure.savefig(path, metadata={"Software": None})


def main() -> int:
    """Write the files that have changed, or with --check only name them."""
    parser = argparse.ArgumentParser(description="README's and docs' figures from the reports.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if out of date")
    check = parser.parse_args().check
    figures = summary()
    markdown_tables = tables(figures)
    text = json.dumps(figures, indent=1) + "\n"
    changed = {SUMMARY: text} if not SUMMARY.exists() or SUMMARY.read_text("utf-8") != text else {}
    for page in (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))):
        before = page.read_text("utf-8")
        after = TABLE.sub(lambda hit: hit[1] + markdown_tables[hit[2]] + hit[3], before)
        if after != before:
            changed[page] = after
    for page, text in changed.items():
        print(f"{page.relative_to(CHECKOUT)}: {'out of date' if check else 'written'}")
        if not check:
            page.write_text(text, "utf-8")
    if check:
        return 1 if changed else 0
    draw(figures, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())

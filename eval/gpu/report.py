"""Writes the report of all stages so far: report.json, and report.html with its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import document_of, plain_steps, steps_by_forwards
from results import write_json

from adaspec.evaluate.render.contents import Contents, Part, Section
from adaspec.evaluate.render.page import page
from adaspec.evaluate.render.table import (
    NULL,
    Table,
    Text,
    code,
    decimal,
    foreign,
    milliseconds,
    percent,
    simple_table,
    times,
)

WORKLOADS = {
    "llama": "recordings of Llama-3.1-8B and its EAGLE head",
    "pair": "recordings of SmolLM2 and its EAGLE-3 head",
}


def write_report(folder: Path, planned: Mapping[str, Any]) -> None:
    """Write what there is to say so far."""
    document = document_of(folder, planned)
    write_json(folder / "report.json", document)
    tables = Section("What was measured", [Part(table) for table in _tables(document)])
    contents = Contents(
        title="adaspec on this machine",
        subject=foreign(_where(document)),
        sections=[tables],
        notes=list(_notes(document)),
    )
    (folder / "report.html").write_text(page(contents), encoding="utf-8")


def _where(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    if machine is None:
        return "no stage has run"
    where = ", ".join(f"{name} {value}" for name, value in machine.items())
    if document["dry_run"]:
        where += ": a dry run of tiny models on a CPU, V2 in an interpreter; no time here counts"
    return where


def _tables(document: Mapping[str, Any]) -> Iterator[Table]:
    if document["headline"]:
        yield _headline(document["headline"])
    yield _stages(document["stages"])
    if document["lossless"]:
        yield _lossless(document["lossless"])
    yield from _costs(document)
    for workload, title in WORKLOADS.items():
        here = [row for row in document["throughput"] if row["workload"] == workload]
        if here:
            yield _speeds(here, title)
            yield _graphs(here, title)
            yield _times(here, title, document["priced_by"])
    if document["replay"]:
        yield _replay(document["replay"])


def _notes(document: Mapping[str, Any]) -> Iterator[Text]:
    for name, engine in document["engines"].items():
        if "error" in engine:
            yield ["The engine ", code(name), ": ", foreign(engine["error"])]
    for each in document["stages"]:
        if each["log"]:
            yield ["The end of ", code(each["stage"]), "'s log: ", code(" / ".join(each["log"]))]


def _replay(rows: Sequence[Mapping[str, Any]]) -> Table:
    heads = ("", "at once", "method", "tok/s", "replayed", "of it", "tokens a step", "replayed")
    lines = [
        [
            row["workload"],
            decimal(row["load"], 0),
            code(row["method"]),
            decimal(row["tokens_per_s"], 0),
            decimal(row["replayed_tokens_per_s"], 0),
            percent(row["tokens_per_s"] / row["replayed_tokens_per_s"], 0),
            decimal(row["tokens_per_row"], 2),
            decimal(row["replayed_tokens_per_row"], 2),
        ]
        for row in sorted(rows, key=lambda row: (row["workload"], row["load"], row["method"]))
    ]
    note = (
        "The same requests in the same order by the evaluator of `adaspec eval --engine async`, "
        "under the costs that were measured here (`costs/v2.json`), or else the builtin ones."
    )
    return simple_table("Against the replay", heads, lines, names=3, sentence=note)


def _stages(stages: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [
            code(each["stage"]),
            each["status"],
            foreign(each["why"] or ""),
            decimal(each["seconds"], 0),
        ]
        for each in stages
    ]
    return simple_table("Stages", ("stage", "status", "why", "seconds"), rows, names=3)


def _headline(lines: Sequence[Mapping[str, Any]]) -> Table:
    heads = ("", "at once", "method", "over none", "over EAGLE-3", "over vLLM's best", "which is")
    rows = [
        [
            line["workload"],
            str(line["load"]),
            code(method),
            *(_span(over[key]) for key in ("none", "eagle3", "vllm")),
            code(line["best_vllm"] or NULL),
        ]
        for line in lines
        for method, over in line["over"].items()
    ]
    sentence = (
        "Medians of tokens per second, and the span of single rounds. EAGLE-3 at the length, and "
        "vLLM with the method, that turned out best at that load."
    )
    return simple_table("Headline", heads, rows, 3, sentence)


def _lossless(checks: Sequence[Mapping[str, Any]]) -> Table:
    heads = ("stage", "equal", "nearly tied", "different", "n-gram", "neural", "splice", "faults")
    rows = [
        [
            code(each["stage"]),
            *(str(each[name]) for name in ("equal", "near_tie", "different")),
            *(str(each["taken"][source]) for source in ("ngram", "neural", "splice")),
            str(sum(each["faults"].values())),
        ]
        for each in checks
    ]
    sentence = (
        "Greedy outputs of policies that decide at random, against those of no speculation, and "
        "how many drafts of each source were verified. Where two tokens are nearly tied, rounding "
        "decides."
    )
    return simple_table("Lossless", heads, rows, sentence=sentence)


def _costs(document: Mapping[str, Any]) -> Iterator[Table]:
    costs = document["costs"]
    if costs:
        yield _constants(costs)
        yield _plain_steps(costs)
    for way, profile in costs.items():
        yield _forwards(way, profile)
    if document["kernels"]:
        yield _kernels(document["kernels"])


def _constants(costs: Mapping[str, Any]) -> Table:
    heads = ("engine", "step ms", "token us", "1,000 KV us", "forward ms", "error", "complaints")
    rows = []
    for way, profile in costs.items():
        cost = profile["cost"]
        rows.append(
            [
                code(way),
                milliseconds(cost["fixed_s"] + cost["overhead_s"]),
                decimal(1e6 * cost["per_token_s"], 1),
                decimal(1e9 * cost["per_kv_s"], 1),
                milliseconds(cost["draft_fixed_s"]),
                percent(profile["fit"]["mean_error"], 1),
                foreign("; ".join(profile["complaints"]) or NULL),
            ]
        )
    sentence = "Cost models as `adaspec profile` fits them, in `costs/`; error: of held-out steps."
    return simple_table("Step costs", heads, rows, sentence=sentence)


def _plain_steps(costs: Mapping[str, Any]) -> Table:
    found = plain_steps(costs)
    batches = sorted({batch for _, batch in found})
    rows = [
        [code(way), *(milliseconds(found.get((way, batch))) for batch in batches)] for way in costs
    ]
    heads = ("ms", *(f"batch {batch}" for batch in batches))
    return simple_table("Steps that draft nothing", heads, rows, sentence="Medians over contexts.")


def _forwards(way: str, profile: Mapping[str, Any]) -> Table:
    found = steps_by_forwards(profile)
    forwards = sorted({count for _, count in found})
    rows = [
        [f"batch {batch}", *(milliseconds(found.get((batch, count))) for count in forwards)]
        for batch in sorted({batch for batch, _ in found})
    ]
    heads = ("ms", *(f"{count} forwards" for count in forwards))
    sentence = "Medians over contexts and verified lengths; 1 forward includes the keep-alive."
    return simple_table(["Steps by the drafter's forwards, ", code(way)], heads, rows, 1, sentence)


def _kernels(cells: Sequence[Mapping[str, Any]]) -> Table:
    names = ("launch_predict_s", "launch_draft_s", "launch_s", "done_s")
    rows = [
        [f"{cell['way']}, batch {cell['batch']}", *(milliseconds(cell[name]) for name in names)]
        for cell in cells
    ]
    heads = ("ms", "launch: predict", "launch: choose and pack", "launch: all", "until done")
    sentence = "One step's decision on the device: in Triton kernels, and in torch alone."
    return simple_table("The price of deciding on V2", heads, rows, sentence=sentence)


def _span(over: Mapping[str, float] | None) -> str:
    if over is None:
        return NULL
    return f"{times(over['ratio'])} ({over['least']:.2f} to {over['most']:.2f})"


def _speeds(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    heads = ("at once", "method", "tok/s", "least", "most", "rounds", "tokens a step")
    heads = (*heads, "longest ms", "steps", "of them compiled", "put off", "held off", "faults")
    cells = [
        [
            str(row["load"]),
            code(row["method"]),
            decimal(row["tokens_per_s"], 1),
            decimal(min(row["by_round"]), 1),
            decimal(max(row["by_round"]), 1),
            str(len(row["by_round"])),
            decimal(row["tokens_per_row"]),
            decimal(row["longest_ms"], 1),
            str(row["steps"]),
            str(row["compiled_in"]),
            str(row["preempted"]),
            f"{_counts(row['held'])}; {row['switches']} times" if row["held"] else NULL,
            str(sum(row["faults"].values())),
        ]
        for row in rows
    ]
    sentence = (
        "Medians over rounds. tokens a step: of each request that emitted some. held off: steps by "
        "the guard's word, and how often it held speculation off."
    )
    return simple_table(f"Throughput: {title}", heads, cells, 2, sentence)


def _graphs(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    cells = [
        [
            str(row["load"]),
            code(row["method"]),
            _counts(row["graphs"]),
            _counts(row["outside"]),
            _counts(row["forwards"]),
        ]
        for row in rows
    ]
    heads = ("at once", "method", "graphs", "outside all", "forwards")
    sentence = "The target's steps by CUDA graph, why some ran in none, and the head's forwards."
    return simple_table(f"Graphs: {title}", heads, cells, 5, sentence)


def _times(rows: Sequence[Mapping[str, Any]], title: str, cost: str) -> Table:
    cells = [
        [
            str(row["load"]),
            code(row["method"]),
            each["mode"],
            str(each["forwards"]),
            str(each["steps"]),
            decimal(each["tokens"], 0),
            decimal(each["ms"]),
            decimal(each["priced_ms"]),
        ]
        for row in rows
        for each in row["step_ms"]
    ]
    heads = ("at once", "method", "graph", "forwards", "steps", "tokens", "ms", "by the costs")
    sentence = f"Medians of steps that compile nothing, beside what `{cost}` says of the same ones."
    return simple_table(f"Step times: {title}", heads, cells, 4, sentence)


def _counts(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    return ", ".join(f"{name} {count / total:.0%}" for name, count in ordered) or NULL

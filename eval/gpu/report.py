"""Writes the report of all rounds so far: report.json, and report.html with its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import document_of
from results import write_json

from adaspec.evaluate.page import page
from adaspec.evaluate.plain_table import (
    NULL,
    Section,
    Table,
    decimal,
    percent,
    times,
)

WORKLOADS = {
    "llama": "recordings of Llama-3.1-8B and its EAGLE head",
    "pair": "recordings of SmolLM2 and its EAGLE-3 head",
}


def write_report(folder: Path) -> None:
    """Write what there is to say so far."""
    document = document_of(folder)
    write_json(folder / "report.json", document)
    tables = Section("What was measured", list(_tables(document)))
    notes = [_where(document), *_notes(document)]
    html = page("adaspec on this machine", [tables], notes=notes)
    (folder / "report.html").write_text(html, encoding="utf-8", errors="replace")


def _where(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    if machine is None:
        return "no engine has run"
    where = ", ".join(f"{name} {value}" for name, value in machine.items())
    if document["dry_run"]:
        where += ": a dry run of tiny models on a CPU, V2 in an interpreter; no time here counts"
    return where


def _tables(document: Mapping[str, Any]) -> Iterator[Table]:
    if document["headline"]:
        yield _headline(document["headline"])
    for workload, title in WORKLOADS.items():
        here = [row for row in document["throughput"] if row["workload"] == workload]
        if here:
            yield _speeds(here, title)
            yield _times(here, title, document["priced_by"])
    if document["replay"]:
        yield _replay(document["replay"])


def _notes(document: Mapping[str, Any]) -> Iterator[str]:
    for name, engine in document["engines"].items():
        if "error" in engine:
            yield f"The engine {name}: {engine['error']}"


def _replay(rows: Sequence[Mapping[str, Any]]) -> Table:
    heads = ("", "at once", "method", "tok/s", "replayed", "of it", "tokens a step", "replayed")
    lines = [
        [
            row["workload"],
            decimal(row["load"], 0),
            row["method"],
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
        "under the builtin costs."
    )
    return Table("Against the replay", heads, lines, names=3, sentence=note)


def _headline(lines: Sequence[Mapping[str, Any]]) -> Table:
    heads = ("", "at once", "method", "over none", "over EAGLE-3", "over vLLM's best", "which is")
    rows = [
        [
            line["workload"],
            str(line["load"]),
            method,
            *(_span(over[key]) for key in ("none", "eagle3", "vllm")),
            line["best_vllm"] or NULL,
        ]
        for line in lines
        for method, over in line["over"].items()
    ]
    sentence = (
        "Medians of tokens per second, and the span of single rounds. EAGLE-3 at the length, and "
        "vLLM with the method, that turned out best at that load."
    )
    return Table("Headline", heads, rows, 3, sentence)


def _span(over: Mapping[str, float] | None) -> str:
    if over is None:
        return NULL
    return f"{times(over['ratio'])} ({over['least']:.2f} to {over['most']:.2f})"


def _speeds(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    cells: list[list[str]] = [
        [
            str(row["load"]),
            row["method"],
            decimal(row["tokens_per_s"], 1),
            " ".join(f"{speed:.1f}" for speed in row["by_round"]),
            decimal(row["tokens_per_row"]),
            str(row["steps"]),
            str(row["compiled_in"]),
            decimal(row["longest_ms"], 1),
            *(_counts(row[name]) for name in ("graphs", "outside", "forwards", "held")),
            str(row["switches"]),
            str(row["preempted"]),
            str(sum(row["faults"].values())),
        ]
        for row in rows
    ]
    heads = ("at once", "method", "tok/s", "by round", "tokens a step", "steps", "compiled in")
    more = ("longest ms", "graphs", "outside all", "forwards", "guard", "held off", "put off")
    sentence = (
        "Medians over rounds. tokens a step: of each request that emitted some. graphs: the "
        "target's steps by CUDA graph, and why some ran outside all. guard: steps by its state."
    )
    return Table(f"Throughput: {title}", (*heads, *more, "faults"), cells, 2, sentence)


def _times(rows: Sequence[Mapping[str, Any]], title: str, cost: str) -> Table:
    cells: list[list[str]] = [
        [
            str(row["load"]),
            row["method"],
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
    return Table(f"Step times: {title}", heads, cells, 4, sentence)


def _counts(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    return ", ".join(f"{name} {count / total:.0%}" for name, count in ordered) or NULL

"""Writes the report: report.json, and report.html with its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from figures import Row, document_of
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

ABOUT = (
    "What is accepted is what an EAGLE head got right as it was recorded for Llama-3.1-8B; each of "
    "its forwards takes the time of an EAGLE-3 head of these shapes. A real EAGLE-3 head is right "
    "more often, as a rule."
)


def write_report(folder: Path, replay: Sequence[Row]) -> None:
    """Write all that there is to say."""
    document = document_of(folder, replay)
    write_json(folder / "report.json", document)
    tables = Section("What was measured", list(_tables(document)))
    html = page("adaspec on this machine", [tables], notes=list(_notes(document)))
    (folder / "report.html").write_text(html, encoding="utf-8", errors="replace")


def _notes(document: Row) -> Iterator[str]:
    engines = document["engines"]
    yield ", ".join({str(each["hardware"]) for each in engines.values() if "hardware" in each})
    if document["dry_run"]:
        yield "A dry run of tiny models on a CPU, V2 in an interpreter: no time here counts."
    for name, engine in engines.items():
        if "error" in engine or "ended" in engine:
            yield f"The engine {name}: {engine.get('error') or engine['ended']}"
    lossless = document["lossless"]
    said = "they have not ended" if lossless is None else lossless["problems"] or "all is well"
    yield f"Outputs of policies that decide at random, on tiny models: {said}"


def _tables(document: Row) -> Iterator[Table]:
    yield _headline(document["headline"])
    yield _speeds(document["throughput"])
    yield _rejected(document["rejected"])
    yield _bounded(document["bounded"])
    yield _profiles(document["profiles"])
    yield _times(document["throughput"], document["priced_by"])
    yield _replay(document["replay"], document["priced_by"])


def _rejected(lines: Sequence[Row]) -> Table:
    heads = ("at once", "of no speculation", "drafted of a row", "guard")
    rows = [
        [
            str(line["load"]),
            percent(line["share"], 1),
            decimal(line["drafted_per_row"], 2),
            _counts(line["held"]),
        ]
        for line in lines
    ]
    sentence = "adaspec's tokens per second beside those of no speculation, with no draft accepted."
    return Table("Where every draft is rejected", heads, rows, 1, sentence)


def _bounded(lines: Sequence[Row]) -> Table:
    heads = ("at once", "bound ms", "steps beyond, unbounded", "bounded", "tok/s", "bounded")
    rows = [
        [
            str(line["load"]),
            decimal(line["bound_ms"]),
            *(percent(share, 1) for share in line["beyond"]),
            *(decimal(speed, 0) for speed in line["tokens_per_s"]),
        ]
        for line in lines
    ]
    sentence = (
        "adaspec with steps of 1.25 plain ones at most; steps that read prompts are left out."
    )
    return Table("With a bound", heads, rows, 1, sentence)


def _profiles(lines: Sequence[Row]) -> Table:
    heads = ("at once", "method", "ms a step", "busy", "idle", "gaps", "kernels", "longest gap us")
    rows = [
        [
            str(line["load"]),
            line["method"],
            decimal(line["wall_us"] / 1e3),
            percent(line["busy_us"] / line["wall_us"], 0),
            percent(line["gaps_us"] / line["wall_us"], 0),
            decimal(line["gaps"], 1),
            decimal(line["launched"], 0),
            decimal(line["longest_gaps"][0]["us"], 0) if line["longest_gaps"] else NULL,
        ]
        for line in lines
    ]
    sentence = (
        "Some steps behind the ramp, in torch's profiler, which slows the host down. The report's "
        "JSON names the kernels, CUDA's calls, and what stands on both sides of the longest gaps."
    )
    return Table("Profiles", heads, rows, 2, sentence)


def _replay(rows: Sequence[Row], cost: str) -> Table:
    heads = ("at once", "method", "tok/s", "replayed", "of it", "tokens a step", "replayed")
    lines = [
        [
            decimal(row["load"], 0),
            row["method"],
            decimal(row["tokens_per_s"], 0),
            decimal(row["replayed_tokens_per_s"], 0),
            percent(row["tokens_per_s"] / row["replayed_tokens_per_s"], 0),
            decimal(row["tokens_per_row"], 2),
            decimal(row["replayed_tokens_per_row"], 2),
        ]
        for row in sorted(rows, key=lambda row: (row["load"], row["method"]))
    ]
    note = (
        "The same requests in the same order by the evaluator of `adaspec eval --engine async`, "
        f"under the costs '{cost}'."
    )
    return Table("Against the replay", heads, lines, names=2, sentence=note)


def _headline(lines: Sequence[Row]) -> Table:
    heads = ("at once", "method", "over none", "over EAGLE-3", "over vLLM's best", "which is")
    rows = [
        [
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
        f"vLLM with the method, that turned out best at that load. {ABOUT}"
    )
    return Table("Headline", heads, rows, 2, sentence)


def _span(over: Mapping[str, float] | None) -> str:
    if over is None:
        return NULL
    return f"{times(over['ratio'])} ({over['least']:.2f} to {over['most']:.2f})"


def _speeds(rows: Sequence[Row]) -> Table:
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
    return Table("Throughput", (*heads, *more, "faults"), cells, 2, sentence)


def _times(rows: Sequence[Row], cost: str) -> Table:
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
    return Table("Step times", heads, cells, 4, sentence)


def _counts(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    return ", ".join(f"{name} {count / total:.0%}" for name, count in ordered) or NULL

"""A benchmark's report for readers: tables and sentences, a page of markdown, and a picture.

Reports of early versions lack some of the keys: what those would show is left out.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from adaspec.bench.engine import methods
from adaspec.bench.engine.comparison import MIN_ROUNDS
from adaspec.bench.engine.report import complaint
from adaspec.evaluate.options import ALL
from adaspec.evaluate.render.markdown import table_markdown, text_markdown
from adaspec.evaluate.render.style import (
    FAINT,
    INK,
    MUTED,
    NEURAL,
    NGRAM,
    SMALL,
    canvas,
    named_axes,
    place,
    titled,
)
from adaspec.evaluate.render.table import Column, Row, Table, Text, code, foreign

COLUMNS = (
    Column("method", left=True),
    Column("tok/s"),
    Column("over none"),
    Column("spread"),
    Column("adaspec over it"),
    Column("expected", priority=5),
    Column("TTFT ms", priority=3),
    Column("ITL ms", priority=6),
    Column("p95", priority=2),
    Column("accepted", priority=4),
    Column("machine", priority=1),
)
_COLOURS = {
    methods.NGRAM: NGRAM,
    methods.NEURAL: NEURAL,
    methods.SUFFIX: "#A89580",
    methods.STATIC: "#1F262E",
    methods.ADASPEC: "#C8390E",
}
_ROW_IN, _GAP_IN = 0.19, 0.62


def _rounds(report: Mapping[str, Any]) -> str:
    count = report["rounds"]
    return "1 round" if count == 1 else f"{count} interleaved rounds"


def _span(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """The ends of a speed-up: of its 95% interval, or the worst and the best of few rounds."""
    ends = row.get("speedup_interval") or row.get("speedup_range")
    return None if ends is None else (ends[0], ends[1])


def tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """A table per load and workload, of a row per method and setting."""
    rows: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in report["rows"]:
        rows[row["concurrency"], row["workload"]].append(Row(_cells(row)))
    for (concurrency, workload), in_cell in rows.items():
        yield Table([f"{concurrency} at once, ", foreign(workload)], COLUMNS, [in_cell])


def sentences(report: Mapping[str, Any]) -> Iterator[str]:
    """The sentences below the tables."""
    for each in report["headline"]:
        lead = each.get("adaspec_over_best_static")
        if lead is None:
            continue
        sure = ""
        if interval := each.get("adaspec_over_best_static_interval"):
            sure = f" (95%: {interval[0]:.3f} .. {interval[1]:.3f})"
        elif ends := each.get("adaspec_over_best_static_range"):
            sure = f" ({ends[0]:.3f} .. {ends[1]:.3f} by round)"
        yield (
            f"{each['concurrency']} at once, {each['workload']}: adaspec is {lead:.3f}x{sure} "
            f"{each['best_static']}, the best static setting, and "
            f"{each['adaspec_over_none']:.3f}x no speculation; the evaluator was within 10% of "
            f"{each['expected_right']} of {each['expected_known']} methods"
        )
    for name, why in report["absent"].items():
        yield f"not run: {name}: {why}"
    for each in report["differences"]:
        if each["near_tie"]:
            yield (
                f"near-tie at {each['concurrency']} at once: {each['method']}, request "
                f"{each['workload']}/{each['id']}, token {each['position']}: "
                f"{each['margin']:.2g} apart"
            )
    for note in report["notes"]:
        yield f"note: {note}"


def _cells(row: Mapping[str, Any]) -> tuple[Text, ...]:
    ends = _span(row)
    name = f"{row['method']} {row['setting']}".strip()
    return (
        code(name + (" (runner-up)" if row["runner_up"] else "")),
        _shown(row["tokens_per_s"], ".1f"),
        _shown(row["speedup"], ".2f", "x"),
        "-" if ends is None else f"{ends[0]:.2f}..{ends[1]:.2f}",
        _shown(row.get("adaspec_over"), ".2f", "x"),
        _shown(row["expected_speedup"], ".2f", "x"),
        _milliseconds(row["ttft_s"]["median"]),
        _milliseconds(row["inter_token_s"]["median"]),
        _milliseconds(row["inter_token_s"]["p95"]),
        _shown(row["accepted_per_step"], ".2f"),
        _shown(row.get("machine"), ".2f"),
    )


def _shown(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f}"


def page(report: Mapping[str, Any], plot: str) -> str:
    """The markdown page; `plot` is where the picture lies."""
    return "\n\n".join(_parts(report, plot)) + "\n"


def _parts(report: Mapping[str, Any], plot: str) -> Iterator[str]:
    yield "# Engines side by side"
    yield text_markdown(
        [
            code(report["model"]),
            " with ",
            code(report["drafter"] or "no head"),
            f" in vLLM {report['vllm']} on {report['hardware']}; {_rounds(report)}, at most "
            f"{report['max_tokens']} tokens an answer, greedy, settings chosen under the costs ",
            code(report["cost"] or "by default"),
            "; engine arguments ",
            code(json.dumps(report["engine"])),
            ".",
        ]
    )
    yield (
        "`tok/s`: up to the moment when a slot stays empty. `over none`: of the same rounds; "
        "`spread`: its 95% interval over rounds drawn again, or of fewer than "
        f"{MIN_ROUNDS} rounds the worst and the best. `adaspec over it`: of the same rounds. "
        "`expected`: what the evaluator makes of those rounds. TTFT and ITL (the gap between two "
        "pieces of an answer): medians, ITL with its 95th percentile. `accepted`: drafted tokens "
        "per piece. `machine`: what a fixed read of memory took around a method's visits, over "
        "what it took around no speculation's: above 1 the machine itself was slower."
    )
    for table in tables(report):
        yield table_markdown(table)
    lines = [f"- {sentence}" for sentence in sentences(report)]
    if wrong := complaint(report):
        lines.append(f"- **{wrong}**")
    yield "\n".join(lines)
    yield f"![Throughput over no speculation]({plot})"


def save_plot(report: Mapping[str, Any], path: Path) -> Path:
    """Write the picture; its path."""
    speedup_figure(report).savefig(path, format="png", metadata={"Software": None})
    return path


def speedup_figure(report: Mapping[str, Any]) -> Figure:
    """A panel per load and workload, the mix first; a dot per setting on the line of its span."""
    cells: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in report["rows"]:
        if row["method"] != methods.NONE and row["speedup"] is not None:
            cells[row["concurrency"], row["workload"]].append(row)
    height = 1.0 + sum(_ROW_IN * len(rows) + _GAP_IN for rows in cells.values())
    figure, top = canvas(
        height,
        "Throughput over no speculation",
        f"{report['model']}, greedy, {_rounds(report)}: dot: all rounds; line: "
        "its 95% interval, or the worst and the best of few; open circle: what the evaluator "
        "expected.",
    )
    values = [1.0]
    for row in itertools.chain(*cells.values()):
        values += _span(row) or ()
        values += [row["expected_speedup"]] if row["expected_speedup"] is not None else []
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) + 0.02
    for (concurrency, workload), rows in cells.items():
        tall = _ROW_IN * len(rows)
        axes = place(figure, 2.35, top + 0.3, 4.4, tall)
        for line, row in enumerate(rows):
            colour = _COLOURS.get(row["method"], MUTED)
            ends = _span(row) or (row["speedup"], row["speedup"])
            axes.plot(ends, [line, line], color=colour, linewidth=1.4, alpha=0.6)
            axes.plot([row["speedup"]], [line], "o", color=colour, markersize=5)
            if row["expected_speedup"] is not None:
                expected = [row["expected_speedup"]]
                axes.plot(expected, [line], "o", color=colour, markersize=7, mfc="none")
        axes.axvline(1.0, color="#444444", linewidth=1.0, zorder=0)
        axes.set_xlim(low - margin, high + margin)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        names = [f"{row['method']} {row['setting']}"[:44] for row in rows]
        axes.set_yticks(range(len(rows)), names, fontsize=SMALL - 1, color=INK)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
        where = "all workloads, mixed" if workload == ALL else workload
        titled(axes, f"{concurrency} at once, {where}", SMALL)
        top += tall + _GAP_IN
    if cells:
        named_axes(axes, "throughput over no speculation in the same rounds")
    return figure

"""The benchmark in one picture: every method's speed-up, workload by workload, load by load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from adaspec.bench.engine import entrants
from adaspec.bench.engine.words import rounds, span
from adaspec.evaluate.closed_loop import ALL
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

_COLOURS = {
    entrants.NGRAM: NGRAM,
    entrants.NEURAL: NEURAL,
    entrants.SUFFIX: "#A89580",
    entrants.TABLE: "#7F9B8A",
    entrants.STATIC: "#1F262E",
    entrants.ADASPEC: "#C8390E",
}
_ROW_IN, _GAP_IN = 0.19, 0.62


def save_plot(report: Mapping[str, Any], path: Path) -> Path:
    """Write the picture; its path."""
    speedup_figure(report).savefig(path, format="png", metadata={"Software": None})
    return path


def speedup_figure(report: Mapping[str, Any]) -> Figure:
    """A panel per load and workload, the mix first; a dot per setting on the line of its span."""
    panels: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in report["rows"]:
        if row["method"] != entrants.NONE and row["speedup"] is not None:
            panels.setdefault((row["concurrency"], row["workload"]), []).append(row)
    height = 1.0 + sum(_ROW_IN * len(rows) + _GAP_IN for rows in panels.values())
    figure, top = canvas(
        height,
        "Throughput over no speculation",
        f"{report['model']}, greedy, {rounds(report)}: dot: all rounds; line: "
        "its 95% interval, or the worst and the best of few; open circle: what the evaluator "
        "expected.",
    )
    values = [
        value
        for rows in panels.values()
        for row in rows
        for value in (*(span(row) or ()), row["expected_speedup"])
        if value is not None
    ]
    low, high = min([*values, 1.0]), max([*values, 1.0])
    margin = 0.05 * (high - low) + 0.02
    for (concurrency, workload), rows in panels.items():
        tall = _ROW_IN * len(rows)
        axes = place(figure, 2.35, top + 0.3, 4.4, tall)
        for at, row in enumerate(rows):
            colour = _COLOURS.get(row["method"], MUTED)
            ends = span(row) or (row["speedup"], row["speedup"])
            axes.plot(ends, [at, at], color=colour, linewidth=1.4, alpha=0.6)
            axes.plot([row["speedup"]], [at], "o", color=colour, markersize=5)
            if row["expected_speedup"] is not None:
                axes.plot(
                    [row["expected_speedup"]], [at], "o", color=colour, markersize=7, mfc="none"
                )
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
    if panels:
        named_axes(axes, "throughput over no speculation in the same rounds")
    return figure

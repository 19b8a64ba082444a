"""The common look of all plots: colours, canvas, labels beside lines, log-2 concurrency axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from adaspec.evaluate.render.table import plain, short, short_names
from adaspec.evaluate.render.tables import batched
from adaspec.evaluate.report import OPPONENT, Report

Interval = Sequence[float] | None
WIDTH_IN = 7.0
DPI = 160
"""At this resolution a plot is 1,120 px wide; shown at 700 px, 8-point text is still 11 px high."""

INK, MUTED, FAINT = "#222222", "#6B6B6B", "#DDDDDD"
NGRAM, NEURAL = "#E08A00", "#2A7FBA"
"""Orange and blue, which can be told apart with any kind of colour vision, and in grey."""
TITLE, TEXT, SMALL = 11.0, 9.0, 8.0

_LEGEND_LINE_IN, _LEFT_IN = 0.19, 0.12
_LABEL_WIDTH = 28
"""Longer names are cut in the middle to this many characters."""
_NAMED = ("#C8390E", "#0B5FA5", "#00805E", "#B0468E", "#7A5B00", "#4B3F9E", "#008C9E", "#8A1C3F")
_NAMED_MARKERS = "osDvP^Xp"


@dataclass(frozen=True, slots=True)
class Look:
    """How one policy is drawn in all plots."""

    colour: str
    marker: str = ""
    ink: str = "#566270"
    """The colour of the policy's name: as vivid as its line, or dark enough to read."""
    width: float = 1.2
    order: float = 3.0
    dashes: Any = "-"
    hatch: str = ""
    label: str = ""


_MEMORY = "#4F7396"
"""Oracles that copy from earlier answers as well are as those that do not, but blue."""


def _oracle(colour: str, dashes: tuple[float, ...], hatch: str) -> Look:
    return Look(colour, "", MUTED, 1.1, 2.0, (0, dashes), hatch)


_KNOWN = {
    "none": Look("#444444"),
    "fixed:best": Look("#97A3B0", "v"),
    "hybrid:best": Look("#6B7886", "^"),
    "adaptive:best": Look("#A89580", "<"),
    "static:one": Look("#B9A7C4", ">"),
    "static:tuned": Look("#7F9B8A", "h"),
    "static:fresh": Look("#8FA68F", "p"),
    "static:memory": Look("#5F7FA0", "d"),
    OPPONENT: Look("#1F262E", "s", INK, 1.8),
    "oracle:ngram": _oracle(NGRAM, (2, 1), "////"),
    "oracle:neural": _oracle(NEURAL, (2, 1), "////"),
    "oracle:combine": _oracle("#A6A6A6", (1, 1.5), "...."),
    "oracle:plan": _oracle("#8A8A8A", (4, 2), "////"),
    "oracle:plan-splice": _oracle("#5C5C5C", (6, 1.5), "xxxx"),
    "oracle:dp": _oracle("#8A8A8A", (4, 2, 1, 2), "----"),
    "oracle:dp-splice": _oracle("#3C3C3C", (6, 1.5, 1, 1.5), "++++"),
}
_KNOWN |= {
    f"{name}-memory": replace(look, colour=_MEMORY)
    for name, look in _KNOWN.items()
    if name.startswith("oracle:")
}


def looks(report: Report) -> dict[str, Look]:
    """A look per policy of a report: vivid for named ones, grey baselines, dashed oracles."""
    labels = short_names(report.shown, _LABEL_WIDTH)
    named = {}
    for index, name in enumerate(report.policies):
        colour = _NAMED[index % len(_NAMED)]
        hatch = _KNOWN[name].hatch if name in _KNOWN else ""
        marker = _NAMED_MARKERS[index % len(_NAMED)]
        named[name] = Look(colour, marker, colour, 2.0, 5.0, hatch=hatch)
    return {name: replace(named.get(name) or _KNOWN[name], label=labels[name]) for name in labels}


def canvas(
    height_in: float, title: str, note: str, legend: Sequence[Look] = (), bars: bool = False
) -> tuple[Figure, float]:
    """A figure with title, note and legend at the top left, and the inches that they take.

    The legend's height is added to `height_in`; its samples are lines, or bars if `bars`.
    """
    columns = max(1, int(WIDTH_IN / (0.3 + label_width_in([look.label for look in legend]))))
    legend_in = _LEGEND_LINE_IN * math.ceil(len(legend) / columns)
    height_in += legend_in
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)  # no display, no pyplot state
    top = 0.1
    for text, width, size, colour, weight in (
        (title, 70, TITLE, INK, "bold"),
        (note, 106, SMALL, MUTED, "normal"),
    ):
        lines = textwrap.wrap(plain(text), width)
        figure.text(
            _LEFT_IN / WIDTH_IN,
            1 - top / height_in,
            "\n".join(lines),
            fontsize=size,
            color=colour,
            weight=weight,
            va="top",
            linespacing=1.25,
            parse_math=False,
        )
        top += len(lines) * size * 1.32 / 72 + 0.03
    if legend:
        top += 0.06
        drawn_legend = figure.legend(
            [_sample(look, bars) for look in legend],
            [look.label for look in legend],
            loc="upper left",
            bbox_to_anchor=(_LEFT_IN / WIDTH_IN, 1 - top / height_in),
            ncols=columns,
            frameon=False,
            fontsize=SMALL,
            labelcolor=INK,
            borderpad=0,
            borderaxespad=0,
            labelspacing=0.4,
        )
        for label in drawn_legend.get_texts():
            label.set_parse_math(False)
    return figure, top + legend_in + 0.1


def report_canvas(
    report: Report,
    height_in: float,
    title: str,
    note: str,
    legend: Sequence[Look] = (),
    bars: bool = False,
) -> tuple[Figure, float]:
    """A canvas whose title and note say how the report was made."""
    count = sum(report.used.values())
    requests = f"{count:,} requests" if count else ""
    cost = f"cost model {report.document.get('cost')}"
    batching = str(report.document.get("batching", "")).replace("-", " ")
    facts = ", ".join(filter(None, (requests, cost, batching)))
    text = "".join(str(part) for part in batched(report, [title]))
    return canvas(height_in, text, facts + note, legend, bars)


def _sample(look: Look, bar: bool) -> Patch | Line2D:
    """The line or bar that stands for a policy in a legend."""
    if bar:
        return Patch(facecolor=look.colour, edgecolor="white", hatch=look.hatch, linewidth=0)
    style = {"color": look.colour, "linestyle": look.dashes, "linewidth": look.width}
    return Line2D([], [], marker=look.marker, markersize=4, **style)


def place(
    figure: Figure, left: float, top: float, width: float, height: float, **keywords: Any
) -> Axes:
    """Axes at inches from the figure's left and top edges."""
    wide, high = (float(size) for size in figure.get_size_inches())
    box = (left / wide, 1 - (top + height) / high, width / wide, height / high)
    axes = figure.add_axes(box, **keywords)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#AAAAAA")
    axes.tick_params(labelsize=SMALL, colors=MUTED, length=3, color="#AAAAAA")
    axes.set_axisbelow(True)
    return axes


def titled(axes: Axes, text: str, size: float = TEXT) -> None:
    """A bold title over the axes' left edge."""
    title = axes.set_title(plain(text), loc="left", fontsize=size, color=INK, weight="bold", pad=4)
    title.set_parse_math(False)


def named_axes(axes: Axes, x: str = "", y: str = "") -> None:
    """Set the axis labels; their texts include the units."""
    axes.set_xlabel(x, fontsize=SMALL, color=MUTED, labelpad=3)
    axes.set_ylabel(y, fontsize=SMALL, color=MUTED, labelpad=4)


def light_grid(axes: Axes, axis: Literal["both", "x", "y"] = "y") -> None:
    """Draw light grid lines."""
    axes.grid(axis=axis, color=FAINT, linewidth=0.6)


def log2_loads(axes: Axes, concurrencies: Sequence[int]) -> None:
    """Make x a log-2 concurrency axis with a tick at every evaluated concurrency."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(concurrencies, [str(load) for load in concurrencies])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(concurrencies[0] / 1.22, concurrencies[-1] * 1.1)


def speedup_ticks(axes: Axes) -> None:
    """Label y ticks as `2x`, with light grid lines, and draw `none` as a line at 1."""
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    light_grid(axes)
    axes.axhline(1.0, color=_KNOWN["none"].colour, linewidth=1.0, zorder=2.5)


def percent_ticks(axes: Axes, axis: Literal["x", "y"] = "y") -> None:
    """Label ticks as `+5%`, with light grid lines."""
    target = axes.yaxis if axis == "y" else axes.xaxis
    target.set_major_formatter(lambda value, _: f"{100 * value:+g}%" if round(value, 6) else "0%")
    light_grid(axes, axis)


def subplots(
    figure: Figure,
    top: float,
    names: Sequence[str],
    high: float,
    row_in: float,
    gap_in: float = 0.4,
    columns: int = 2,
) -> Iterator[tuple[str, Axes, bool, bool]]:
    """Axes per name, in rows: the name, the axes, whether leftmost, whether at the bottom."""
    columns = min(columns, len(names))
    wide = (WIDTH_IN - 0.64 - 0.15 - gap_in * (columns - 1)) / columns
    for index, name in enumerate(names):
        row, column = divmod(index, columns)
        axes = place(figure, 0.64 + column * (wide + gap_in), top + row * row_in, wide, high)
        titled(axes, short(name, 24), TEXT if columns < 3 else SMALL)
        yield name, axes, column == 0, index + columns >= len(names)


def interval_bar(
    axes: Axes, interval: Interval, where: float, look: Look, upright: bool = True
) -> None:
    """Draw an interval, if there is one, as a bar."""
    if interval is not None:
        draw = axes.vlines if upright else axes.hlines
        lines = draw(where, interval[0], interval[1], color=look.colour, linewidth=1.6, alpha=0.55)
        lines.set_zorder(look.order - 0.5)


def label_width_in(labels: Sequence[str]) -> float:
    """The inches that the longest of `labels` takes, and a little more."""
    return 0.12 + 0.62 * SMALL / 72 * max((len(label) for label in labels), default=0)


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write each (value, text, colour) right of the axes at the value's height, without overlap."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    height_pt = 72 * float(figure.get_size_inches()[1]) * axes.get_position().height
    left, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
    points = axes.transData.transform([(left, max(value, bottom)) for value, _, _ in ends])
    heights = (axes.transAxes.inverted().transform(points)[:, 1] * height_pt).tolist()
    spread = spread_out(heights, min(SMALL * 1.25, height_pt / max(len(ends), 1)), height_pt)
    line = {"arrowstyle": "-", "linewidth": 0.5, "alpha": 0.7, "relpos": (0.0, 0.5)}
    line |= {"shrinkA": 0, "shrinkB": 0}
    for (value, text, colour), label_pt, value_pt in zip(ends, spread, heights, strict=True):
        axes.annotate(
            text,
            xy=(1.0, value_pt / height_pt),
            xycoords="axes fraction",
            xytext=(1.045, label_pt / height_pt),
            textcoords="axes fraction",
            va="center",
            ha="left",
            fontsize=SMALL,
            color=colour,
            parse_math=False,
            annotation_clip=False,
            gid=f"{value:.6g}",
            arrowprops={"color": colour, **line},
        )


def spread_out(wanted: Sequence[float], gap: float, limit: float) -> list[float]:
    """The positions nearest to `wanted`, in the same order, at least `gap` apart, in 0..limit."""
    from sklearn.isotonic import isotonic_regression  # slow to load

    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    highest = limit - gap / 2 - steps[-1]
    placed = np.empty(len(wanted))
    placed[order] = steps + isotonic_regression(
        np.array(wanted)[order] - steps, y_min=min(gap / 2, highest), y_max=highest
    )
    return placed.tolist()

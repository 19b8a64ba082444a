"""How every picture looks: one colour per policy, one canvas, labels beside lines, log-2 loads."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import blended_transform_factory

from adaspec.evaluate.render.results import ALL, BASELINES, OPPONENT, ORACLES, Results
from adaspec.evaluate.render.wording import plain, short_names

WIDTH_IN = 7.0
DPI = 160
"""1,120 px wide; shown at 700, type of 8 points is still 11 px high."""

INK, MUTED, FAINT = "#222222", "#6B6B6B", "#DDDDDD"
NGRAM, NEURAL = "#E08A00", "#2A7FBA"
"""Orange and blue: apart for every kind of colour vision, and in grey."""
TITLE, TEXT, SMALL = 11.0, 9.0, 8.0

LEGEND_LINE_IN = 0.19
_LEGEND_LEFT = 0.12

_NAMED = ("#C8390E", "#0B5FA5", "#00805E", "#B0468E", "#7A5B00", "#4B3F9E", "#008C9E", "#8A1C3F")
_NAMED_MARKERS = "osDvP^Xp"
_BASELINE = {
    "none": "#444444",
    "fixed:best": "#97A3B0",
    "hybrid:best": "#6B7886",
    "adaptive:best": "#A89580",
    "static:one": "#B9A7C4",
    "static:tuned": "#7F9B8A",
    OPPONENT: "#1F262E",
}
_BASELINE_MARKERS = {
    "none": "",
    "fixed:best": "v",
    "hybrid:best": "^",
    "adaptive:best": "<",
    "static:one": ">",
    "static:tuned": "h",
    OPPONENT: "s",
}
_ORACLE = {
    "oracle:ngram": NGRAM,
    "oracle:neural": NEURAL,
    "oracle:combine": "#A6A6A6",
    "oracle:plan": "#8A8A8A",
    "oracle:plan-splice": "#5C5C5C",
    "oracle:dp": "#8A8A8A",
    "oracle:dp-splice": "#3C3C3C",
}
_ORACLE_DASHES: dict[str, Any] = {
    "oracle:combine": (0, (1, 1.5)),
    "oracle:plan": (0, (4, 2)),
    "oracle:plan-splice": (0, (6, 1.5)),
    "oracle:dp": (0, (4, 2, 1, 2)),
    "oracle:dp-splice": (0, (6, 1.5, 1, 1.5)),
}
_ORACLE_HATCHES = {
    "oracle:combine": "....",
    "oracle:plan": "////",
    "oracle:plan-splice": "xxxx",
    "oracle:dp": "----",
    "oracle:dp-splice": "++++",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How one policy is drawn, everywhere."""

    label: str
    colour: str
    ink: str
    """The colour of its name: its own where it is vivid, else dark enough to read."""
    hatch: str
    marker: str
    dashes: Any
    width: float
    order: float


def looks(results: Results, label_width: int = 28) -> dict[str, Look]:
    """A look per policy of a report: named ones vivid, baselines grey, oracles dashed."""
    order = results.order()
    labels = short_names(order, label_width)
    found = {}
    for name in order:
        label = labels[name]
        hatch = _ORACLE_HATCHES.get(name, "////") if name in ORACLES else ""
        if name in results.policies:
            at = results.policies.index(name) % len(_NAMED)
            colour = _NAMED[at]
            look = Look(label, colour, colour, hatch, _NAMED_MARKERS[at], "-", 2.0, 5.0)
        elif name in ORACLES:
            dashes = _ORACLE_DASHES.get(name, (0, (2, 1)))
            look = Look(label, _ORACLE[name], MUTED, hatch, "", dashes, 1.1, 2.0)
        else:
            width = 1.8 if name == OPPONENT else 1.2
            ink = INK if name == OPPONENT else "#566270"
            marker = _BASELINE_MARKERS[name]
            look = Look(label, _BASELINE[name], ink, "", marker, "-", width, 3.0)
        found[name] = look
    return found


def groups(results: Results) -> tuple[list[str], list[str], list[str]]:
    """The policies of a report as (baselines, named, oracles), in the order they are shown."""
    order = results.order()
    named = [name for name in order if name in results.policies]
    first = [name for name in order if name in ("none", OPPONENT, *BASELINES) and name not in named]
    return first, named, [name for name in order if name in ORACLES and name not in named]


def canvas(height_in: float, title: str, note: str) -> tuple[Figure, float]:
    """A figure with its title and a note top left, and the inches that these take."""
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)  # no display, no pyplot state
    title_lines = textwrap.wrap(plain(title), 70)
    note_lines = textwrap.wrap(plain(note), 106)
    top = 0.1
    for lines, size, colour, weight in (
        (title_lines, TITLE, INK, "bold"),
        (note_lines, SMALL, MUTED, "normal"),
    ):
        figure.text(
            0.12 / WIDTH_IN,
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
    return figure, top + 0.1


def place(
    figure: Figure, left: float, top: float, width: float, height: float, **keywords: Any
) -> Axes:
    """Axes at inches from the figure's left and top edges."""
    wide, high = (float(each) for each in figure.get_size_inches())
    axes = figure.add_axes(
        (left / wide, 1 - (top + height) / high, width / wide, height / high), **keywords
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#AAAAAA")
    axes.tick_params(labelsize=SMALL, colors=MUTED, length=3, color="#AAAAAA")
    axes.set_axisbelow(True)
    return axes


def titled(axes: Axes, text: str, size: float = TEXT) -> None:
    """A panel's title, bold, over its left edge."""
    axes.set_title(plain(text), loc="left", fontsize=size, color=INK, weight="bold", pad=4)
    axes.title.set_parse_math(False)
    axes._left_title.set_parse_math(False)  # type: ignore[attr-defined]


def named_axes(axes: Axes, x: str = "", y: str = "") -> None:
    """Axis labels, with their units in the text."""
    axes.set_xlabel(x, fontsize=SMALL, color=MUTED, labelpad=3)
    axes.set_ylabel(y, fontsize=SMALL, color=MUTED, labelpad=4)


def log2_loads(axes: Axes, concurrencies: Sequence[int]) -> None:
    """A log-2 concurrency axis with a tick at every evaluated load."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([float(each) for each in concurrencies]))
    axes.xaxis.set_major_formatter(FixedFormatter([str(each) for each in concurrencies]))
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = concurrencies[0], concurrencies[-1]
    axes.set_xlim(low / 1.22, high * 1.1)


def speedup_ticks(axes: Axes) -> None:
    """Ticks that read `2x`, light lines across, and `none` as a line at 1."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.axhline(1.0, color=_BASELINE["none"], linewidth=1.0, zorder=2.5)


def percent_ticks(axes: Axes, axis: str = "y") -> None:
    """Ticks that read `+5%`, light lines across."""
    target = axes.yaxis if axis == "y" else axes.xaxis
    target.set_major_formatter(
        FuncFormatter(lambda value, _: f"{100 * value:+g}%" if round(value, 6) else "0%")
    )
    axes.grid(axis=axis, color=FAINT, linewidth=0.6)  # type: ignore[arg-type]


def label_width_in(labels: Sequence[str], size: float = SMALL) -> float:
    """Inches that the longest of `labels` takes, and a little more."""
    return 0.12 + 0.62 * size / 72 * max((len(each) for each in labels), default=0)


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]], size: float = SMALL) -> None:
    """Write (value, text, colour) right of the axes at its value's height, none over another."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    box = axes.get_position()
    height_pt = 72 * float(figure.get_size_inches()[1]) * box.height
    bottom = axes.get_ylim()[0]
    wanted = [_height(axes, max(value, bottom)) * height_pt for value, _, _ in ends]
    spread = spread_out(wanted, min(size * 1.25, height_pt / max(len(ends), 1)), height_pt)
    transform = blended_transform_factory(axes.transAxes, axes.transAxes)
    for (value, text, colour), at, before in zip(ends, spread, wanted, strict=True):
        axes.annotate(
            text,
            xy=(1.0, before / height_pt),
            xycoords=transform,
            xytext=(1.045, at / height_pt),
            textcoords=transform,
            va="center",
            ha="left",
            fontsize=size,
            color=colour,
            parse_math=False,
            annotation_clip=False,
            gid=f"{value:.6g}",
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.5,
                "alpha": 0.7,
                "relpos": (0.0, 0.5),
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )


def _height(axes: Axes, value: float) -> float:
    """Where `value` lies between the lower (0) and the upper (1) end of the axes."""
    x = axes.get_xlim()[0]
    return float(axes.transAxes.inverted().transform(axes.transData.transform((x, value)))[1])


def spread_out(wanted: Sequence[float], gap: float, limit: float) -> list[float]:
    """Positions near `wanted`, in the same order, at least `gap` apart, within 0..limit."""
    by_height = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[tuple[float, int]] = []  # (centre, members) of touching labels
    for index in by_height:
        centre, members = min(max(wanted[index], gap / 2), max(limit - gap / 2, gap / 2)), 1
        while blocks and blocks[-1][0] + blocks[-1][1] * gap / 2 > centre - members * gap / 2:
            other, count = blocks.pop()
            centre = (other * count + centre * members) / (count + members)
            members += count
            half = members * gap / 2
            centre = min(max(centre, half), max(limit - half, half))
        blocks.append((centre, members))
    placed = [0.0] * len(wanted)
    order = iter(by_height)
    for centre, members in blocks:
        for member in range(members):
            placed[next(order)] = centre + (member - (members - 1) / 2) * gap
    return placed


def legend_row(figure: Figure, top: float, entries: Sequence[Look], bars: bool) -> float:
    """Names beside a sample bar or line, in rows from `top` inches on; where they end."""
    wide, high = (float(each) for each in figure.get_size_inches())
    x, y = _LEGEND_LEFT, top
    for look in entries:
        width = _legend_width(look)
        if x > _LEGEND_LEFT and x + width > wide - 0.1:
            x, y = _LEGEND_LEFT, y + LEGEND_LINE_IN
        middle = 1 - (y + 0.065) / high
        sample: Artist
        if bars:
            sample = Rectangle(
                (x / wide, middle - 0.055 / high),
                0.2 / wide,
                0.11 / high,
                facecolor=look.colour,
                edgecolor="white",
                hatch=look.hatch,
                linewidth=0,
                transform=figure.transFigure,
            )
        else:
            sample = Line2D(
                [x / wide, (x + 0.11) / wide, (x + 0.22) / wide],
                [middle] * 3,
                color=look.colour,
                linestyle=look.dashes,
                linewidth=look.width,
                marker=look.marker,
                markevery=[1],
                markersize=4,
                transform=figure.transFigure,
            )
        figure.add_artist(sample)
        figure.text(
            (x + 0.27) / wide,
            middle,
            look.label,
            fontsize=SMALL,
            color=INK,
            va="center",
            parse_math=False,
        )
        x += width
    return y + 0.26


def legend_height(entries: Sequence[Look]) -> float:
    """Inches that `legend_row` takes for `entries`."""
    x, lines = _LEGEND_LEFT, 1
    for look in entries:
        if x > _LEGEND_LEFT and x + _legend_width(look) > WIDTH_IN - 0.1:
            x, lines = _LEGEND_LEFT, lines + 1
        x += _legend_width(look)
    return LEGEND_LINE_IN * (lines - 1) + 0.26


def _legend_width(look: Look) -> float:
    return 0.32 + label_width_in([look.label])


def where(results: Results, workload: str) -> str:
    """A workload as titles name it."""
    if workload != ALL:
        return plain(workload)
    names = [plain(name) for name in results.workloads if name != ALL]
    return names[0] if len(names) == 1 else "all workloads, mixed"

"""What is drawn inside the axes of a report's pictures: lines, points, intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes

from adaspec.evaluate.render.report import Interval, Report
from adaspec.evaluate.render.style import (
    INK,
    SMALL,
    TEXT,
    Look,
    log2_loads,
    percent_ticks,
    speedup_ticks,
)
from adaspec.evaluate.render.wording import signed_percent


def speedup_lines(
    axes: Axes, report: Report, workload: str, shown: Sequence[str], look: Mapping[str, Look]
) -> None:
    """A line per policy with its intervals; `none` is the line at 1."""
    for name in shown:
        loads, values = known(report, report.speedups(workload, name))
        if name == "none" or not loads:
            continue
        each = look[name]
        axes.plot(
            loads,
            values,
            color=each.colour,
            linestyle=each.dashes,
            linewidth=each.width,
            # A bound that holds at one load only has no line to be seen by.
            marker=each.marker or ("D" if len(loads) == 1 else ""),
            markersize=4.5 if name in report.policies else 3.5,
            zorder=each.order,
            gid=name,
        )
        for load in loads:
            interval_bar(axes, report.row(workload, load, name).interval, load, each, upright=True)
    log2_loads(axes, report.concurrencies)
    speedup_ticks(axes)


def lift_points(
    axes: Axes, report: Report, workload: str, names: Sequence[str], look: Mapping[str, Look]
) -> None:
    """Lifts with their intervals around a line at 0, named ones side by side."""
    axes.axhline(0, color=INK, linewidth=1.2, zorder=2)
    steps = [math.log2(high / low) for low, high in pairwise(report.concurrencies)]
    room = min(steps, default=1.0) * 0.5
    for index, name in enumerate(names):
        shift = (index - (len(names) - 1) / 2) * room / max(len(names), 3)
        loads, lifts = known(report, report.lifts(workload, name))
        xs = [load * 2**shift for load in loads]
        each = look[name]
        axes.plot(
            xs,
            lifts,
            color=each.colour,
            marker=each.marker,
            markersize=5,
            linewidth=0.8,
            alpha=0.95,
            zorder=each.order,
            gid=name,
        )
        for load, x, lift in zip(loads, xs, lifts, strict=True):
            interval = report.headline(workload, load, name).interval
            interval_bar(axes, interval, x, each, upright=True)
            if len(names) == 1:
                axes.annotate(
                    signed_percent(lift),
                    (x, interval[1] if interval else lift),
                    xytext=(0, 3),
                    textcoords="offset points",
                    fontsize=TEXT,
                    color=each.ink,
                    ha="center",
                    va="bottom",
                    weight="bold",
                )
    log2_loads(axes, report.concurrencies)
    low, high = axes.get_xlim()
    axes.set_xlim(low / 2 ** (room / 2), high * 2 ** (room / 2))
    percent_ticks(axes)
    axes.margins(y=0.12)


def label_point(axes: Axes, x: float, y: float, look: Look) -> None:
    """Write a name beside the last point of a line that ends early."""
    axes.annotate(
        look.label,
        xy=(x, y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        color=look.ink,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        parse_math=False,
    )


def interval_bar(
    axes: Axes, interval: Interval | None, where: float, look: Look, upright: bool
) -> None:
    """An interval as a bar, where there is one."""
    if interval is not None:
        draw = axes.vlines if upright else axes.hlines
        lines = draw(where, *interval, color=look.colour, linewidth=1.6, alpha=0.55)
        lines.set_zorder(look.order - 0.5)


def known(report: Report, values: Sequence[float | None]) -> tuple[list[int], list[float]]:
    """The concurrencies at which there is a value, and the values."""
    pairs = zip(report.concurrencies, values, strict=True)
    known = [(load, value) for load, value in pairs if value is not None]
    return [load for load, _ in known], [value for _, value in known]

"""What is drawn inside the axes of a report's pictures: lines, points, intervals, names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes

from adaspec.evaluate.render.results import Interval, Results
from adaspec.evaluate.render.style import (
    INK,
    SMALL,
    TEXT,
    Look,
    label_ends,
    log2_loads,
    percent_ticks,
    speedup_ticks,
)
from adaspec.evaluate.render.wording import signed_percent


def speedup_lines(
    axes: Axes, results: Results, workload: str, shown: Sequence[str], look: dict[str, Look]
) -> None:
    """A line per policy with its intervals; `none` is the line at 1."""
    for name in shown:
        if name == "none":
            continue
        points = [(c, results.value(workload, c, name, "speedup")) for c in results.concurrencies]
        known = [(c, value) for c, value in points if value is not None]
        if not known:
            continue
        each = look[name]
        axes.plot(
            [c for c, _ in known],
            [value for _, value in known],
            color=each.colour,
            linestyle=each.dashes,
            linewidth=each.width,
            # A bound that holds at one load only has no line to be seen by.
            marker=each.marker or ("D" if len(known) == 1 else ""),
            markersize=4.5 if name in results.policies else 3.5,
            zorder=each.order,
            gid=name,
        )
        for c, _ in known:
            interval(axes, results.interval(workload, c, name), c, each, True)
    log2_loads(axes, results.concurrencies)
    speedup_ticks(axes)


def lift_points(
    axes: Axes, results: Results, workload: str, names: Sequence[str], look: dict[str, Look]
) -> None:
    """Lifts with their intervals around a line at 0, named ones side by side."""
    axes.axhline(0, color=INK, linewidth=1.2, zorder=2)
    steps = [math.log2(b / a) for a, b in pairwise(results.concurrencies)]
    room = min(steps, default=1.0) * 0.5
    for index, name in enumerate(names):
        shift = (index - (len(names) - 1) / 2) * room / max(len(names), 3)
        known = [
            (c, c * 2**shift, value)
            for c in results.concurrencies
            if (value := results.lift(workload, c, name)) is not None
        ]
        each = look[name]
        axes.plot(
            [x for _, x, _ in known],
            [value for _, _, value in known],
            color=each.colour,
            marker=each.marker,
            markersize=5,
            linewidth=0.8,
            alpha=0.95,
            zorder=each.order,
            gid=name,
        )
        for c, x, value in known:
            interval(axes, results.lift_interval(workload, c, name), x, each, True)
            if len(names) == 1:
                top = (results.lift_interval(workload, c, name) or (value, value))[1]
                axes.annotate(
                    signed_percent(value),
                    (x, top),
                    xytext=(0, 3),
                    textcoords="offset points",
                    fontsize=TEXT,
                    color=each.ink,
                    ha="center",
                    va="bottom",
                    weight="bold",
                )
    log2_loads(axes, results.concurrencies)
    low, high = axes.get_xlim()
    axes.set_xlim(low / 2 ** (room / 2), high * 2 ** (room / 2))
    percent_ticks(axes)
    axes.margins(y=0.12)


def label_lines(
    axes: Axes, results: Results, workload: str, shown: Sequence[str], look: dict[str, Look]
) -> None:
    """Write every name beside the end of its line."""
    ends = []
    for name in shown:
        points = [
            (c, 1.0 if name == "none" else results.value(workload, c, name, "speedup"))
            for c in results.concurrencies
        ]
        known = [(c, value) for c, value in points if value is not None]
        if not known:
            continue
        at, value = known[-1]
        if at == results.concurrencies[-1]:
            ends.append((value, look[name].label, look[name].ink))
        else:
            _label_point(axes, at, value, look[name])
    label_ends(axes, ends)


def _label_point(axes: Axes, at: float, value: float, look: Look) -> None:
    """Write a name beside the last point of a line that ends early."""
    axes.annotate(
        look.label,
        xy=(at, value),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        color=look.ink,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        parse_math=False,
    )


def interval(axes: Axes, found: Interval | None, at: float, look: Look, upright: bool) -> None:
    """An interval as a bar, where there is one."""
    if found is None:
        return
    draw = axes.vlines if upright else axes.hlines
    draw(at, *found, color=look.colour, linewidth=1.6, alpha=0.55, zorder=look.order - 0.5)

"""Plots of a report: speedup and lift over concurrency, each workload, oracles, calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from adaspec.evaluate.render.style import (
    INK,
    NEURAL,
    NGRAM,
    SMALL,
    TEXT,
    WIDTH_IN,
    Interval,
    Look,
    canvas,
    interval_bar,
    label_ends,
    label_width_in,
    light_grid,
    log2_loads,
    looks,
    named_axes,
    percent_ticks,
    place,
    report_canvas,
    speedup_ticks,
    subplots,
    titled,
)
from adaspec.evaluate.render.table import short, signed_percent
from adaspec.evaluate.render.tables import SOURCES, place_name
from adaspec.evaluate.report import LIFT, OPPONENT, Report

_LOADS = "requests running at once (concurrency, log scale)"
_SPEED = "tokens per second, times those of none"
_LINES = ("none", "fixed:best", "hybrid:best", "adaptive:best", "static:memory", OPPONENT)
_BARS = ("fixed:best", OPPONENT)
_GREEDY = ("oracle:ngram", "oracle:neural")
"""The oracles that do not bound a policy which uses both sources."""
Looks = Mapping[str, Look]
Points = list[tuple[float, float, Interval]]
"""Concurrency, figure and its interval."""
_BETWEEN_IN = 0.34
"""The gap between axes side by side, which leaves room for the labels of the outermost ticks."""
_SHADES = (1.0, 0.72, 0.5, 0.32)


def speedup_figure(report: Report) -> Figure | None:
    """Speedup over `none` by concurrency, with intervals, on the mix or the only workload."""
    workload = report.representative
    if workload is None:
        return None
    shown, look = _drawn(report), looks(report)
    if len(report.concurrencies) == 1:
        return _speedup_dots(report, workload, shown, look)
    title = f"Speedup over no speculation, {_place(report, workload)}"
    figure, top = report_canvas(report, 4.7, title, _not_drawn(report))
    right = label_width_in([look[name].label for name in shown]) + 0.2
    axes = place(figure, 0.62, top, WIDTH_IN - 0.62 - right, 4.7 - top - 0.5)
    _speedup_lines(axes, report, workload, shown, look)
    named_axes(axes, _LOADS, _SPEED)
    ends = []
    for name in shown:
        for load, speed, _ in _points(report, workload, name)[-1:]:
            if load == report.concurrencies[-1]:
                ends.append((speed, look[name].label, look[name].ink))
            else:
                axes.annotate(
                    look[name].label,
                    xy=(load, speed),
                    xytext=(6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=SMALL,
                    color=look[name].ink,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
                    parse_math=False,
                )
    label_ends(axes, ends)
    return figure


def lift_figure(report: Report) -> Figure | None:
    """Lift over `static:best` by concurrency, with intervals; None if there is no headline."""
    workload = report.representative
    if workload is None or not report.judged:
        return None
    look, names = looks(report), report.named
    title = f"Lift over the best static setting in hindsight, {_place(report, workload)}"
    figure, top = report_canvas(report, 3.6, title, "; bars are paired 95% intervals")
    right = label_width_in([OPPONENT, *(look[name].label for name in names)]) + 0.2
    axes = place(figure, 0.65, top, WIDTH_IN - 0.65 - right, 3.6 - top - 0.5)
    _lift_points(axes, report, workload, look)
    named_axes(axes, _LOADS, f"tokens per second over {OPPONENT}")
    ends = [(0.0, OPPONENT, INK)]
    for name in names:
        points = _points(report, workload, name, LIFT, "lift_ci95")
        ends += [(lift, look[name].label, look[name].ink) for _, lift, _ in points[-1:]]
    label_ends(axes, ends)
    return figure


def lifts_by_workload_figure(report: Report) -> Figure | None:
    """Lift over the `static:best` of each workload: a row per workload, axes per concurrency."""
    if not report.judged or not report.alone:
        return None
    look, names = looks(report), report.named
    workloads, loads = _workloads(report), report.concurrencies[:6]
    row_in = 0.2 if len(names) == 1 else 0.13 * len(names) + 0.1
    body_in = row_in * len(workloads) + 0.1
    figure, top = report_canvas(
        report,
        1.43 + body_in,
        "Lift over each workload's own static:best",
        "; bars are paired 95% intervals",
        [look[name] for name in names],
    )
    labels = [short(_place(report, each), 24) for each in workloads]
    left = min(label_width_in(labels), 2.0) + 0.1
    wide = (WIDTH_IN - left - 0.2 - _BETWEEN_IN * (len(loads) - 1)) / len(loads)
    first: Axes | None = None
    for column, load in enumerate(loads):
        box = (left + column * (wide + _BETWEEN_IN), top + 0.1, wide, body_in)
        axes = place(figure, *box, sharex=first)
        first = first or axes
        axes.axvline(0, color=INK, linewidth=1.0)
        for row, workload in enumerate(workloads):
            for index, name in enumerate(names):
                _, entry = report.across(workload, name)[column]
                if entry.get(LIFT) is not None:
                    y = row + (index - (len(names) - 1) / 2) * 0.8 / max(len(names), 2)
                    interval_bar(axes, entry["lift_ci95"], y, look[name], upright=False)
                    colour = look[name].colour
                    axes.plot(entry[LIFT], y, look[name].marker, color=colour, markersize=4)
        axes.set_ylim(len(workloads) - 0.5, -0.5)
        axes.set_yticks(range(len(workloads)), labels if column == 0 else [""] * len(workloads))
        axes.tick_params(axis="y", length=0, labelsize=SMALL)
        percent_ticks(axes, "x")
        axes.locator_params(axis="x", nbins=max(2, int(wide / 0.5)))
        titled(axes, str(load) if column else f"concurrency {load}")
        named_axes(axes, "" if column else "lift over static:best")
    return figure


def workloads_figure(report: Report) -> Figure | None:
    """Speedup by concurrency, axes per workload; None if there is only one workload."""
    if len(report.alone) < 2 or len(report.concurrencies) < 2:
        return None
    look, shown = looks(report), _drawn(report)
    figure, top = report_canvas(
        report,
        0.68 + math.ceil(len(report.alone) / 2) * 2.25,
        "Speedup over no speculation on each workload alone",
        _not_drawn(report),
        [look[name] for name in shown],
    )
    for name, axes, leftmost, undermost in subplots(figure, top + 0.1, report.alone, 1.62, 2.2):
        _speedup_lines(axes, report, name, shown, look)
        axes.locator_params(axis="y", nbins=5)
        named_axes(axes, "concurrency" * undermost, "speedup over none" * leftmost)
    return figure


def oracles_figure(report: Report) -> Figure | None:
    """Bars of the policies' and oracles' speedups by workload and load (the paper's figure 11)."""
    workloads = _workloads(report)
    shown = [*(name for name in report.baselines if name in _BARS), *report.named, *report.oracles]
    if not workloads or not shown:
        return None
    look = looks(report)
    foresight = any(look[name].hatch for name in shown)
    title = "Speedups beside the oracles" if foresight else "Speedups"
    figure, top = report_canvas(
        report,
        0.78 + 1.5 * len(workloads),
        f"{title} by workload and concurrency",
        "; hatched: with perfect foresight" if foresight else "",
        [look[name] for name in shown],
        bars=True,
    )
    loads = report.concurrencies
    speeds = {
        (w, name): [s or 0.0 for s in report.figures(w, name)] for w in workloads for name in shown
    }
    highest = max(1.0, *(speed for each in speeds.values() for speed in each))
    width = 0.84 / len(shown)
    rows = subplots(figure, top + 0.1, workloads, 1.05, 1.48, columns=1)
    for workload, axes, _, undermost in rows:
        for index, name in enumerate(shown):
            axes.bar(
                np.arange(len(loads)) - 0.42 + (index + 0.5) * width,
                speeds[workload, name],
                width * 0.92,
                color=look[name].colour,
                hatch=look[name].hatch,
                edgecolor="white",
                linewidth=0,
                gid=name,
            )
        axes.set_xticks(range(len(loads)), [str(each) for each in loads])
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.5, len(loads) - 0.5)
        speedup_ticks(axes)
        axes.set_ylim(0, 1.05 * highest)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        titled(axes, _place(report, workload))
        named_axes(axes, "concurrency" * undermost, "speedup")
    return figure


def calibration_figure(report: Report) -> Figure | None:
    """The share that came true by predicted probability, axes per source."""
    calibration = report.document.get("calibration")
    if not calibration or not calibration["sources"]:
        return None
    loads = ", ".join(str(load) for load in calibration["concurrency"])
    figure, top = canvas(
        4.0,
        "Calibration: how often what was expected came true",
        f"S(j): at least j drafted tokens are accepted; states visited at concurrency {loads}; "
        f"{calibration['bins']} bins of equally many states; on the line is right",
    )
    top += 0.22
    wide = (WIDTH_IN - 0.62 - 0.2 - 0.55) / 2
    for column, (source, judged) in enumerate(calibration["sources"].items()):
        axes = place(figure, 0.62 + column * (wide + 0.55), top, wide, 4.0 - top - 0.5)
        _calibration_curves(axes, judged, NGRAM if source == "ngram" else NEURAL)
        titled(axes, SOURCES[source])
        named_axes(axes, "predicted", "" if column else "share that came true")
    return figure


REPORT_PLOTS = {
    "speedup": (
        "Speedup over no speculation by concurrency, with 95% intervals",
        speedup_figure,
    ),
    "lift": ("Lift over static:best by concurrency, with paired 95% intervals", lift_figure),
    "lift-by-workload": ("Lift over each workload's own static:best", lifts_by_workload_figure),
    "speedup-by-workload": ("Speedup over no speculation on each workload alone", workloads_figure),
    "oracles": ("Speedups beside the oracles (as the paper's figure 11)", oracles_figure),
    "calibration": ("How often what a learned policy expected came true", calibration_figure),
}
"""File name -> the caption, and the function that draws the plot."""


def _speedup_dots(report: Report, workload: str, shown: Sequence[str], look: Looks) -> Figure:
    """The speedup plot for a single concurrency: a row per policy, as lines would be points."""
    (load,) = report.concurrencies
    rows = sorted(
        (speed, name, interval)
        for name in shown
        for _, speed, interval in _points(report, workload, name)
    )
    height = 1.35 + 0.24 * max(len(rows), 2)
    title = f"Speedup over no speculation, {_place(report, workload)}, concurrency {load}"
    figure, top = report_canvas(report, height, title, _not_drawn(report))
    labels = [look[name].label for _, name, _ in rows]
    left = label_width_in(labels) + 0.1
    axes = place(figure, left, top, WIDTH_IN - left - 0.6, height - top - 0.5)
    axes.set_yticks(range(len(rows)), labels)
    ticks = axes.get_yticklabels()
    for y, ((speed, name, interval), tick) in enumerate(zip(rows, ticks, strict=True)):
        colour = look[name].colour
        interval_bar(axes, interval, y, look[name], upright=False)
        axes.plot(speed, y, look[name].marker or "o", color=colour, markersize=6)
        axes.annotate(
            f"{speed:.2f}x",
            (1.02, y),
            xycoords=("axes fraction", "data"),
            fontsize=SMALL,
            color=colour,
            va="center",
        )
        tick.set_color(colour)
        tick.set_parse_math(False)
    axes.tick_params(axis="y", length=0, labelsize=SMALL)
    axes.set_ylim(-0.6, max(len(rows), 1) - 0.4)
    axes.axvline(1.0, color=INK, linewidth=1.0)
    light_grid(axes, "both")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    named_axes(axes, _SPEED)
    return figure


def _points(
    report: Report, workload: str, policy: str, key: str = "speedup", interval: str = "ci95"
) -> Points:
    """The points of a policy's line."""
    return [
        (load, entry[key], entry[interval])
        for load, entry in report.across(workload, policy)
        if entry.get(key) is not None
    ]


def _speedup_lines(
    axes: Axes, report: Report, workload: str, shown: Sequence[str], look: Looks
) -> None:
    """Draw a line per policy with its intervals; `none` is the line at 1."""
    for name in shown:
        points = _points(report, workload, name)
        if name == "none" or not points:
            continue
        style = {"linestyle": look[name].dashes, "linewidth": look[name].width}
        # A bound at a single concurrency has no visible line, so it gets a marker.
        style |= {"marker": look[name].marker or ("D" if len(points) == 1 else "")}
        style |= {"markersize": 4.5 if name in report.policies else 3.5}
        _line(axes, name, points, look[name], style)
    log2_loads(axes, report.concurrencies)
    speedup_ticks(axes)


def _lift_points(axes: Axes, report: Report, workload: str, look: Looks) -> None:
    """Draw lifts with their intervals around a line at 0, the named policies side by side."""
    names = report.named
    axes.axhline(0, color=INK, linewidth=1.2, zorder=2)
    steps = [math.log2(high / low) for low, high in pairwise(report.concurrencies)]
    room = min(steps, default=1.0) * 0.5
    for index, name in enumerate(names):
        shift = 2 ** ((index - (len(names) - 1) / 2) * room / max(len(names), 3))
        known = _points(report, workload, name, LIFT, "lift_ci95")
        points = [(load * shift, lift, interval) for load, lift, interval in known]
        style = {"marker": look[name].marker, "markersize": 5, "linewidth": 0.8, "alpha": 0.95}
        _line(axes, name, points, look[name], style)
        for x, lift, interval in points if len(names) == 1 else ():
            axes.annotate(
                signed_percent(lift),
                (x, interval[1] if interval else lift),
                xytext=(0, 3),
                textcoords="offset points",
                fontsize=TEXT,
                color=look[name].ink,
                ha="center",
                va="bottom",
                weight="bold",
            )
    log2_loads(axes, report.concurrencies)
    low, high = axes.get_xlim()
    axes.set_xlim(low / 2 ** (room / 2), high * 2 ** (room / 2))
    percent_ticks(axes)
    axes.margins(y=0.12)


def _line(axes: Axes, name: str, points: Points, look: Look, style: dict[str, Any]) -> None:
    """Draw a policy's line through its points, with an interval at each point."""
    xs, ys = [x for x, _, _ in points], [y for _, y, _ in points]
    axes.plot(xs, ys, color=look.colour, zorder=look.order, gid=name, **style)
    for x, _, interval in points:
        interval_bar(axes, interval, x, look)


def _calibration_curves(axes: Axes, judged: Sequence[Mapping[str, Any]], colour: str) -> None:
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, zorder=1)
    for depth, shade in zip(judged, _SHADES, strict=False):
        predicted, observed, _ = zip(*depth["curve"], strict=True)
        axes.plot(
            predicted,
            observed,
            color=colour,
            alpha=shade,
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=f"S({depth['survival']})  ECE {depth['ece']:.3f}",
        )
    axes.set(xlim=(0, 1), ylim=(0, 1))
    light_grid(axes, "both")
    axes.legend(loc="upper left", fontsize=SMALL, edgecolor="none", handlelength=1.4)


def _workloads(report: Report) -> list[str]:
    """The mix, if it was run, and each workload alone."""
    return [*report.workloads[: report.has_all], *report.alone]


def _drawn(report: Report) -> list[str]:
    equal = _equal(report)
    lines = [name for name in report.baselines if name in _LINES and name not in equal]
    bounds = [name for name in report.oracles if name not in _GREEDY]
    return [*lines, *report.named, *bounds]


def _equal(report: Report) -> list[str]:
    """The baselines with the same speedups as static:best, whose line it would cover."""
    return [
        name
        for name in report.baselines
        if name in _LINES[1:-1]
        and all(report.figures(w, name) == report.figures(w, OPPONENT) for w in report.workloads)
    ]


def _not_drawn(report: Report) -> str:
    names = _equal(report)
    return f"; {', '.join(names)} = {OPPONENT} throughout" if names else ""


def _place(report: Report, workload: str) -> str:
    return place_name(report, workload).text

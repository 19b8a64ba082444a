"""Pictures of a report: speedup and lift over concurrency, each workload, beside the oracles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from adaspec.evaluate.render.lines import interval, label_lines, lift_points, speedup_lines
from adaspec.evaluate.render.results import BOUNDS, OPPONENT, Report, Results
from adaspec.evaluate.render.style import (
    FAINT,
    INK,
    SMALL,
    WIDTH_IN,
    canvas,
    groups,
    label_ends,
    label_width_in,
    legend_height,
    legend_row,
    looks,
    named_axes,
    percent_ticks,
    place,
    speedup_ticks,
    titled,
    where,
)
from adaspec.evaluate.render.wording import batched, facts, short

_LOADS = "requests running at once (concurrency, log scale)"
_LINES = ("none", "fixed:best", "hybrid:best", "adaptive:best", OPPONENT)
_BARS = ("fixed:best", OPPONENT)
_BETWEEN_IN = 0.34
"""Between panels side by side, whose outermost ticks have room for their words."""


def speedup_figure(report: Report, workload: str | None = None) -> Figure | None:
    """Speedup over `none` at every concurrency, with intervals; None where there are no rows.

    Without a `workload` it shows "all", or the only one: of several, none speaks for the rest.
    """
    results = Results(report)
    workload = workload or _main(results)
    if workload is None:
        return None
    shown = _drawn(results)
    if len(results.concurrencies) == 1:
        return _speedup_dots(results, workload, shown)
    look = looks(results)
    title = f"Speedup over no speculation, {where(results, workload)}"
    figure, top = canvas(4.7, batched(results, title), _note(results) + _left_away(results))
    right = label_width_in([look[name].label for name in shown]) + 0.2
    axes = place(figure, 0.62, top, WIDTH_IN - 0.62 - right, 4.7 - top - 0.5)
    speedup_lines(axes, results, workload, shown, look)
    named_axes(axes, _LOADS, "tokens per second, times those of none")
    label_lines(axes, results, workload, shown, look)
    return figure


def lift_figure(report: Report, workload: str | None = None) -> Figure | None:
    """Lift over `static:best` at every concurrency, with its interval; None without a headline."""
    results = Results(report)
    workload = workload or _main(results)
    if workload is None or not results.has_headline:
        return None
    look = looks(results)
    names = [name for name in results.policies if name in look]
    title = f"Lift over the best static setting in hindsight, {where(results, workload)}"
    figure, top = canvas(
        3.6, batched(results, title), _note(results) + "; bars are paired 95% intervals"
    )
    right = label_width_in([look[name].label for name in names] + [OPPONENT]) + 0.2
    axes = place(figure, 0.65, top, WIDTH_IN - 0.65 - right, 3.6 - top - 0.5)
    lift_points(axes, results, workload, names, look)
    named_axes(axes, _LOADS, f"tokens per second over {OPPONENT}")
    ends = [(0.0, OPPONENT, INK)]
    for name in names:
        value = _last(results.lift(workload, c, name) for c in results.concurrencies)
        if value is not None:
            ends.append((value, look[name].label, look[name].ink))
    label_ends(axes, ends)
    return figure


def workloads_figure(report: Report) -> Figure | None:
    """Speedup at every concurrency, a panel per workload; None where there is only one."""
    results = Results(report)
    if len(results.alone) < 2 or len(results.concurrencies) < 2:
        return None
    look, shown = looks(results), _drawn(results)
    columns = 2
    rows = math.ceil(len(results.alone) / columns)
    entries = [look[name] for name in shown]
    height = 0.68 + legend_height(entries) + rows * 2.25
    title = "Speedup over no speculation on each workload alone"
    figure, top = canvas(height, batched(results, title), _note(results) + _left_away(results))
    top = legend_row(figure, top - 0.06, entries, bars=False) + 0.18
    wide, high = (WIDTH_IN - 0.64 - 0.15 - 0.4) / columns, 1.62
    for index, workload in enumerate(results.alone):
        row, column = divmod(index, columns)
        axes = place(figure, 0.64 + column * (wide + 0.4), top + row * 2.2, wide, high)
        speedup_lines(axes, results, workload, shown, look)
        axes.locator_params(axis="y", nbins=5)
        titled(axes, short(workload, 32))
        last_row = index + columns >= len(results.alone)
        named_axes(axes, "concurrency" if last_row else "", "" if column else "speedup over none")
    return figure


def lifts_by_workload_figure(report: Report) -> Figure | None:
    """Lift over each workload's own `static:best`: a row per workload, a panel per load."""
    results = Results(report)
    if not results.has_headline or not results.alone:
        return None
    look = looks(results)
    names = [name for name in results.policies if name in look]
    places = ([results.main] if results.has_all else []) + results.alone
    loads = results.concurrencies[:6]
    step = 0.2 if len(names) == 1 else 0.13 * len(names) + 0.1
    body = step * len(places) + 0.1
    entries = [look[name] for name in names]
    height = 1.43 + legend_height(entries) + body
    title = "Lift over each workload's own static:best"
    figure, top = canvas(
        height, batched(results, title), _note(results) + "; bars are paired 95% intervals"
    )
    top = legend_row(figure, top - 0.06, entries, bars=False) + 0.2
    labels = [short(where(results, str(each)), 24) for each in places]
    left = min(label_width_in(labels), 2.0) + 0.1
    wide = (WIDTH_IN - left - 0.2 - _BETWEEN_IN * (len(loads) - 1)) / len(loads)
    first: Axes | None = None
    for column, load in enumerate(loads):
        shared = {"sharex": first} if first is not None else {}
        axes = place(figure, left + column * (wide + _BETWEEN_IN), top, wide, body, **shared)
        first = first or axes
        axes.axvline(0, color=INK, linewidth=1.0)
        for at, spot in enumerate(places):
            for index, name in enumerate(names):
                value = results.lift(str(spot), load, name)
                if value is None:
                    continue
                y = at + (index - (len(names) - 1) / 2) * 0.8 / max(len(names), 2)
                interval(axes, results.lift_interval(str(spot), load, name), y, look[name], False)
                axes.plot(value, y, look[name].marker, color=look[name].colour, markersize=4)
        axes.set_ylim(len(places) - 0.5, -0.5)
        axes.set_yticks(range(len(places)), labels if column == 0 else [""] * len(places))
        axes.tick_params(axis="y", length=0, labelsize=SMALL)
        percent_ticks(axes, "x")
        axes.locator_params(axis="x", nbins=max(2, int(wide / 0.5)))
        titled(axes, f"concurrency {load}" if column == 0 else str(load))
        named_axes(axes, "lift over static:best" if column == 0 else "")
    return figure


def oracles_figure(report: Report) -> Figure | None:
    """Speedups beside the oracles', bars by workload and concurrency (the paper's figure 11)."""
    results = Results(report)
    places = ([results.main] if results.has_all else []) + results.alone
    shown = _bars(results)
    if not places or not shown:
        return None
    look = looks(results)
    entries = [look[name] for name in shown]
    height = 0.78 + legend_height(entries) + 1.5 * len(places)
    foresight = any(each.hatch for each in entries)
    title = "Speedups beside the oracles" if foresight else "Speedups"
    note = _note(results) + ("; hatched: with perfect foresight" if foresight else "")
    figure, top = canvas(height, batched(results, title + " by workload and concurrency"), note)
    top = legend_row(figure, top - 0.06, entries, bars=True) + 0.16
    known = (
        results.value(str(place), c, name, "speedup")
        for place in places
        for c in results.concurrencies
        for name in shown
    )
    highest = max((each for each in known if each is not None), default=1.0)
    for index, workload in enumerate(places):
        axes = place(figure, 0.55, top + index * 1.48, WIDTH_IN - 0.7, 1.05)
        width = 0.84 / len(shown)
        for at, name in enumerate(shown):
            offsets = np.arange(len(results.concurrencies)) - 0.42 + (at + 0.5) * width
            values = [
                results.value(str(workload), c, name, "speedup") or 0.0
                for c in results.concurrencies
            ]
            axes.bar(
                offsets,
                values,
                width * 0.92,
                color=look[name].colour,
                hatch=look[name].hatch,
                edgecolor="white",
                linewidth=0,
                gid=name,
            )
        axes.set_xticks(
            range(len(results.concurrencies)), [str(each) for each in results.concurrencies]
        )
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.5, len(results.concurrencies) - 0.5)
        speedup_ticks(axes)
        axes.set_ylim(0, 1.05 * max(highest, 1.0))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        titled(axes, where(results, str(workload)))
        named_axes(axes, "concurrency" if index == len(places) - 1 else "", "speedup")
    return figure


def _speedup_dots(results: Results, workload: str, shown: Sequence[str]) -> Figure:
    """One concurrency: a row per policy instead of lines of a single point."""
    load = results.concurrencies[0]
    look = looks(results)
    rows = [n for n in shown if results.value(workload, load, n, "speedup") is not None]
    rows.sort(key=lambda name: results.value(workload, load, name, "speedup") or 0.0)
    height = 1.35 + 0.24 * max(len(rows), 2)
    title = f"Speedup over no speculation, {where(results, workload)}, concurrency {load}"
    figure, top = canvas(height, batched(results, title), _note(results) + _left_away(results))
    left = label_width_in([look[name].label for name in rows]) + 0.1
    axes = place(figure, left, top, WIDTH_IN - left - 0.6, height - top - 0.5)
    for at, name in enumerate(rows):
        value = results.value(workload, load, name, "speedup") or 0.0
        interval(axes, results.interval(workload, load, name), at, look[name], False)
        axes.plot(value, at, look[name].marker or "o", color=look[name].colour, markersize=6)
        axes.text(
            1.02,
            at,
            f"{value:.2f}x",
            transform=axes.get_yaxis_transform(),
            fontsize=SMALL,
            color=look[name].colour,
            va="center",
        )
    axes.set_yticks(range(len(rows)), [look[name].label for name in rows])
    for tick, name in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_color(look[name].colour)
        tick.set_parse_math(False)
    axes.tick_params(axis="y", length=0, labelsize=SMALL)
    axes.set_ylim(-0.6, max(len(rows), 1) - 0.4)
    axes.axvline(1.0, color=INK, linewidth=1.0)
    axes.grid(axis="both", color=FAINT, linewidth=0.6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    named_axes(axes, "tokens per second, times those of none")
    return figure


def _main(results: Results) -> str | None:
    return results.main if results.has_all or len(results.workloads) == 1 else None


def _drawn(results: Results) -> list[str]:
    _, named, oracles = groups(results)
    away = _coinciding(results)
    baselines = [n for n in results.shown(_LINES) if n not in named and n not in away]
    return [*baselines, *named, *(name for name in oracles if name in BOUNDS)]


def _coinciding(results: Results) -> list[str]:
    """Baselines whose line would lie under static:best's everywhere."""
    names = [name for name in results.shown(_LINES) if name not in ("none", OPPONENT)]
    return [name for name in names if results.coincides(name)]


def _left_away(results: Results) -> str:
    names = _coinciding(results)
    return f"; {', '.join(names)} = {OPPONENT} throughout" if names else ""


def _bars(results: Results) -> list[str]:
    _, named, oracles = groups(results)
    baselines = [name for name in results.shown(_BARS) if name not in named]
    return [*baselines, *named, *oracles]


def _last(values: object) -> float | None:
    known = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return known[-1] if known else None


def _note(results: Results) -> str:
    known = dict(facts(results.report))
    parts = [known.get("requests", "").split(" (")[0], str(results.report.get("batching", ""))]
    requests = f"{parts[0]} requests" if parts[0] else ""
    return ", ".join(
        each
        for each in (requests, f"cost model {known['cost']}", parts[1].replace("-", " "))
        if each
    )

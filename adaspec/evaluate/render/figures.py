"""A report's figures, as plotly draws them; their colours hold on light and on dark paper.

A name from outside is escaped, since plotly reads a text's tags.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adaspec.evaluate.options import ALL
from adaspec.evaluate.render.table import (
    decimal,
    plain_range,
    short,
    signed_percent,
    signed_range,
    times,
)
from adaspec.evaluate.render.tables import MIX
from adaspec.evaluate.report import LIFT, OPPONENT, Entry, Report

GREY = "#7F8B96"
_NAMED = ("#DE5A1E", "#B0599F", "#A07D16", "#4F8F3A")
"""The colours of named policies: each has three times the contrast of white paper and of dark."""
DRAWN = {
    OPPONENT: ("#2D7FC1", "square", "solid"),
    "fixed:best": ("#1F9086", "triangle-up", "solid"),
    "adaptive:best": ("#8A73C9", "diamond", "solid"),
    "oracle:plan-splice": (GREY, "circle-open", "dot"),
}
"""The rows that are drawn over the load beside the policies: colour, marker and line."""
_MEANT = {
    OPPONENT: "best static rule",
    "fixed:best": "best single method",
    "adaptive:best": "best that adapts",
    "oracle:plan-splice": "perfect foresight",
}
_NAME = 34
"""Characters of a name in a figure, as many as fit on a phone."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, drawn for each choice that it depends on."""

    name: str
    title: str
    sentence: str
    by: tuple[str, ...]
    """Which of `workload` and `load` it depends on."""
    drawn: Mapping[str, Mapping[str, Any]]
    """The places of the chosen among the report's workloads and loads, joined by `-` -> data and
    layout."""


def figures_of(report: Report) -> list[Figure]:
    """The figures that the report has data for, in the order of the page."""
    cells = [(w, n) for w in range(len(report.workloads)) for n in range(len(report.concurrencies))]
    several = len(report.concurrencies) > 1
    by_load = {
        str(w): _speedups_by_load(report, name)
        for w, name in enumerate(report.workloads)
        if several
    }
    at_load = {f"{w}-{n}": _speedups_at(report, report.workloads[w], n) for w, n in cells}
    lifts = {}
    if report.judged and len(report.workloads) > 1:
        lifts = {str(n): _lifts_at(report, n) for n in range(len(report.concurrencies))}
    fastest = "; the four fastest policies" if len(report.named) > len(_NAMED) else ""
    drawn = [
        Figure(
            "by-load",
            "Speedup by load",
            "Tokens per second, times those of no speculation, by requests at once"
            f"{fastest}. Shaded: 95% interval.",
            ("workload",),
            by_load,
        ),
        Figure(
            "at-load",
            "Every row at the chosen load",
            "Speedup over no speculation, with 95% intervals; "
            "hollow: with perfect foresight, so none that could be run.",
            ("workload", "load"),
            at_load,
        ),
        Figure(
            "lifts",
            "Lift by workload at the chosen load",
            f"Tokens per second over each workload's own {OPPONENT}, with paired 95% intervals: "
            "right of the line the policy is faster.",
            ("load",),
            lifts,
        ),
    ]
    return [figure for figure in drawn if figure.drawn]


def _speedups_by_load(report: Report, workload: str) -> dict[str, Any]:
    loads = [str(load) for load in report.concurrencies]
    fastest = sorted(
        report.named,
        key=lambda name: -sum(speed or 0 for speed in report.figures(workload, name)),
    )[: len(_NAMED)]
    traces: list[dict[str, Any]] = [
        _line("no speculation", loads, [1.0] * len(loads), GREY, width=1.2, mode="lines")
    ]
    for name, (colour, marker, dash) in reversed(DRAWN.items()):
        speeds = report.figures(workload, name)
        if name not in report.named and any(speed is not None for speed in speeds):
            said = [_said(report, workload, name, at) for at in range(len(loads))]
            mark = {"symbol": marker, "size": 7}
            label = f"{_MEANT[name]} ({name})"
            traces.append(_line(label, loads, speeds, colour, said, dash=dash, marker=mark))
    for name, colour in zip([n for n in report.named if n in fastest], _NAMED, strict=False):
        ends = [entry.get("ci95") for _, entry in report.across(workload, name)]
        if all(ends):
            edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
            fill = {"fill": "tonexty", "fillcolor": _faint(colour, 0.16)}
            for which in (0, 1):
                traces.append({"x": loads, "y": [end[which] for end in ends if end], **edge})
            traces[-1] |= fill
        said = [_said(report, workload, name, at) for at in range(len(loads))]
        speeds = report.figures(workload, name)
        mark = {"symbol": "circle", "size": 9}
        label = html.escape(short(name, _NAME))
        traces.append(_line(label, loads, speeds, colour, said, width=3, marker=mark))
    return {
        "data": traces,
        "layout": _layout(
            430,
            xaxis={"title": {"text": "requests at once"}, "type": "category"},
            yaxis={"ticksuffix": "x", "rangemode": "normal"},
            legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        ),
    }


def _speedups_at(report: Report, workload: str, at: int) -> dict[str, Any]:
    rows = []
    for name in report.shown:
        _, entry = report.across(workload, name)[at]
        if entry.get("speedup") is not None:
            said, strong = _said(report, workload, name, at), name in report.named
            shown, ends = times(entry["speedup"]), entry.get("ci95")
            colour = _colour(report, name)
            rows.append(_Row(name, entry["speedup"], ends, shown, colour, said, strong))
    return _ranking(sorted(rows, key=lambda row: row.value), 1.0, "x", 1)


def _lifts_at(report: Report, at: int) -> dict[str, Any]:
    rows = []
    for workload in report.workloads:
        for name in report.named[: len(_NAMED)]:
            load, entry = report.across(workload, name)[at]
            if entry.get(LIFT) is not None:
                label = MIX if workload == ALL else workload
                several = f" · {name}" if len(report.named) > 1 else ""
                shown, ends = signed_percent(entry[LIFT]), entry.get("lift_ci95")
                said = f"{label}, {name} at {load}: {shown} {signed_range(ends)}"
                colour, strong = _colour(report, name), workload == ALL
                row = _Row(label + several, entry[LIFT], ends, shown, colour, said, strong)
                rows.append(row)
    return _ranking(rows[::-1], 0.0, "%", 100)


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    value: float
    interval: Sequence[float] | None
    shown: str
    colour: str
    said: str
    strong: bool


def _ranking(rows: Sequence[_Row], origin: float, suffix: str, scale: float) -> dict[str, Any]:
    """Figures with their intervals, from the bottom up; each name stands above its own line."""
    bars = {
        "type": "bar",
        "orientation": "h",
        "base": scale * origin,
        "x": [scale * (row.value - origin) for row in rows],
        "y": list(range(len(rows))),
        "width": 0.12,
        "marker": {"color": [_faint(row.colour, 0.35) for row in rows]},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    traces, notes = [bars], []
    for y, row in enumerate(rows):
        low, high = row.interval or (row.value, row.value)
        traces.append(
            {
                **_points([scale * row.value], [y], row.colour, [row.said]),
                "mode": "markers",
                "showlegend": False,
                "marker": {
                    "size": 11 if row.strong else 9,
                    "color": row.colour,
                    "symbol": "circle-open" if row.name.startswith("oracle:") else "circle",
                    "line": {"width": 2, "color": row.colour},
                },
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [scale * (high - row.value)],
                    "arrayminus": [scale * (row.value - low)],
                    "thickness": 2,
                    "width": 5,
                    "color": row.colour,
                    "visible": row.interval is not None,
                },
            }
        )
        for text, side in ((short(row.name, _NAME), "left"), (row.shown, "right")):
            escaped = html.escape(text)
            notes.append(
                {
                    "xref": "paper",
                    "x": 0 if side == "left" else 1,
                    "xanchor": side,
                    "xshift": 4 if side == "left" else 0,
                    "y": y,
                    "yshift": 12,
                    "showarrow": False,
                    "text": f"<b>{escaped}</b>" if row.strong else escaped,
                }
            )
    ends = [end for row in rows for end in row.interval or (row.value, row.value)]
    low, high = min([origin, *ends]), max([origin, *ends])
    room = 0.16 * (high - low or 1)  # for the figures at the right
    line = {"type": "line", "x0": scale * origin, "x1": scale * origin, "yref": "paper"}
    return {
        "data": traces,
        "layout": _layout(
            70 + 36 * max(len(rows), 1),
            xaxis={
                "ticksuffix": suffix,
                "nticks": 7,
                "range": [scale * (low - room * (low < origin) / 4), scale * (high + room)],
            },
            yaxis={"visible": False, "range": [-0.6, len(rows) - 0.1]},
            margin={"l": 6, "r": 6, "t": 8, "b": 34},
            annotations=notes,
            shapes=[line | {"y0": 0, "y1": 1, "line": {"color": GREY, "width": 1.5}}],
        ),
    }


def _said(report: Report, workload: str, policy: str, at: int) -> str:
    """All that is known of a row at a load, as a pointer tells it."""
    load, entry = report.across(workload, policy)[at]
    detail: Entry = entry.get("detail", {})
    lines = [f"{policy} at {load}: {times(entry.get('speedup'))} {plain_range(entry.get('ci95'))}"]
    if detail.get("spec") not in (None, policy):
        lines.append(f"as {detail['spec']}")
    if entry.get("tokens_per_s") is not None:
        lines.append(f"{entry['tokens_per_s']:,.0f} tokens/s")
    if entry.get("accepted_per_step") is not None:
        accepted, drafted = entry["accepted_per_step"], entry["drafted_per_step"]
        lines.append(f"{decimal(accepted)} of {decimal(drafted)} drafted tokens accepted a step")
    if entry.get(LIFT) is not None:
        lift = f"{signed_percent(entry[LIFT])} {signed_range(entry.get('lift_ci95'))}"
        lines.append(f"over {OPPONENT}: {lift}")
    return "\n".join(lines)


def _colour(report: Report, name: str) -> str:
    if name in report.named:
        return _NAMED[report.named.index(name) % len(_NAMED)]
    return DRAWN[name][0] if name in DRAWN else GREY


def _faint(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _points(
    x: Sequence[Any], y: Sequence[Any], colour: str, said: Sequence[str] = ()
) -> dict[str, Any]:
    """A trace whose points tell what `said` has."""
    trace: dict[str, Any] = {"x": list(x), "y": list(y), "hoverlabel": {"bordercolor": colour}}
    if said:
        trace["hovertext"] = [html.escape(text).replace("\n", "<br>") for text in said]
        trace["hoverinfo"] = "text"
    return trace


def _line(
    name: str,
    x: Sequence[Any],
    y: Sequence[float | None],
    colour: str,
    said: Sequence[str] = (),
    *,
    dash: str = "solid",
    width: float = 2,
    mode: str = "lines+markers",
    marker: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        **_points(x, y, colour, said),
        "name": name,
        "mode": mode,
        "line": {"color": colour, "dash": dash, "width": width},
        "marker": {"color": colour, "size": 6, **(marker or {})},
    }


def _layout(height: int, **more: Any) -> dict[str, Any]:
    axis = {"gridcolor": _faint(GREY, 0.25), "zeroline": False, "fixedrange": True}
    axes = {key: axis | {"automargin": True} | more.pop(key, {}) for key in ("xaxis", "yaxis")}
    return {
        "height": height,
        "margin": {"l": 44, "r": 10, "t": 10, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "#20272E", "font": {"color": "#FFFFFF"}, "align": "left"},
        "dragmode": False,
        **axes,
        **more,
    }

"""The figure of a report, speedup by load, as plotly draws it on light and on dark paper."""

from __future__ import annotations

import html
from typing import Any

from adaspec.evaluate.tables import OPPONENT, Report

GREY = "#7F8B96"
_NAMED = ("#DE5A1E", "#B0599F", "#A07D16", "#4F8F3A")
"""The colours of named policies: each has three times the contrast of white paper and of dark."""
DRAWN = {
    "oracle:plan-splice": ("perfect foresight", GREY, "circle-open", "dot"),
    "vllm:best": ("best of vLLM", "#8A73C9", "diamond", "solid"),
    "trtllm:K": ("TensorRT-LLM's rule", "#1F9086", "triangle-up", "solid"),
    OPPONENT: ("best static rule", "#2D7FC1", "square", "solid"),
}
"""The rows that are drawn beside the policies: meaning, colour, marker and line."""
_LONGEST_NAME = 34


def speedup_by_load(report: Report, workload: str) -> dict[str, Any] | None:
    """Data and layout of the figure for one workload; None where there is but one load."""
    if len(report.loads) < 2:
        return None
    loads = [str(load) for load in report.loads]
    plain = {"mode": "lines", "line": {"color": GREY, "width": 1.2}, "hoverinfo": "skip"}
    lines: list[dict[str, Any]] = [
        {"x": loads, "y": [1.0] * len(loads), "name": "no speculation", **plain}
    ]
    for name, (meaning, colour, marker, dash) in DRAWN.items():
        if name in report.shown and name not in report.named:
            line = _line(report, workload, name, f"{meaning} ({name})", colour)
            line["line"] |= {"width": 2, "dash": dash}
            lines.append(line | {"marker": {"color": colour, "symbol": marker, "size": 7}})
    for name, colour in zip(report.named, _NAMED, strict=False):
        short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
        lines.append(_line(report, workload, name, short, colour))
    axis = {"gridcolor": "rgba(127,139,150,0.25)", "zeroline": False, "automargin": True}
    return {
        "data": lines,
        "layout": {
            "height": 430,
            "margin": {"l": 44, "r": 10, "t": 10, "b": 44},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 13},
            "hovermode": "closest",
            "dragmode": False,
            "xaxis": axis | {"title": {"text": "requests at once"}, "type": "category"},
            "yaxis": axis | {"ticksuffix": "x"},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        },
    }


def _line(report: Report, workload: str, name: str, label: str, colour: str) -> dict[str, Any]:
    """A policy's speedups, with their intervals."""
    entries = report.across(workload, name)
    halves = [(ends[1] - ends[0]) / 2 if (ends := each.get("ci95")) else 0 for each in entries]
    return {
        "x": [str(load) for load in report.loads],
        "y": [entry.get("speedup") for entry in entries],
        "error_y": {"type": "data", "array": halves, "color": colour, "visible": any(halves)},
        "name": html.escape(label),  # plotly reads a text's tags
        "mode": "lines+markers",
        "line": {"color": colour, "width": 3},
        "marker": {"color": colour, "size": 9},
    }

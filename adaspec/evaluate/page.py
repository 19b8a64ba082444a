"""A report as one page that opens without a network: `page.html`, filled in.

Figures are drawn by plotly, on light and on dark paper.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from adaspec.evaluate.plain_table import Section, Table
from adaspec.evaluate.tables import OPPONENT, Figures

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


def page(
    title: str,
    sections: Sequence[Section],
    settings: Table | None = None,
    notes: Sequence[str] = (),
    command: str = "",
) -> str:
    """The page of these sections; with a figure it holds plotly's own bundle."""
    environment = Environment(
        loader=PackageLoader("adaspec", "evaluate"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = [
        {said: _html(figure, f"figure-{at}-{number}") for number, (said, figure) in enumerate(some)}
        for at, some in enumerate(section.figures.items() for section in sections)
    ]
    return environment.get_template("page.html").render(
        title=title,
        sections=list(zip(sections, figures, strict=True)),
        settings=settings,
        notes=notes,
        command=command,
        plotly=Markup(get_plotlyjs() if any(figures) else ""),
    )


def _html(figure: Mapping[str, Any], name: str) -> Markup:
    config = {"displayModeBar": False}
    parts = {"include_plotlyjs": False, "full_html": False, "validate": False}
    return Markup(to_html(figure, config, div_id=f"figure-{name}", **parts))


def figures(report: Figures, workload: str) -> dict[str, dict[str, Any]]:
    """By what each shows, the figures of one workload; none where there is but one load."""
    if len(report.loads) < 2:
        return {}
    loads = [str(load) for load in report.loads]
    plain = {"mode": "lines", "line": {"color": GREY, "width": 1.2}, "hoverinfo": "skip"}
    speedups = [{"x": loads, "y": [1.0] * len(loads), "name": "no speculation", **plain}]
    speeds = [_speeds(report, workload, "none") | _style("no speculation (none)", GREY, "x", "dot")]
    for name, style in _drawn(report):
        speedups.append(_speedups(report, workload, name, style["line"]["color"]) | style)
        speeds.append(_speeds(report, workload, name) | style)
    by_load = {"title": {"text": "requests at once"}, "type": "category"}
    per_user = {"title": {"text": "tokens/s a user"}, "rangemode": "tozero"}
    return {
        "How fast each user reads (the median, behind the first token), and what all users get "
        "together: a point for each load.": _layout(
            speeds, per_user, {"title": {"text": "tokens/s of all"}, "rangemode": "tozero"}
        ),
        "Tokens per second, times those of no speculation, with 95% intervals.": _layout(
            speedups, by_load, {"ticksuffix": "x"}
        ),
    }


def _drawn(report: Figures) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows that are drawn beside none, and the style of each."""
    for name, (meaning, colour, marker, dash) in DRAWN.items():
        if name in report.shown and name not in report.named:
            yield name, _style(f"{meaning} ({name})", colour, marker, dash)
    for name, colour in zip(report.named, _NAMED, strict=False):
        short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
        yield name, _style(short, colour, "circle", "solid", 3)


def _style(label: str, colour: str, marker: str, dash: str, width: int = 2) -> dict[str, Any]:
    return {
        "name": html.escape(label),  # plotly reads a text's tags
        "mode": "lines+markers",
        "line": {"color": colour, "width": width, "dash": dash},
        "marker": {"color": colour, "symbol": marker, "size": 3 * width + 1},
    }


def _speedups(report: Figures, workload: str, name: str, colour: str) -> dict[str, Any]:
    """A policy's speedups by load, with their intervals."""
    entries = report.across(workload, name)
    halves = [(ends[1] - ends[0]) / 2 if (ends := each.get("ci95")) else 0 for each in entries]
    return {
        "x": [str(load) for load in report.loads],
        "y": [entry.get("speedup") for entry in entries],
        "error_y": {"type": "data", "array": halves, "color": colour, "visible": any(halves)},
    }


def _speeds(report: Figures, workload: str, name: str) -> dict[str, Any]:
    """What a user and all users together get of a policy, by load."""
    entries = [entry for entry in report.across(workload, name) if "latencies" in entry]
    return {
        "x": [1 / entry["latencies"]["tpot_s"]["p50"] for entry in entries],
        "y": [entry["tokens_per_s"] for entry in entries],
        "text": [f"{entry['concurrency']} requests at once" for entry in entries],
    }


def _layout(lines: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
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
            "xaxis": axis | x,
            "yaxis": axis | y,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        },
    }

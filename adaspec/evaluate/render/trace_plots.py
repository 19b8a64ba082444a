"""Plots of a dense trace: acceptance by position, request, workload and source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from numpy.typing import NDArray

from adaspec.evaluate.acceptance import SOURCES, Acceptance, examples, pooled, survival
from adaspec.evaluate.render.style import (
    INK,
    MUTED,
    NEURAL,
    NGRAM,
    SMALL,
    WIDTH_IN,
    canvas,
    label_ends,
    label_width_in,
    light_grid,
    named_axes,
    place,
    subplots,
    titled,
)
from adaspec.evaluate.render.table import short, short_names
from adaspec.evaluate.render.tables import SOURCES as SOURCE_NAMES

_COLOURS = {"neural": NEURAL, "ngram": NGRAM}
_PALETTE = ["#0B5FA5", "#C8390E", "#00805E", "#7B4B94", "#7A5B00", "#008C9E", "#B0468E", "#444444"]
"""The colours of the workloads, in alphabetical order of their names."""
_MAX_ACCEPTED = 20
"""A survival curve is drawn up to this many accepted tokens."""
_MIN_SHARE = 1e-3
"""The smallest share of positions that a survival plot shows."""
_MAX_STRIPS = 60
"""Heat strips show at most this many requests; with more, each would be a pixel or two high."""
_NEUTRAL = "#F1F1EE"


def positions_figure(requests: Sequence[Acceptance], per_workload: int = 2) -> Figure | None:
    """Accepted tokens at every position of a few requests per workload (the paper's figure 4)."""
    chosen = {
        name: examples_of_workload
        for name in _workloads(requests)
        if (examples_of_workload := examples(requests, name, per_workload))
    }
    if not chosen:
        return None
    figure, top = canvas(
        0.95 + 1.32 * len(chosen),
        "Tokens accepted at each position of single requests",
        "Neural upwards, n-gram downwards, means at the right; requests spread by their n-gram "
        f"mean, {_of(requests)}. An n-gram run counts down as the copied stretch is used up.",
    )
    wide = (WIDTH_IN - 0.55 - 0.15 - 0.3 * (per_workload - 1)) / per_workload
    for row, (workload, examples_of_workload) in enumerate(chosen.items()):
        known = [request.known(source) for request in examples_of_workload for source in SOURCES]
        highest = max([4, *(int(values.max()) for values in known if len(values))])
        for column, request in enumerate(examples_of_workload):
            left = 0.55 + column * (wide + 0.3)
            axes = place(figure, left, top + 0.12 + row * 1.32, wide, 0.85)
            _mirrored(axes, request, highest)
            titled(axes, short(f"{workload} / {request.id}", 22), SMALL)
            means = [
                f"{SOURCE_NAMES[source]} {counts.mean():.1f}"
                for source in SOURCES
                if len(counts := request.known(source))
            ]
            axes.set_title(", ".join(means), loc="right", fontsize=SMALL, color=MUTED, pad=4)
            last = row == len(chosen) - 1
            named_axes(axes, "position (output token)" * last, "" if column else "accepted")
    return figure


def requests_figure(requests: Sequence[Acceptance]) -> Figure | None:
    """How acceptance varies within and between the requests of a workload (figure 5)."""
    names, sources = _sources(requests)
    if not names:
        return None
    columns, block_in = min(len(names), 4), 1.4 * len(sources) + 0.25
    figure, top = canvas(
        0.65 + math.ceil(len(names) / columns) * block_in,
        "Tokens accepted per position, request by request",
        "Requests ordered by their mean (line); the band holds the middle 80% of each request's "
        f"positions, the darker one the middle half; {_of(requests)}.",
    )
    for row, source in enumerate(sources):
        quantiles = {name: _quantiles(requests, name, source) for name in names}
        highest = max(
            (float(q[:, [0, 4]].max()) for q in quantiles.values() if len(q)), default=1.0
        )
        above = top + 0.15 + row * 1.4
        for name, axes, leftmost, _ in subplots(figure, above, names, 1.1, block_in, 0.2, columns):
            count = len(quantiles[name])
            if count:
                _bands(axes, quantiles[name], _COLOURS[source], f"{name} {source}")
            axes.set_ylim(0, max(highest * 1.05, 1.0))
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            if not leftmost:
                axes.yaxis.set_major_formatter(NullFormatter())
            if row:
                titled(axes, "")
            label = f"{SOURCE_NAMES[source]} accepted" * leftmost
            named_axes(axes, f"{count:,} request{'s' * (count != 1)}", label)
    return figure


def survival_figure(requests: Sequence[Acceptance]) -> Figure | None:
    """The share of positions that accept at least j tokens, per workload and source (figure 6)."""
    names, sources = _sources(requests)
    if not names:
        return None
    labels = short_names(names, 16)
    right = min(label_width_in([f"{label} 0.00" for label in labels.values()]), 1.9) + 0.12
    figure, top = canvas(
        3.1,
        "Share of positions at which at least j tokens are accepted",
        f"All positions {_of(requests)}; beside each name, the mean accepted.",
    )
    wide = (WIDTH_IN - 0.6 - len(sources) * right - 0.25 * (len(sources) - 1)) / len(sources)
    for index, source in enumerate(sources):
        left = 0.6 + index * (wide + right + 0.25)
        axes = place(figure, left, top + 0.15, wide, 3.1 - top - 0.15 - 0.5)
        ends = []
        counts = {name: c for name in names if len(c := pooled(requests, name, source))}
        curves = {name: survival(of_name, _MAX_ACCEPTED) for name, of_name in counts.items()}
        reach = max(int(np.sum(curve >= _MIN_SHARE)) - 1 for curve in curves.values()) or 1
        for name, curve in curves.items():
            colour = _PALETTE[names.index(name) % len(_PALETTE)]
            shown = curve[curve > 0]
            axes.plot(range(len(shown)), shown, color=colour, linewidth=1.6, gid=name)
            text = f"{labels[name]} {counts[name].mean():.2f}"
            ends.append((float(curve[reach]), text, colour))
        axes.set_yscale("log")
        axes.set_ylim(_MIN_SHARE, 1.25)
        axes.minorticks_off()
        axes.set_xlim(0, reach)
        light_grid(axes)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        label_ends(axes, ends)
        titled(axes, SOURCE_NAMES[source])
        named_axes(axes, "accepted tokens j", "" if index else "positions")
    return figure


def strips_figure(requests: Sequence[Acceptance]) -> Figure | None:
    """n-gram against neural at every position, one strip per request (the paper's figure 9)."""
    paired = _differences(requests)
    if not paired:
        return None
    height = 1.2 + 1.95 * math.ceil(len(paired) / 2)
    figure, top = canvas(
        height,
        "Where n-gram and where neural gets further",
        "A row is a request, ordered by the mean difference; a column is a position. "
        f"At most {_MAX_STRIPS} requests each, evenly spread; cut where fewer than a fifth go on; "
        f"{_of(requests)}.",
    )
    colours = LinearSegmentedColormap.from_list("sources", [NEURAL, _NEUTRAL, NGRAM])
    norm = TwoSlopeNorm(0, -6, 12)
    for name, axes, leftmost, undermost in subplots(figure, top + 0.5, list(paired), 1.4, 1.95):
        picture = _strips(paired[name])
        image = axes.imshow(
            picture,
            aspect="auto",
            cmap=colours,
            norm=norm,
            interpolation="nearest",
            extent=(1, picture.shape[1] + 1, len(picture), 0),
        )
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_title(
            f"{len(picture)} of {len(paired[name]):,} requests",
            loc="right",
            fontsize=SMALL,
            color=MUTED,
        )
        named_axes(axes, "position (output token)" * undermost, "requests" * leftmost)
    bar = place(figure, 2.3, top + 0.02, 2.4, 0.1)
    figure.colorbar(image, cax=bar, orientation="horizontal").outline.set_visible(False)
    bar.tick_params(labelsize=SMALL, length=0, colors=MUTED)
    bar.set_xticks([-6, 0, 6, 12], ["6", "0", "6", "12 tokens"])
    for x, text, colour, side in (
        (2.2, "neural further", NEURAL, "right"),
        (4.8, "n-gram further", NGRAM, "left"),
    ):
        y = 1 - (top + 0.07) / height
        label = figure.text(x / WIDTH_IN, y, text, fontsize=SMALL, ha=side, va="center")
        label.set(color=colour, weight="bold")
    return figure


def difference_figure(requests: Sequence[Acceptance]) -> Figure | None:
    """The histogram of n-gram - neural accepted per position, per workload (figure 10)."""
    paired = _differences(requests)
    if not paired:
        return None
    figure, top = canvas(
        0.8 + 1.95 * math.ceil(len(paired) / 2),
        "Accepted by n-gram minus accepted by neural, position by position",
        f"Paired requests only, {_of(requests)}. The shares add to 100%.",
    )
    rows = subplots(figure, top + 0.15, list(paired), 1.3, 1.95, 0.6)
    for name, axes, leftmost, undermost in rows:
        _histogram(axes, np.concatenate(paired[name]))
        label = "n-gram - neural, accepted tokens"
        named_axes(axes, label * undermost, "share of positions" * leftmost)
    return figure


TRACE_PLOTS = {
    "acceptance-positions": (
        "Tokens accepted at each position of single requests (as figure 4)",
        positions_figure,
    ),
    "acceptance-requests": (
        "Tokens accepted, request by request (as figure 5)",
        requests_figure,
    ),
    "acceptance-workloads": (
        "Share of positions accepting at least j tokens, by workload (as figure 6)",
        survival_figure,
    ),
    "ngram-against-neural": (
        "Where n-gram and where neural gets further, a strip per request (as figure 9)",
        strips_figure,
    ),
    "ngram-minus-neural": (
        "n-gram minus neural accepted per position (as figure 10)",
        difference_figure,
    ),
}
"""File name -> the caption, and the function that draws the plot."""


def _workloads(requests: Sequence[Acceptance]) -> list[str]:
    return sorted({request.workload for request in requests})


def _sources(requests: Sequence[Acceptance]) -> tuple[list[str], list[str]]:
    """The workloads and the sources with at least one known count."""
    known = [
        (name, source)
        for name in _workloads(requests)
        for source in SOURCES
        if len(pooled(requests, name, source))
    ]
    sources = {source for _, source in known}
    return list(dict.fromkeys(name for name, _ in known)), [s for s in SOURCES if s in sources]


def _differences(requests: Sequence[Acceptance]) -> dict[str, list[NDArray[np.int16]]]:
    """n-gram - neural of every paired request, by workload."""
    paired: dict[str, list[NDArray[np.int16]]] = {name: [] for name in _workloads(requests)}
    for request in requests:
        if len(values := request.differences()):
            paired[request.workload].append(values)
    return {name: rows for name, rows in paired.items() if rows}


def _mirrored(axes: Axes, request: Acceptance, highest: int) -> None:
    """Draw a request's neural counts upwards and its n-gram counts downwards."""
    for source, counts, sign in (("neural", request.neural, 1), ("ngram", request.ngram, -1)):
        if counts is not None:
            heights = sign * np.where(counts >= 0, counts, 0)
            edges = np.arange(1, len(counts) + 2) - 0.5
            axes.stairs(heights, edges, fill=True, color=_COLOURS[source], linewidth=0, gid=source)
    axes.axhline(0, color=INK, linewidth=0.6)
    axes.set_ylim(-highest - 0.5, highest + 0.5)
    axes.margins(x=0.01)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    light_grid(axes)


def _bands(axes: Axes, rows: NDArray[np.float64], colour: str, gid: str) -> None:
    """Draw means and quantiles in the order of the means, in at most `_MAX_STRIPS` groups."""
    ranked = rows[np.argsort(rows[:, 0], kind="stable")]
    parts = np.array_split(ranked, min(len(ranked), _MAX_STRIPS))
    order = np.array([part.mean(axis=0) for part in parts])
    x = np.array([np.mean(ranks) for ranks in np.array_split(np.arange(len(rows)), len(parts))])
    if len(order) == 1:
        order, x = np.repeat(order, 2, axis=0), np.array([0.0, 1.0])
    axes.fill_between(x, order[:, 1], order[:, 4], color=colour, alpha=0.18, linewidth=0)
    axes.fill_between(x, order[:, 2], order[:, 3], color=colour, alpha=0.35, linewidth=0)
    axes.plot(x, order[:, 0], color=INK, linewidth=1.4, gid=gid)
    axes.set_xlim(x[0], x[-1])
    axes.set_xticks([])
    light_grid(axes)


def _quantiles(requests: Sequence[Acceptance], workload: str, source: str) -> NDArray[np.float64]:
    """The mean and the 10, 25, 75 and 90% quantiles of each request."""
    rows = [
        [values.mean(), *np.quantile(values, [0.1, 0.25, 0.75, 0.9])]
        for request in requests
        if request.workload == workload and len(values := request.known(source))
    ]
    return np.array(rows)


def _strips(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Differences as (request, position), NaN past a request's end, cut where few go on."""
    ranked = sorted(rows, key=lambda differences: -float(differences.mean()))
    if len(ranked) > _MAX_STRIPS:
        evenly = np.linspace(0, len(ranked) - 1, _MAX_STRIPS).round().astype(int)
        ranked = [ranked[index] for index in evenly]
    longest = int(np.quantile([len(differences) for differences in ranked], 0.8))
    picture = np.full((len(ranked), max(longest, 1)), np.nan)
    for row, differences in zip(picture, ranked, strict=True):
        row[: len(differences)] = differences[: len(row)]
    return picture


def _histogram(axes: Axes, values: NDArray[Any]) -> None:
    bins = np.arange(-_MAX_ACCEPTED, _MAX_ACCEPTED + 1)
    cut = np.clip(values, -_MAX_ACCEPTED, _MAX_ACCEPTED)
    shares = np.array([np.mean(cut == difference) for difference in bins])
    colours = [
        NEURAL if difference < 0 else NGRAM if difference > 0 else "#8A8A8A" for difference in bins
    ]
    axes.bar(bins, shares, 0.9, color=colours)
    axes.set_yscale("log")
    axes.set_ylim(1e-4, 40.0)
    axes.set_yticks([1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    axes.set_xlim(-_MAX_ACCEPTED - 0.6, _MAX_ACCEPTED + 0.6)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axes.minorticks_off()
    light_grid(axes)
    for x, side, share, text, colour in (
        (0.02, "left", np.mean(values < 0), "neural further", NEURAL),
        (0.5, "center", np.mean(values == 0), "equal", MUTED),
        (0.98, "right", np.mean(values > 0), "n-gram further", NGRAM),
    ):
        label = f"{text}\n{100 * share:.0f}%"
        drawn = axes.text(x, 0.98, label, transform=axes.transAxes, fontsize=SMALL, va="top")
        drawn.set(color=colour, weight="bold", ha=side)


def _of(requests: Sequence[Acceptance]) -> str:
    return f"of the {len(requests):,} requests evaluated; n-gram counts end at {_MAX_ACCEPTED}"

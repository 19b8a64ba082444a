"""Pictures of a dense trace: acceptance over positions, per request, per workload, by source."""

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

from adaspec.evaluate.render.acceptance import (
    SOURCES,
    Acceptance,
    chosen,
    differences,
    known,
    pooled,
    survival,
    workloads_of,
)
from adaspec.evaluate.render.learned import SOURCES as NAMES
from adaspec.evaluate.render.style import (
    FAINT,
    INK,
    MUTED,
    NEURAL,
    NGRAM,
    SMALL,
    WIDTH_IN,
    canvas,
    label_ends,
    label_width_in,
    named_axes,
    panels,
    place,
    titled,
)
from adaspec.evaluate.render.wording import short, short_names

_COLOURS = {"neural": NEURAL, "ngram": NGRAM}
_PALETTE = ["#0B5FA5", "#C8390E", "#00805E", "#7B4B94", "#7A5B00", "#008C9E", "#B0468E", "#444444"]
"""A colour per workload, in alphabetical order."""
_LONGEST = 20
"""Accepted tokens beyond which a survival curve is not drawn further."""
_RARE = 1e-3
"""The share of positions at which a survival curve leaves the picture."""
_STRIPS = 60
"""Requests per heat strip: more would be thinner than a pixel or two."""
_NEUTRAL = "#F1F1EE"


def positions_figure(requests: Sequence[Acceptance], per_workload: int = 2) -> Figure | None:
    """Accepted tokens at every position of a few requests per workload (the paper's figure 4)."""
    examples = {name: chosen(requests, name, per_workload) for name in workloads_of(requests)}
    examples = {name: several for name, several in examples.items() if several}
    if not examples:
        return None
    figure, top = canvas(
        0.95 + 1.32 * len(examples),
        "Tokens accepted at each position of single requests",
        "Neural upwards, n-gram downwards, means at the right; requests spread by their n-gram "
        f"mean, {_of(requests)}. An n-gram run counts down as the copied stretch is used up.",
    )
    wide = (WIDTH_IN - 0.55 - 0.15 - 0.3 * (per_workload - 1)) / per_workload
    for row, (workload, several) in enumerate(examples.items()):
        highest = max(4, *(_largest(each) for each in several))
        for column, each in enumerate(several):
            left = 0.55 + column * (wide + 0.3)
            axes = place(figure, left, top + 0.12 + row * 1.32, wide, 0.85)
            _mirrored(axes, each, highest)
            titled(axes, short(f"{workload} / {each.id}", 22), SMALL)
            axes.set_title(_means(each), loc="right", fontsize=SMALL, color=MUTED, pad=4)
            last = row == len(examples) - 1
            named_axes(axes, "position (output token)" * last, "" if column else "accepted")
    return figure


def requests_figure(requests: Sequence[Acceptance]) -> Figure | None:
    """How acceptance spreads within and over the requests of a workload (figure 5)."""
    names = [name for name in workloads_of(requests) if _sources(requests, name)]
    if not names:
        return None
    sources = [s for s in SOURCES if any(s in _sources(requests, name) for name in names)]
    columns, block_in = min(len(names), 4), 1.4 * len(sources) + 0.25
    figure, top = canvas(
        0.65 + math.ceil(len(names) / columns) * block_in,
        "Tokens accepted per position, request by request",
        "Requests ordered by their mean (line); the band holds the middle 80% of each request's "
        f"positions, the darker one the middle half; {_of(requests)}.",
    )
    for row, source in enumerate(sources):
        highest = _band_top(requests, names, source)
        above = top + 0.15 + row * 1.4
        for name, axes, leftmost, _ in panels(figure, above, names, 1.1, block_in, 0.2, columns):
            count = _bands(axes, requests, name, source)
            axes.set_ylim(0, highest)
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            if not leftmost:
                axes.yaxis.set_major_formatter(NullFormatter())
            if row:
                titled(axes, "")
            label = f"{NAMES[source]} accepted" * leftmost
            named_axes(axes, f"{count:,} request{'s' * (count != 1)}", label)
    return figure


def survival_figure(requests: Sequence[Acceptance]) -> Figure | None:
    """How many positions accept at least j tokens, per workload and source (figure 6)."""
    names = [name for name in workloads_of(requests) if _sources(requests, name)]
    sources = [s for s in SOURCES if any(s in _sources(requests, name) for name in names)]
    if not sources:
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
        curves = {name: survival(each, _LONGEST) for name, each in counts.items()}
        reach = max(int(np.sum(curve >= _RARE)) - 1 for curve in curves.values()) or 1
        for name, curve in curves.items():
            colour = _PALETTE[names.index(name) % len(_PALETTE)]
            shown = curve[curve > 0]
            axes.plot(range(len(shown)), shown, color=colour, linewidth=1.6, gid=name)
            text = f"{labels[name]} {counts[name].mean():.2f}"
            ends.append((float(curve[reach]), text, colour))
        axes.set_yscale("log")
        axes.set_ylim(_RARE, 1.25)
        axes.minorticks_off()
        axes.set_xlim(0, reach)
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        label_ends(axes, ends)
        titled(axes, NAMES[source])
        named_axes(axes, "accepted tokens j", "" if index else "positions")
    return figure


def strips_figure(requests: Sequence[Acceptance]) -> Figure | None:
    """n-gram against neural at every position, a strip per request (the paper's figure 9)."""
    paired = _differences(requests)
    if not paired:
        return None
    height = 1.2 + 1.95 * math.ceil(len(paired) / 2)
    figure, top = canvas(
        height,
        "Where n-gram and where neural gets further",
        "A row is a request, ordered by the mean difference; a column is a position. "
        f"At most {_STRIPS} requests each, evenly spread; cut where fewer than a fifth go on; "
        f"{_of(requests)}.",
    )
    colours = LinearSegmentedColormap.from_list("sources", [NEURAL, _NEUTRAL, NGRAM])
    norm = TwoSlopeNorm(0, -6, 12)
    for name, axes, leftmost, undermost in panels(figure, top + 0.5, list(paired), 1.4, 1.95):
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
        figure.text(
            x / WIDTH_IN,
            1 - (top + 0.07) / height,
            text,
            fontsize=SMALL,
            color=colour,
            weight="bold",
            ha=side,
            va="center",
        )
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
    for name, axes, leftmost, undermost in panels(figure, top + 0.15, list(paired), 1.3, 1.95, 0.6):
        _histogram(axes, np.concatenate(paired[name]))
        label = "n-gram - neural, accepted tokens"
        named_axes(axes, label * undermost, "share of positions" * leftmost)
    return figure


ALL = {
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
"""Caption and drawing by the picture's name."""


def _differences(requests: Sequence[Acceptance]) -> dict[str, list[NDArray[np.int16]]]:
    """n-gram - neural of every paired request, by workload."""
    paired: dict[str, list[NDArray[np.int16]]] = {name: [] for name in workloads_of(requests)}
    for request in requests:
        if len(values := differences(request)):
            paired[request.workload].append(values)
    return {name: rows for name, rows in paired.items() if rows}


def _mirrored(axes: Axes, each: Acceptance, highest: int) -> None:
    for source, sign in (("neural", 1), ("ngram", -1)):
        counts = each.of(source)
        if counts is None:
            continue
        heights = sign * np.where(counts >= 0, counts, 0)
        edges = np.arange(1, len(counts) + 2) - 0.5
        axes.stairs(heights, edges, fill=True, color=_COLOURS[source], linewidth=0, gid=source)
    axes.axhline(0, color=INK, linewidth=0.6)
    axes.set_ylim(-highest - 0.5, highest + 0.5)
    axes.margins(x=0.01)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.grid(axis="y", color=FAINT, linewidth=0.5)


def _means(each: Acceptance) -> str:
    parts = [
        f"{NAMES[source]} {known(counts).mean():.1f}"
        for source in SOURCES
        if (counts := each.of(source)) is not None and len(known(counts))
    ]
    return ", ".join(parts)


def _bands(axes: Axes, requests: Sequence[Acceptance], workload: str, source: str) -> int:
    rows = _quantiles(requests, workload, source)
    if not len(rows):
        return 0
    ranked = rows[np.argsort(rows[:, 0], kind="stable")]
    parts = np.array_split(ranked, min(len(ranked), _STRIPS))
    order = np.array([part.mean(axis=0) for part in parts])
    x = np.array([np.mean(each) for each in np.array_split(np.arange(len(rows)), len(parts))])
    if len(order) == 1:
        order, x = np.repeat(order, 2, axis=0), np.array([0.0, 1.0])
    colour = _COLOURS[source]
    axes.fill_between(x, order[:, 1], order[:, 4], color=colour, alpha=0.18, linewidth=0)
    axes.fill_between(x, order[:, 2], order[:, 3], color=colour, alpha=0.35, linewidth=0)
    axes.plot(x, order[:, 0], color=INK, linewidth=1.4, gid=f"{workload} {source}")
    axes.set_xlim(x[0], x[-1])
    axes.set_xticks([])
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    return len(rows)


def _quantiles(requests: Sequence[Acceptance], workload: str, source: str) -> NDArray[Any]:
    """Mean and 10, 25, 75, 90% points per request."""
    rows = [
        [values.mean(), *np.quantile(values, [0.1, 0.25, 0.75, 0.9])]
        for each in requests
        if each.workload == workload
        and (counts := each.of(source)) is not None
        and len(values := known(counts))
    ]
    return np.array(rows)


def _band_top(requests: Sequence[Acceptance], names: Sequence[str], source: str) -> float:
    tops = [q[:, [0, 4]].max() for name in names if len(q := _quantiles(requests, name, source))]
    return max(float(max(tops, default=1.0)) * 1.05, 1.0)


def _strips(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Differences as (request, position), NaN past a request's end, cut where few go on."""
    ranked = sorted(rows, key=lambda each: -float(each.mean()))
    if len(ranked) > _STRIPS:
        evenly = np.linspace(0, len(ranked) - 1, _STRIPS).round().astype(int)
        ranked = [ranked[index] for index in evenly]
    longest = int(np.quantile([len(each) for each in ranked], 0.8))
    picture = np.full((len(ranked), max(longest, 1)), np.nan)
    for row, each in zip(picture, ranked, strict=True):
        row[: len(each)] = each[: len(row)]
    return picture


def _histogram(axes: Axes, values: NDArray[Any]) -> None:
    bins = np.arange(-_LONGEST, _LONGEST + 1)
    shares = np.array([np.mean(np.clip(values, -_LONGEST, _LONGEST) == each) for each in bins])
    colours = [NEURAL if each < 0 else NGRAM if each > 0 else "#8A8A8A" for each in bins]
    axes.bar(bins, shares, 0.9, color=colours)
    axes.set_yscale("log")
    axes.set_ylim(1e-4, 40.0)
    axes.set_yticks([1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    axes.set_xlim(-_LONGEST - 0.6, _LONGEST + 0.6)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axes.minorticks_off()
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    for x, share, text, colour in (
        (0.02, np.mean(values < 0), "neural further", NEURAL),
        (0.5, np.mean(values == 0), "equal", MUTED),
        (0.98, np.mean(values > 0), "n-gram further", NGRAM),
    ):
        axes.text(
            x,
            0.98,
            f"{text}\n{100 * share:.0f}%",
            transform=axes.transAxes,
            fontsize=SMALL,
            color=colour,
            weight="bold",
            ha="left" if x < 0.3 else "right" if x > 0.7 else "center",
            va="top",
        )


def _of(requests: Sequence[Acceptance]) -> str:
    return f"of the {len(requests):,} requests evaluated; n-gram counts end at {_LONGEST}"


def _sources(requests: Sequence[Acceptance], workload: str) -> list[str]:
    return [source for source in SOURCES if len(pooled(requests, workload, source))]


def _largest(each: Acceptance) -> int:
    lists = [counts for counts in (each.neural, each.ngram) if counts is not None]
    return max((int(counts.max()) for counts in lists if len(counts)), default=0)

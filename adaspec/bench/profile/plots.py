"""A profile in pictures: where a step's time goes, and what the fit says against what was timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from adaspec.bench.profile.measurement import PARTS
from adaspec.bench.profile.profile import GOAL, SOURCES, Profile, source_of
from adaspec.evaluate.render.style import (
    FAINT,
    INK,
    MUTED,
    NEURAL,
    NGRAM,
    SMALL,
    canvas,
    named_axes,
    place,
    titled,
)

_PART_COLOURS = {"draft": NEURAL, "verify": "#4A5560", "sample": NGRAM, "other": "#C3CAD1"}
_SOURCE_COLOURS = ("#444444", "#97A3B0", NGRAM, "#B0468E", NEURAL, "#00805E")
_SOURCE_MARKERS = "os^vDP"
_BAR_IN = 0.21


def save_plots(profile: Profile, stem: Path) -> list[Path]:
    """Write both pictures beside `stem`; their paths."""
    paths = []
    for name, figure in {
        "breakdown": breakdown_figure(profile),
        "fit": fit_figure(profile),
    }.items():
        path = stem.with_name(f"{stem.stem}-{name}.png")
        figure.savefig(path, format="png", metadata={"Software": None})
        paths.append(path)
    return paths


def breakdown_figure(profile: Profile) -> Figure:
    """A bar per source and batch: which share of the step each part takes, and its length."""
    shares = profile.breakdown
    sources = dict.fromkeys(share.source for share in shares)
    height = _BAR_IN * (len(shares) + 0.8 * len(sources)) + 1.35
    figure, top = canvas(
        height,
        "Where a step's time goes",
        f"{_subject(profile)}. Means over contexts and draft lengths; draft includes deciding, "
        "other is scheduling, bookkeeping and text.",
    )
    axes = place(figure, 1.75, top + 0.28, 4.45, height - top - 0.75)
    # A wider gap lies between the bars of two sources.
    gaps = [0.8 * list(sources).index(share.source) for share in shares]
    ticks = [number + gap for number, gap in enumerate(gaps)]
    left = np.zeros(len(shares))
    for part in PARTS:
        widths = np.array([max(0.0, share.seconds[part]) / share.step_s for share in shares])
        axes.barh(ticks, widths, left=left, height=0.78, color=_PART_COLOURS[part], label=part)
        left += widths
    for tick, share in zip(ticks, shares, strict=True):
        milliseconds = f"{1e3 * share.step_s:.3g} ms"
        axes.text(1.02, tick, milliseconds, fontsize=SMALL, color=MUTED, va="center")
    axes.set_ylim(max(ticks, default=0.0) + 0.8, -0.7)
    labels = [f"{share.source}, batch {share.requests}" for share in shares]
    axes.set_yticks(ticks, labels, fontsize=SMALL, color=INK)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    named_axes(axes, "share of the step")
    axes.legend(
        *axes.get_legend_handles_labels(),
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=len(PARTS),
        frameon=False,
        fontsize=SMALL,
        handlelength=1.0,
        borderaxespad=0.1,
    )
    return figure


def fit_figure(profile: Profile) -> Figure:
    """A dot per kind of step: its measured time, and what the fitted model predicts."""
    figure, top = canvas(
        4.6,
        "What the fitted cost model says of each measured step",
        f"{_subject(profile)}. Held-out steps are off by {profile.fit.mean_error:.1%} on average; "
        f"the band is +-{GOAL:.0%}.",
    )
    axes = place(figure, 0.75, top + 0.2, 5.9, 4.6 - top - 0.75)
    measured = np.array([kind.step_s for kind in profile.kinds])
    predicted = np.array([profile.predicted_s(kind) for kind in profile.kinds])
    ends = np.array([min(measured.min(), predicted.min()), max(measured.max(), predicted.max())])
    ends *= 1e3 * np.array([0.85, 1.18])
    axes.fill_between(ends, ends * (1 - GOAL), ends * (1 + GOAL), color="#EEF1F4", zorder=0)
    axes.plot(ends, ends, color=MUTED, linewidth=0.8, zorder=1)
    sources = [source_of(kind) for kind in profile.kinds]
    errors = profile.errors()
    for source, colour, marker in zip(SOURCES, _SOURCE_COLOURS, _SOURCE_MARKERS, strict=True):
        members = [number for number, each in enumerate(sources) if each == source]
        if members:
            axes.scatter(
                measured[members] * 1e3,
                predicted[members] * 1e3,
                s=16,
                color=colour,
                marker=marker,
                alpha=0.75,
                linewidths=0,
                label=f"{source}: off by {errors[source]:.0%}",
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(
            FuncFormatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else "")
        )
    axes.tick_params(which="minor", labelsize=SMALL, labelcolor=MUTED, color="#AAAAAA", length=2)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    titled(axes, "step time in milliseconds", SMALL)
    named_axes(axes, "measured: median of its repeats", "predicted")
    axes.legend(frameon=False, fontsize=SMALL, loc="upper left", handletextpad=0.2)
    return figure


def _subject(profile: Profile) -> str:
    return f"{profile.cost.target} on {profile.cost.hardware}"

"""The card's figures: lifts, what a single request pays, calibration, ablations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from adaspec.evaluate.options import Options
from adaspec.evaluate.render.ablations import ABLATED, ablation_lines
from adaspec.evaluate.render.reliability import (
    EXPLAINED,
    HEAD,
    HEARD,
    HEARD_HEAD,
    NAMES,
    calibration_rows,
    heard_rows,
)

Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By workload and concurrency."""

_PLOT_WIDTH = 50
_WAITING = ("none", "static_best", "policy")


def results(metrics: Mapping[str, Any], options: Options) -> Iterator[str]:
    """What the policy did on requests that it never saw, the cross-fitted figures first."""
    crossed = metrics.get("cross_fitted")
    yield (
        "Closed loop, paired 95% intervals. `static:best` is the best of all static rules in "
        "hindsight on these very requests (for a workload, on it alone); `static:tuned` is what "
        "won on the training requests; gap closed is towards perfect foresight "
        "(`oracle:plan-splice`)."
    )
    if crossed:
        count = sum(crossed["requests"].values())
        yield f"### Cross-fitted, all {count:,} requests"
        yield (
            f"The requests were dealt into {crossed['folds']} folds, and each fold was decided by "
            "a model trained as this one on the other folds. "
            f"{_drawn(crossed['orders'], crossed['resamples'])}"
        )
        yield lifts(crossed["cells"])
    yield f"### This very model, on the {sum(metrics['held_out_requests'].values()):,} kept back"
    yield _drawn(options.orders, options.resamples)
    yield lifts(metrics["held_out"])
    yield "## What a single request pays"
    yield (
        "The policy maximises tokens per second of the whole batch, so one request may wait for "
        "others' drafts to be verified. Milliseconds per output token, median / 95th percentile "
        "over requests, all workloads mixed:"
    )
    yield latencies((crossed["cells"] if crossed else metrics["held_out"])["all"])


def lifts(cells: Cells) -> str:
    """A line per workload and concurrency."""
    rows = [
        [
            workload,
            concurrency,
            _times(found["speedup"]),
            _lift(found["lift_over_static_best"], found["lift_ci95"]),
            _lift(found["lift_over_static_tuned"], found["lift_over_static_tuned_ci95"]),
            _lift(found["lift_over_static_one"], None),
            _lift(found["lift_over_adaptive_best"], None),
            _lift(found["lift_over_fixed_best"], None),
            _share(found["gap_closed"]),
        ]
        for workload, by_load in cells.items()
        for concurrency, found in by_load.items()
    ]
    head = ["workload", "concurrency", "speedup over none", "lift over static:best"]
    head += ["over static:tuned", "over static:one", "over adaptive:best", "over fixed:best"]
    return table([*head, "gap closed"], rows)


def latencies(by_load: Mapping[str, Mapping[str, Any]]) -> str:
    """A line per concurrency, the policy beside no speculation and the best static rule."""
    rows = [
        [concurrency, *(_waits(found["latency_s"][name]) for name in _WAITING)]
        for concurrency, found in by_load.items()
    ]
    return table(["concurrency", "none", "static:best", "this policy"], rows)


def calibrations(metrics: Mapping[str, Any]) -> Iterator[str]:
    """The calibration tables and a picture in text of what they sum up."""
    yield EXPLAINED
    crossed = metrics.get("cross_fitted")
    titled = [("Cross-fitted:", crossed["calibration"])] if crossed else []
    titled.append(("This very model on the requests kept back:", metrics["calibration"]))
    for title, found in titled:
        yield title
        yield table(HEAD, calibration_rows(found))
    if any(heard_rows(found) for _, found in titled):
        yield HEARD
        for title, found in titled:
            yield title
            yield table(HEARD_HEAD, heard_rows(found))
    shown = titled[0][1]
    for source, judged in shown["sources"].items():
        yield (
            f"S(1) of {NAMES.get(source, source)}"
            f"{', cross-fitted' if crossed else ''}: a bar as long as the share that came true, "
            "`|` where it was said to end."
        )
        yield f"```\n{_picture(judged[0]['curve'])}\n```"


def ablations(metrics: Mapping[str, Any]) -> Iterator[str]:
    """What each part of the policy is worth; nothing where none was taken away."""
    crossed = metrics.get("cross_fitted") or {}
    found = [
        (title, table(*ablation_lines(each["ablations"])))
        for title, each in (("Cross-fitted:", crossed), ("On the requests kept back:", metrics))
        if "ablations" in each
    ]
    if found:
        yield "## Ablations"
        yield ABLATED
        for pair in found:
            yield from pair


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), ["---"] * len(head), *([_escaped(each) for each in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _picture(curve: Sequence[Sequence[float]]) -> str:
    lines = []
    for said, came, _ in curve:
        bar = list(("=" * round(_PLOT_WIDTH * came)).ljust(_PLOT_WIDTH + 1))
        bar[round(_PLOT_WIDTH * min(max(said, 0.0), 1.0))] = "|"
        lines.append(f"said {said:.2f}  came {came:.2f}  {''.join(bar).rstrip()}")
    return "\n".join(lines)


def _drawn(orders: int, resamples: int) -> str:
    plural = "" if orders == 1 else "s"
    drawn = f"intervals from {resamples} resamples" if resamples else "no intervals (no resamples)"
    return f"{orders} order{plural}, {drawn}."


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _lift(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return "-"
    spread = "" if interval is None else f" ({100 * interval[0]:+.1f} .. {100 * interval[1]:+.1f})"
    return f"{100 * value:+.1f}%{spread}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _waits(seconds: Mapping[str, float | None]) -> str:
    each = (seconds["median"], seconds["p95"])
    return " / ".join("-" if value is None else f"{1e3 * value:.2f}" for value in each)

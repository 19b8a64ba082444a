"""The card's figures: lifts, what a single request pays, calibration, ablations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adaspec.evaluate.options import Options
from adaspec.evaluate.render import result_tables
from adaspec.evaluate.render.markdown import table_markdown
from adaspec.evaluate.render.table import (
    Text,
    foreign,
    milliseconds,
    percent,
    signed_percent,
    signed_range,
    simple_table,
    times,
)

Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By workload and concurrency."""

_BAR_WIDTH = 50
_LATENCIES = {"none": "none", "static_best": "`static:best`", "policy": "this policy"}


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
        yield lifts(
            f"Cross-fitted, all {sum(crossed['requests'].values()):,} requests",
            f"The requests were dealt into {crossed['folds']} folds, and each fold was decided by "
            "a model trained as this one on the other folds. "
            f"{_orders(crossed['orders'], crossed['resamples'])}",
            crossed["cells"],
        )
    yield lifts(
        f"This very model, on the {sum(metrics['held_out_requests'].values()):,} kept back",
        _orders(options.orders, options.resamples),
        metrics["held_out"],
    )
    yield latencies((crossed["cells"] if crossed else metrics["held_out"])["all"])


def lifts(title: str, sentence: str, cells: Cells) -> str:
    """A line per workload and concurrency."""
    heads = ["workload", "concurrency", "speedup over none", "lift over `static:best`"]
    heads += ["over `static:tuned`", "over `static:one`", "over `adaptive:best`"]
    rows: list[list[Text]] = [
        [
            foreign(workload),
            concurrency,
            times(cell["speedup"]),
            _lift(cell["lift_over_static_best"], cell["lift_ci95"]),
            _lift(cell["lift_over_static_tuned"], cell["lift_over_static_tuned_ci95"]),
            signed_percent(cell["lift_over_static_one"]),
            signed_percent(cell["lift_over_adaptive_best"]),
            signed_percent(cell["lift_over_fixed_best"]),
            percent(cell["gap_closed"]),
        ]
        for workload, by_load in cells.items()
        for concurrency, cell in by_load.items()
    ]
    heads += ["over `fixed:best`", "gap closed"]
    return table_markdown(simple_table(title, heads, rows, sentence=sentence), 3)


def latencies(by_load: Mapping[str, Mapping[str, Any]]) -> str:
    """A line per concurrency, the policy beside no speculation and the best static rule."""
    rows = [
        [
            concurrency,
            *(
                f"{milliseconds(latency['median'])} / {milliseconds(latency['p95'])}"
                for latency in (cell["latency_s"][name] for name in _LATENCIES)
            ),
        ]
        for concurrency, cell in by_load.items()
    ]
    sentence = (
        "The policy maximises tokens per second of the whole batch, so one request may wait for "
        "others' drafts to be verified. Milliseconds per output token, median / 95th percentile "
        "over requests, all workloads mixed:"
    )
    heads = ["concurrency", *_LATENCIES.values()]
    return table_markdown(simple_table("What a single request pays", heads, rows, 0, sentence))


def calibrations(metrics: Mapping[str, Any]) -> Iterator[str]:
    """The calibration tables and a picture in text of what they sum up."""
    crossed = metrics.get("cross_fitted")
    judged = {"Cross-fitted": crossed["calibration"]} if crossed else {}
    judged["This very model on the requests kept back"] = metrics["calibration"]
    for index, (title, calibration) in enumerate(judged.items()):
        for table in result_tables.calibration(calibration, title):
            yield table_markdown(replace(table, sentence="") if index else table, 3)
    for source, depths in next(iter(judged.values()))["sources"].items():
        yield (
            f"S(1) of {result_tables.SOURCES[source]}{', cross-fitted' if crossed else ''}: a bar "
            "as long as the share that came true, `|` where it was predicted to end."
        )
        yield f"```\n{_bars(depths[0]['curve'])}\n```"


def ablations(metrics: Mapping[str, Any]) -> Iterator[str]:
    """What each part of the policy is worth; nothing where none was taken away."""
    crossed = metrics.get("cross_fitted") or {}
    for title, each in (("cross-fitted", crossed), ("on the requests kept back", metrics)):
        if "ablations" in each:
            yield table_markdown(result_tables.ablations(each["ablations"], f"Ablations, {title}"))


def _bars(curve: Sequence[Sequence[float]]) -> str:
    lines = []
    for predicted, observed, _ in curve:
        bar = list(("=" * round(_BAR_WIDTH * observed)).ljust(_BAR_WIDTH + 1))
        bar[round(_BAR_WIDTH * min(max(predicted, 0.0), 1.0))] = "|"
        lines.append(
            f"predicted {predicted:.2f}  came true {observed:.2f}  {''.join(bar).rstrip()}"
        )
    return "\n".join(lines)


def _orders(orders: int, resamples: int) -> str:
    plural = "" if orders == 1 else "s"
    drawn = f"intervals from {resamples} resamples" if resamples else "no intervals (no resamples)"
    return f"{orders} order{plural}, {drawn}."


def _lift(value: float | None, interval: tuple[float, float] | None) -> str:
    return f"{signed_percent(value)} {signed_range(interval)}".rstrip()

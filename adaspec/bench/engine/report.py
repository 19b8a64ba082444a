"""A benchmark's report: rows, headlines, and every output that differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from adaspec import __version__
from adaspec.bench.engine.comparison import Difference, Timing, paired_ratio, timing
from adaspec.bench.engine.methods import (
    ADASPEC,
    NEURAL,
    NGRAM,
    NONE,
    STATIC,
    BenchmarkOptions,
)
from adaspec.bench.engine.prompts import Dealt
from adaspec.bench.engine.rounds import Load, Round
from adaspec.bench.engine.settings import UsualSettings
from adaspec.evaluate.options import ALL

SCHEMA = 1
STATIC_METHODS = (NONE, NGRAM, NEURAL, STATIC)
"""One setting for every request and step."""
RIGHT_WITHIN = 0.10
"""An expected speed-up within this of the measured one counts as right."""
MAX_UNEVEN = 1.05
"""A machine that was no more uneven than this between methods is not mentioned."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The rounds of one load, and the outputs that differ from those of no speculation."""

    load: Load
    rounds: list[Round]
    differences: list[Difference]


def document(
    options: BenchmarkOptions,
    measured: Sequence[Measured],
    settings: UsualSettings,
    absent: Mapping[str, str],
    notes: Sequence[str],
    served_on: Mapping[str, str],
) -> dict[str, Any]:
    """The report that `adaspec bench engine --json` prints.

    `served_on` is the hardware and vLLM's version; `notes` stand after those on repeated prompts
    and an uneven machine.
    """
    rows: list[dict[str, Any]] = []
    headlines: list[dict[str, Any]] = []
    for each in measured:
        load = each.load
        dealt, rounds = rounds_by_workload(load.dealt, each.rounds)
        for cell in (*load.cells, *sorted({cell for _, cell in dealt})):
            calls = {**load.dealt, **dealt}
            rows += _rows(load, cell, calls, [*each.rounds, *rounds], settings)
            headlines.append(headline(rows, load.concurrency, cell))
    differences = [
        {"concurrency": each.load.concurrency, **asdict(difference)}
        for each in measured
        for difference in each.differences
    ]
    repeated = [
        f"concurrency {each.load.concurrency}: there were too few prompts, some came more than "
        "once, and a method that remembers answers (suffix) may have gained by it"
        for each in measured
        if each.load.repeated
    ]
    return {
        "schema": SCHEMA,
        "adaspec": __version__,
        "model": options.model,
        "drafter": options.draft,
        **served_on,
        "engine": dict(options.engine),
        "cost": options.cost,
        "rounds": options.rounds,
        "max_tokens": options.max_tokens,
        "rows": rows,
        "absent": dict(absent),
        "headline": headlines,
        "differences": differences,
        "outputs_equal": all(each["near_tie"] for each in differences),
        "notes": [*repeated, *unsteady(rows), *notes],
    }


def rounds_by_workload(dealt: Dealt, rounds: Sequence[Round]) -> tuple[Dealt, list[Round]]:
    """The mix's rounds as rounds of a workload; none where a round is of several workloads.

    `rounds` are all of one load. One request at a time, a round may be a single request.
    """
    workload_of: dict[int, str] = {}
    for (number, cell), calls in dealt.items():
        workloads = {call.workload for call in calls}
        if cell != ALL or len(workloads) != 1:
            return {}, []
        workload_of[number] = workloads.pop()
    if len(set(workload_of.values())) == 1:  # that is the mix itself
        return {}, []
    return (
        {(number, workload): dealt[number, ALL] for number, workload in workload_of.items()},
        [replace(each, cell=workload_of[each.number]) for each in rounds],
    )


def _rows(
    load: Load, cell: str, calls: Dealt, rounds: Sequence[Round], settings: UsualSettings
) -> list[dict[str, Any]]:
    """Every candidate's row of one cell."""
    in_cell: dict[str, dict[int, Round]] = defaultdict(dict)
    for each in rounds:
        if each.cell == cell:
            in_cell[each.candidate][each.number] = each
    timings = {
        name: {number: timing(each.answers) for number, each in by_number.items()}
        for name, by_number in in_cell.items()
    }
    none = timings.get(NONE, {})
    sent = [calls[number, cell] for number in sorted(none)]
    adaspec = next((each.name for each in load.candidates if each.method == ADASPEC), None)
    rows = []
    for candidate in load.candidates:
        name = candidate.name
        if name not in timings:
            continue
        expected = settings.expected(candidate.spec, cell, load.concurrency, sent)
        figures = row(timings[name], none)
        speedup = figures["speedup"]
        ours = timings.get(adaspec, {}) if adaspec is not None and name != adaspec else {}
        rows.append(
            {
                "workload": cell,
                "concurrency": load.concurrency,
                "method": candidate.method,
                "setting": candidate.setting,
                "runner_up": candidate.runner_up,
                **figures,
                **paired_ratio(ours, timings[name], "adaspec_over"),
                "machine": slowness(in_cell[name], in_cell.get(NONE, {})),
                **acceptance(in_cell[name].values()),
                "expected_speedup": expected,
                "expected_error": expected / speedup - 1 if expected and speedup else None,
            }
        )
    return rows


def row(timings: Mapping[int, Timing], none: Mapping[int, Timing]) -> dict[str, Any]:
    """The figures of one candidate in one cell, over all rounds; ratios are of the same rounds."""
    seconds = sum(each.seconds for each in timings.values())
    tokens = sum(each.tokens for each in timings.values())
    first, gaps, per_token = (
        _quantiles([value for each in timings.values() for value in getattr(each, name)])
        for name in ("first_s", "gap_s", "token_s")
    )
    return {
        "rounds": len(timings),
        "tokens_per_s": tokens / seconds if seconds > 0 else float("nan"),
        **paired_ratio(timings, none, "speedup"),
        "ttft_s": first,
        "inter_token_s": gaps,
        "token_s": per_token,
    }


def slowness(rounds: Mapping[int, Round], none: Mapping[int, Round]) -> float | None:
    """How much slower the machine was than when no speculation ran the same rounds."""
    pairs = [
        (each.memory_read_s, none[number].memory_read_s)
        for number, each in rounds.items()
        if number in none
    ]
    ratios = [read_s / none_s for read_s, none_s in pairs if read_s and none_s]
    return float(np.mean(ratios)) if ratios else None


def unsteady(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A note for every table whose methods did not find the machine equally fast."""
    slownesses: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["machine"] is not None:
            slownesses[row["concurrency"], row["workload"]].append(row["machine"])
    for (concurrency, cell), values in slownesses.items():
        uneven = max(values) / min(values)
        if uneven > MAX_UNEVEN:
            yield (
                f"{concurrency} at once, {cell}: the machine itself was up to {uneven - 1:.0%} "
                "slower for one method than for another: smaller leads are noise, and more "
                "--rounds would even it out"
            )


def headline(rows: Sequence[dict[str, Any]], concurrency: int, cell: str) -> dict[str, Any]:
    """adaspec against the best static setting that was run, and how right the evaluator was.

    Both ratios are of the rounds that adaspec and the other ran, as in their rows.
    """
    rows = [row for row in rows if (row["concurrency"], row["workload"]) == (concurrency, cell)]
    static = [row for row in rows if row["method"] in STATIC_METHODS]
    best = min(static, key=_behind, default=None)
    none = next((row for row in static if row["method"] == NONE), None)
    errors = [row["expected_error"] for row in rows if row["method"] != NONE]
    known = [error for error in errors if error is not None]
    return {
        "workload": cell,
        "concurrency": concurrency,
        "best_static": None if best is None else f"{best['method']} {best['setting']}".strip(),
        **{
            f"adaspec_over_best_static{what}": best and best[f"adaspec_over{what}"]
            for what in ("", "_range", "_interval")
        },
        "adaspec_over_none": none and none["adaspec_over"],
        "expected_right": sum(abs(error) <= RIGHT_WITHIN for error in known),
        "expected_known": len(known),
    }


def _behind(row: Mapping[str, Any]) -> tuple[float, float]:
    """By how much a setting is behind adaspec, or behind the others where adaspec did not run."""
    over, speedup = row["adaspec_over"], row["speedup"]
    return (over if over is not None else float("inf"), -(speedup or 0.0))


def complaint(report: Mapping[str, Any]) -> str | None:
    """The outputs that differ by more than a near-tie, in one line; None where there are none."""
    wrong = [each for each in report["differences"] if not each["near_tie"]]
    if not wrong:
        return None
    first, margin = wrong[0], wrong[0]["margin"]
    apart = "not among the target's best" if margin is None else f"{margin:.2g} apart"
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return (
        f"outputs differ beyond near-ties at concurrency {first['concurrency']}: "
        f"{first['method']}, request {first['workload']}/{first['id']}: token {first['position']} "
        f"is {first['found']}, without speculation {first['expected']} ({apart}){more}"
    )


def acceptance(rounds: Iterable[Round]) -> dict[str, float | None]:
    """Drafted and accepted per request and step, a step being a piece of streamed output.

    vLLM's own count of accepted tokens goes beyond an output's end, so only its ratio to the
    drafted ones, `acceptance`, is taken from there.
    """
    rounds = list(rounds)
    # The first piece is the prefill's, which verifies nothing.
    counts = [count for each in rounds for answer in each.answers for count in answer.counts[1:]]
    drafted = sum(each.drafted for each in rounds)
    return {
        "accepted_per_step": sum(counts) / len(counts) - 1 if counts else None,
        "drafted_per_step": drafted / len(counts) if counts else None,
        "acceptance": sum(each.accepted for each in rounds) / drafted if drafted else None,
    }


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "p95": None}
    return {"median": float(np.median(values)), "p95": float(np.quantile(values, 0.95))}

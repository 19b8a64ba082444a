"""A benchmark's report: rows, headlines, and every output that differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
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
    Candidate,
)
from adaspec.bench.engine.prompts import Dealt
from adaspec.bench.engine.rounds import Round
from adaspec.bench.engine.settings import UsualSettings
from adaspec.evaluate.options import ALL

SCHEMA = 1
STATIC_METHODS = (NONE, NGRAM, NEURAL, STATIC)
"""One setting for every request and step."""
CLOSE = 0.10
"""An expected speed-up within this of the measured one counts as right."""
STEADY = 1.05
"""A machine that is no more uneven than this between methods is not mentioned."""


@dataclass(frozen=True, slots=True)
class Load:
    """What ran at one concurrency."""

    concurrency: int
    candidates: list[Candidate]
    dealt: Dealt
    """What was sent in each round and cell."""
    rounds: list[Round]
    differences: list[Difference]
    repeated: bool
    """Whether prompts had to come more than once."""


def document(
    options: BenchmarkOptions,
    loads: Sequence[Load],
    cells: Sequence[str],
    settings: UsualSettings,
    absent: Mapping[str, str],
    left_out: int,
    served_on: Mapping[str, str],
) -> dict[str, Any]:
    """What `adaspec bench engine --json` prints; `served_on` is the hardware and vLLM's version."""
    rows: list[dict[str, Any]] = []
    headlines: list[dict[str, Any]] = []
    for load in loads:
        dealt, again = rounds_by_workload(load.dealt, load.rounds)
        whole = replace(load, dealt={**load.dealt, **dealt}, rounds=[*load.rounds, *again])
        for cell in (*cells, *sorted({cell for _, cell in dealt})):
            rows += _rows(whole, cell, settings)
            headlines.append(headline(rows, load.concurrency, cell))
    differences = [
        {"concurrency": load.concurrency, **asdict(difference)}
        for load in loads
        for difference in load.differences
    ]
    notes = [
        f"concurrency {load.concurrency}: there were too few prompts, some came more than once, "
        "and a method that remembers answers (suffix) may have gained by it"
        for load in loads
        if load.repeated
    ]
    notes += unsteady(rows)
    if left_out:
        notes.append(f"{left_out:,} prompts that a policy was trained on were left out")
    if not options.traces:
        notes.append("no --traces: settings are usual ones, not the best for this load")
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
        "notes": notes,
    }


def rounds_by_workload(dealt: Dealt, rounds: Sequence[Round]) -> tuple[Dealt, list[Round]]:
    """The mix's rounds as rounds of a workload; none where a round is of several workloads.

    `rounds` are all of one load. One request at a time, a round may be a single request.
    """
    own: dict[int, str] = {}
    for (number, cell), calls in dealt.items():
        workloads = {call.workload for call in calls}
        if cell != ALL or len(workloads) != 1:
            return {}, []
        own[number] = workloads.pop()
    if len(set(own.values())) == 1:  # that is the mix itself
        return {}, []
    again = [replace(each, cell=own[each.number]) for each in rounds if each.number in own]
    return {(number, cell): dealt[number, ALL] for number, cell in own.items()}, again


def _rows(load: Load, cell: str, settings: UsualSettings) -> list[dict[str, Any]]:
    """Every candidate's row of one cell."""
    here: dict[str, dict[int, Round]] = defaultdict(dict)
    for each in load.rounds:
        if each.cell == cell:
            here[each.candidate][each.number] = each
    timings = {
        name: {number: timing(each.answers) for number, each in rounds.items()}
        for name, rounds in here.items()
    }
    none = timings.get(NONE, {})
    calls = [load.dealt[number, cell] for number in sorted(none)]
    ours = next((each.name for each in load.candidates if each.method == ADASPEC), None)
    rows = []
    for candidate in load.candidates:
        name = candidate.name
        if name not in timings:
            continue
        expected = settings.expected(candidate.spec, cell, load.concurrency, calls)
        figures = row(timings[name], none)
        speedup = figures["speedup"]
        lead = None
        if ours is not None and name != ours:
            lead = paired_ratio(timings.get(ours, {}), timings[name])
        rows.append(
            {
                "workload": cell,
                "concurrency": load.concurrency,
                "method": candidate.method,
                "setting": candidate.setting,
                "runner_up": candidate.runner_up,
                **figures,
                "adaspec_over": lead and lead.ratio,
                "adaspec_over_range": lead and lead.range,
                "adaspec_over_interval": lead and lead.interval,
                "machine": slowness(here[name], here.get(NONE, {})),
                **acceptance(here[name].values()),
                "expected_speedup": expected,
                "expected_error": expected / speedup - 1 if expected and speedup else None,
            }
        )
    return rows


def row(timings: Mapping[int, Timing], none: Mapping[int, Timing]) -> dict[str, Any]:
    """The figures of one candidate in one cell, over all rounds; ratios are of the same rounds."""
    found = paired_ratio(timings, none)
    seconds = sum(each.seconds for each in timings.values())
    tokens = sum(each.tokens for each in timings.values())
    first, gaps, per_token = (
        _quantiles([value for each in timings.values() for value in getattr(each, name)])
        for name in ("first_s", "gap_s", "token_s")
    )
    return {
        "rounds": len(timings),
        "tokens_per_s": tokens / seconds if seconds > 0 else float("nan"),
        "speedup": found.ratio if found else None,
        "speedup_range": list(found.range) if found else None,
        "speedup_interval": list(found.interval) if found and found.interval else None,
        "ttft_s": first,
        "inter_token_s": gaps,
        "token_s": per_token,
    }


def slowness(mine: Mapping[int, Round], none: Mapping[int, Round]) -> float | None:
    """How much slower the machine was than when no speculation ran the same rounds."""
    pairs = [
        (each.memory_read_s, none[number].memory_read_s)
        for number, each in mine.items()
        if number in none
    ]
    ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
    return float(np.mean(ratios)) if ratios else None


def unsteady(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A note for every table whose methods did not find the machine equally fast."""
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["machine"] is not None:
            found[row["concurrency"], row["workload"]].append(row["machine"])
    for (concurrency, cell), values in found.items():
        uneven = max(values) / min(values)
        if uneven > STEADY:
            yield (
                f"{concurrency} at once, {cell}: the machine itself was up to {uneven - 1:.0%} "
                "slower for one method than for another: smaller leads are noise, and more "
                "--rounds would even it out"
            )


def headline(rows: Sequence[dict[str, Any]], concurrency: int, cell: str) -> dict[str, Any]:
    """adaspec against the best static setting that was run, and how right the evaluator was.

    Both ratios are of the rounds that adaspec and the other ran, as in their rows.
    """
    here = [row for row in rows if (row["concurrency"], row["workload"]) == (concurrency, cell)]
    static = [row for row in here if row["method"] in STATIC_METHODS]
    best = min(static, key=_behind, default=None)
    none = next((row for row in static if row["method"] == NONE), None)
    errors = [row["expected_error"] for row in here if row["method"] != NONE]
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
        "expected_right": sum(abs(error) <= CLOSE for error in known),
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
    first = Difference(**{each.name: wrong[0][each.name] for each in fields(Difference)})
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return (
        f"outputs differ beyond near-ties at concurrency {wrong[0]['concurrency']}: {first}{more}"
    )


def acceptance(rounds: Iterable[Round]) -> dict[str, float | None]:
    """Drafted and accepted per request and step, a step being a piece of streamed output.

    vLLM's own count of accepted tokens goes beyond an output's end, so only its ratio to the
    drafted ones, `acceptance`, is taken from there.
    """
    found = list(rounds)
    # The first piece is the prefill's, which verifies nothing.
    counts = [count for each in found for answer in each.answers for count in answer.counts[1:]]
    drafted = sum(each.drafted for each in found)
    return {
        "accepted_per_step": sum(counts) / len(counts) - 1 if counts else None,
        "drafted_per_step": drafted / len(counts) if counts else None,
        "acceptance": sum(each.accepted for each in found) / drafted if drafted else None,
    }


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "p95": None}
    return {"median": float(np.median(values)), "p95": float(np.quantile(values, 0.95))}

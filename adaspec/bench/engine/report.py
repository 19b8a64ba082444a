"""What a benchmark says: rows, headlines, and every output that differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adaspec import __version__
from adaspec.bench.engine import entrants
from adaspec.bench.engine.agreement import Difference
from adaspec.bench.engine.apart import tell_apart
from adaspec.bench.engine.entrants import Entrant
from adaspec.bench.engine.ledger import Entry
from adaspec.bench.engine.paired import paired_ratio
from adaspec.bench.engine.settings import Settings
from adaspec.bench.engine.task import Task
from adaspec.bench.engine.traffic import Call, Timing, timing

SCHEMA = 1
STATIC_METHODS = (entrants.NONE, entrants.NGRAM, entrants.NEURAL, entrants.STATIC)
"""One setting for every request and step."""
CLOSE = 0.10
"""An expected speed-up within this of the measured one counts as right."""
STEADY = 1.05
"""A machine that is no more uneven than this between methods goes without a word."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is known of a load beside its rounds."""

    concurrency: int
    lineup: list[Entrant]
    dealt: Mapping[tuple[int, str], Sequence[Call]]
    """What was sent in each round and cell."""
    differences: list[Difference]
    repeated: bool
    """Whether prompts had to come more than once."""


def document(
    task: Task,
    entries: Sequence[Entry],
    comparisons: Sequence[Comparison],
    cells: Sequence[str],
    settings: Settings,
    absent: Mapping[str, str],
    left_out: int,
    served_on: Mapping[str, str],
) -> dict[str, Any]:
    """What `adaspec bench engine --json` prints; `served_on` is the hardware and vLLM's version."""
    rows: list[dict[str, Any]] = []
    headlines: list[dict[str, Any]] = []
    for comparison in comparisons:
        here = [each for each in entries if each.concurrency == comparison.concurrency]
        dealt, again = tell_apart(comparison.dealt, here)
        whole = replace(comparison, dealt={**comparison.dealt, **dealt})
        for cell in (*cells, *sorted({cell for _, cell in dealt})):
            rows += _rows(whole, cell, [*here, *again], settings)
            headlines.append(headline(rows, comparison.concurrency, cell))
    differences = [
        {"concurrency": each.concurrency, **difference.document()}
        for each in comparisons
        for difference in each.differences
    ]
    notes = [
        f"concurrency {each.concurrency}: there were too few prompts, some came more than once, "
        "and a method that remembers answers (suffix) may have gained by it"
        for each in comparisons
        if each.repeated
    ]
    notes += unsteady(rows)
    if left_out:
        notes.append(f"{left_out:,} prompts that a policy was trained on were left out")
    if not task.traces:
        notes.append("no --traces: settings are usual ones, not the best for this load")
    return {
        "schema": SCHEMA,
        "adaspec": __version__,
        "model": task.model,
        "drafter": task.draft,
        **served_on,
        "engine": dict(task.engine),
        "cost": task.cost,
        "rounds": task.rounds,
        "max_tokens": task.max_tokens,
        "rows": rows,
        "absent": dict(absent),
        "headline": headlines,
        "differences": differences,
        "outputs_equal": all(each["near_tie"] for each in differences),
        "notes": notes,
    }


def _rows(
    comparison: Comparison, cell: str, entries: Sequence[Entry], settings: Settings
) -> list[dict[str, Any]]:
    """Every entrant's row of one cell; `entries` are all of that load."""
    here: dict[str, dict[int, Entry]] = defaultdict(dict)
    for entry in entries:
        if entry.workload == cell:
            here[entry.entrant][entry.round] = entry
    timings = {
        name: {turn: timing(entry.answers) for turn, entry in rounds.items()}
        for name, rounds in here.items()
    }
    none = timings.get(entrants.NONE, {})
    ours = next((e.name for e in comparison.lineup if e.method == entrants.ADASPEC), None)
    rows = []
    for entrant in comparison.lineup:
        if entrant.name not in timings:
            continue
        expected = settings.expected(
            entrant.spec,
            cell,
            comparison.concurrency,
            [comparison.dealt[turn, cell] for turn in sorted(none)],
        )
        found = row(timings[entrant.name], none)
        lead = paired_ratio(timings.get(ours or "", {}), timings[entrant.name])
        paces = (here[entrant.name], here.get(entrants.NONE, {}))
        speedup = found["speedup"]
        rows.append(
            {
                "workload": cell,
                "concurrency": comparison.concurrency,
                "method": entrant.method,
                "setting": entrant.setting,
                "runner_up": entrant.runner_up,
                **found,
                "adaspec_over": lead.ratio if lead and entrant.name != ours else None,
                "adaspec_over_range": lead.range if lead and entrant.name != ours else None,
                "adaspec_over_interval": lead.interval if lead and entrant.name != ours else None,
                "machine": slowness(*paces),
                **acceptance(here[entrant.name].values()),
                "expected_speedup": expected,
                "expected_error": expected / speedup - 1 if expected and speedup else None,
            }
        )
    return rows


def row(timings: Mapping[int, Timing], none: Mapping[int, Timing]) -> dict[str, Any]:
    """The figures of one entrant in one cell, over all rounds; ratios are of the same rounds."""
    found = paired_ratio(timings, none)
    first, gaps, per_token = (
        np.array([each for one in timings.values() for each in getattr(one, name)])
        for name in ("first_s", "gap_s", "token_s")
    )
    return {
        "rounds": len(timings),
        "tokens_per_s": _rate(list(timings.values())),
        "speedup": found.ratio if found else None,
        "speedup_range": list(found.range) if found else None,
        "speedup_interval": list(found.interval) if found and found.interval else None,
        "ttft_s": _quantiles(first),
        "inter_token_s": _quantiles(gaps),
        "token_s": _quantiles(per_token),
    }


def slowness(mine: Mapping[int, Entry], none: Mapping[int, Entry]) -> float | None:
    """How much slower the machine itself was than at no speculation's visits of the same rounds."""
    pairs = [(entry.pace_s, none[turn].pace_s) for turn, entry in mine.items() if turn in none]
    ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
    return float(np.mean(ratios)) if ratios else None


def unsteady(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A note for every table whose methods did not find the machine equally fast."""
    paces: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["machine"] is not None:
            paces[row["concurrency"], row["workload"]].append(row["machine"])
    for (concurrency, cell), found in paces.items():
        uneven = max(found) / min(found)
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
    best = min(static, key=_weakness, default=None)
    none = next((row for row in static if row["method"] == entrants.NONE), None)
    errors = [row["expected_error"] for row in here if row["method"] != entrants.NONE]
    known = [error for error in errors if error is not None]
    return {
        "workload": cell,
        "concurrency": concurrency,
        "best_static": None if best is None else f"{best['method']} {best['setting']}".strip(),
        "adaspec_over_best_static": best["adaspec_over"] if best else None,
        "adaspec_over_best_static_range": best["adaspec_over_range"] if best else None,
        "adaspec_over_best_static_interval": best["adaspec_over_interval"] if best else None,
        "adaspec_over_none": none["adaspec_over"] if none else None,
        "expected_right": sum(abs(error) <= CLOSE for error in known),
        "expected_known": len(known),
    }


def _weakness(row: Mapping[str, Any]) -> tuple[float, float]:
    """How far adaspec, or where it has not run no speculation, is ahead of a setting."""
    over, speedup = row["adaspec_over"], row["speedup"]
    return (over if over is not None else float("inf"), -(speedup or 0.0))


def complaint(report: Mapping[str, Any]) -> str | None:
    """The outputs that differ by more than a near-tie, in one line; None where there are none."""
    wrong = [each for each in report["differences"] if not each["near_tie"]]
    if not wrong:
        return None
    named = {key: wrong[0][key] for key in Difference.__dataclass_fields__}
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return (
        f"outputs differ beyond near-ties at concurrency {wrong[0]['concurrency']}: "
        f"{Difference(**named)}{more}"
    )


def acceptance(entries: Iterable[Entry]) -> dict[str, float | None]:
    """Drafted and accepted per request and step, a step being a piece of streamed output.

    vLLM's own count of accepted tokens goes beyond an output's end, so only its ratio to the
    drafted ones, `acceptance`, is taken from there.
    """
    found = list(entries)
    # The first piece is the prefill's, which verifies nothing.
    counts = [count for entry in found for answer in entry.answers for count in answer.counts[1:]]
    drafted = sum(entry.drafted for entry in found)
    return {
        "accepted_per_step": sum(counts) / len(counts) - 1 if counts else None,
        "drafted_per_step": drafted / len(counts) if counts else None,
        "acceptance": sum(entry.accepted for entry in found) / drafted if drafted else None,
    }


def _rate(timings: Sequence[Timing]) -> float:
    seconds = sum(each.seconds for each in timings)
    return sum(each.tokens for each in timings) / seconds if seconds > 0 else float("nan")


def _quantiles(values: Any) -> dict[str, float | None]:
    if not len(values):
        return {"median": None, "p95": None}
    return {"median": float(np.median(values)), "p95": float(np.quantile(values, 0.95))}

"""A benchmark's report in tables and sentences, the same on the screen and on its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from adaspec.evaluate.render.table import Column, Row, Table, Text, code, theirs

COLUMNS = (
    Column("method", left=True),
    Column("tok/s"),
    Column("over none"),
    Column("spread"),
    Column("adaspec over it"),
    Column("expected", priority=5),
    Column("TTFT ms", priority=3),
    Column("ITL ms", priority=6),
    Column("p95", priority=2),
    Column("accepted", priority=4),
    Column("machine", priority=1),
)


def rounds(report: Mapping[str, Any]) -> str:
    """How often methods took turns."""
    count = report["rounds"]
    return "1 round" if count == 1 else f"{count} interleaved rounds"


def span(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """How far the speed-up goes: its 95% interval, or the worst and the best of few rounds."""
    found = row["speedup_interval"] or row["speedup_range"]
    return None if found is None else (found[0], found[1])


def tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """A table per load and workload, of a row per method and setting."""
    tables: dict[tuple[int, str], list[Row]] = {}
    for row in report["rows"]:
        tables.setdefault((row["concurrency"], row["workload"]), []).append(Row(_words(row)))
    for (concurrency, workload), rows in tables.items():
        yield Table([f"{concurrency} at once, ", theirs(workload)], COLUMNS, [rows])


def sentences(report: Mapping[str, Any]) -> Iterator[str]:
    """What stands below the tables."""
    for each in report["headline"]:
        if each["adaspec_over_best_static"] is None:
            continue
        right = f"{each['expected_right']} of {each['expected_known']}"
        interval, ends = (
            each[f"adaspec_over_best_static_{what}"] for what in ("interval", "range")
        )
        sure = f" ({ends[0]:.3f} .. {ends[1]:.3f} by round)" if ends else ""
        if interval:
            sure = f" (95%: {interval[0]:.3f} .. {interval[1]:.3f})"
        yield (
            f"{each['concurrency']} at once, {each['workload']}: adaspec is "
            f"{each['adaspec_over_best_static']:.3f}x{sure} {each['best_static']}, the best static "
            f"setting, and {each['adaspec_over_none']:.3f}x no speculation; the evaluator was "
            f"within 10% of {right} methods"
        )
    for name, why in report["absent"].items():
        yield f"not run: {name}: {why}"
    for each in report["differences"]:
        if each["near_tie"]:
            yield (
                f"near-tie at {each['concurrency']} at once: {each['method']}, request "
                f"{each['workload']}/{each['id']}, token {each['position']}: "
                f"{each['margin']:.2g} apart"
            )
    for note in report["notes"]:
        yield f"note: {note}"


def _words(row: Mapping[str, Any]) -> tuple[Text, ...]:
    ends = span(row)
    name = f"{row['method']} {row['setting']}".strip()
    return (
        code(name + (" (runner-up)" if row["runner_up"] else "")),
        _shown(row["tokens_per_s"], ".1f"),
        _shown(row["speedup"], ".2f", "x"),
        "-" if ends is None else f"{ends[0]:.2f}..{ends[1]:.2f}",
        _shown(row["adaspec_over"], ".2f", "x"),
        _shown(row["expected_speedup"], ".2f", "x"),
        _milliseconds(row["ttft_s"]["median"]),
        _milliseconds(row["inter_token_s"]["median"]),
        _milliseconds(row["inter_token_s"]["p95"]),
        _shown(row["accepted_per_step"], ".2f"),
        _shown(row["machine"], ".2f"),
    )


def _shown(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f}"

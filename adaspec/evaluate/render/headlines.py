"""The terminal's tables of a named policy: lifts over every opponent, latency; whole columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from adaspec.evaluate.render.frame import column_table, print_titled
from adaspec.evaluate.render.results import ALL, LIFTS, OPPONENT, Interval, Results, number
from adaspec.evaluate.render.wording import (
    NULL,
    SAME,
    batched,
    marked,
    milliseconds,
    percent,
    plain,
    signed_percent,
    signed_range,
    summary,
    times,
)

_GAP = 2
"""Characters between two columns."""
_DROPPED_FIRST = (
    "hybrid:best",
    "deciding",
    "static:one",
    "adaptive:best",
    "fixed:best",
    "gap closed",
    "static:tuned",
)
"""Columns in the order in which they go where the terminal is too narrow for all."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    head: str
    cells: list[Text]
    left: bool = False
    bold: bool = False

    @property
    def width(self) -> int:
        heads = (len(line) for line in self.head.split("\n"))
        return max(*heads, *(len(cell) for cell in self.cells), 1)

    @property
    def is_null(self) -> bool:
        return all(cell.plain == NULL for cell in self.cells)


def print_headline(results: Results, policy: str, console: Console) -> None:
    """Print a policy's lifts, one row per concurrency: no number is ever cut.

    Columns that hold nothing are not shown; where the width does not suffice, whole columns go.
    """
    workload = results.main
    assert workload is not None
    columns, dropped = _fitting(_columns(results, workload, policy), console.width)
    table = column_table()
    for column in columns:
        table.add_column(
            column.head,
            justify="left" if column.left else "right",
            style="bold" if column.bold else "",
            no_wrap=True,
        )
    for at in range(len(results.concurrencies)):
        table.add_row(*(column.cells[at] for column in columns))
    title = f"{marked(results, policy)} on {place_of(results, workload)}: lift over each opponent"
    print_titled(batched(results, title), table, console, summary(results, policy))
    if dropped:
        many = f"{dropped} column{'s' * (dropped != 1)} left out"
        console.print(Text(f"{many}: widen the terminal, or see report.md", style="dim"))


def print_latency(results: Results, console: Console) -> None:
    """Print milliseconds per output token, median and 95th percentile, of what was named."""
    workload = results.main
    assert workload is not None
    names = [n for n in results.order() if n in ("none", OPPONENT) or n in results.policies]
    points = [(c, results.latency(workload, c, "none", "p95")) for c in results.concurrencies]
    table = column_table()
    table.add_column("policy", overflow="fold")
    table.add_column("", no_wrap=True)
    for concurrency in results.concurrencies:
        table.add_column(str(concurrency), justify="right", no_wrap=True)
    for name in names:
        for key, word in (("median", "median"), ("p95", "95th pct")):
            values = [results.latency(workload, c, name, key) for c in results.concurrencies]
            if all(value is None for value in values):
                continue
            cells = [
                Text(
                    milliseconds(value),
                    style="red"
                    if key == "p95" and value is not None and limit is not None and value > limit
                    else "",
                )
                for value, (_, limit) in zip(values, points, strict=True)
            ]
            table.add_row(Text(marked(results, name) if key == "median" else ""), word, *cells)
    if table.row_count:
        title = "milliseconds per output token over requests, by concurrency"
        note = "red: the slowest requests wait longer than with none" if len(names) > 1 else ""
        print_titled(batched(results, title), table, console, note)


def lift_text(value: float | None, found: Interval | None) -> Text:
    """A lift, green or red where its whole interval lies on one side of 0."""
    style = ""
    if found is not None and found[0] > 0:
        style = "green"
    elif found is not None and found[1] < 0:
        style = "red"
    return Text(signed_percent(value), style=style)


def place_of(results: Results, workload: str) -> str:
    """A workload as titles name it."""
    if workload != ALL:
        return plain(workload)
    names = [plain(name) for name in results.workloads if name != ALL]
    return f"{names[0]}" if len(names) == 1 else "all workloads, mixed"


def _columns(results: Results, workload: str, policy: str) -> list[_Column]:
    loads = results.concurrencies
    entries = [results.headline(workload, c, policy) for c in loads]
    same = [results.is_winner(workload, c, policy) for c in loads]
    spreads = [results.lift_interval(workload, c, policy) for c in loads]
    lifts = [results.lift(workload, c, policy) for c in loads]
    speeds = [results.value(workload, c, policy, "speedup") for c in loads]
    pairs = list(zip(same, lifts, spreads, strict=True))
    found = [
        _Column("conc.", "conc.", [Text(str(c)) for c in loads]),
        _Column("speedup", "speedup", [Text(times(speed)) for speed in speeds]),
        _Column(
            OPPONENT,
            "static\n:best",
            [Text("=") if won else lift_text(lift, spread) for won, lift, spread in pairs],
            bold=True,
        ),
        _Column(
            "interval",
            "95% interval",
            [
                Text(SAME.removeprefix("= ") if won else signed_range(spread) or NULL)
                for won, _, spread in pairs
            ],
            left=True,
        ),
    ]
    for opponent, key in LIFTS.items():
        if opponent != OPPONENT:
            cells = [Text(signed_percent(number(entry.get(key)))) for entry in entries]
            found.append(_Column(opponent, opponent.replace(":", "\n:"), cells))
    gaps = [Text(percent(number(entry.get("gap_closed")))) for entry in entries]
    shares = [Text(percent(number(entry.get("decide_share_of_step")), 1)) for entry in entries]
    found.append(_Column("gap closed", "gap\nclosed", gaps))
    found.append(_Column("deciding", "decid-\ning", shares))
    return [each for each in found if each.name not in _DROPPED_FIRST or not each.is_null]


def _fitting(columns: Sequence[_Column], width: int) -> tuple[list[_Column], int]:
    """The columns that fit into `width` and how many had to go."""
    kept = list(columns)
    for name in _DROPPED_FIRST:
        if sum(each.width + _GAP for each in kept) <= width:
            break
        kept = [each for each in kept if each.name != name]
    return kept, len(columns) - len(kept)

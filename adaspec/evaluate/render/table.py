"""A report on the terminal: what was run, the headline, speedups, worst lifts; 100 columns."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from adaspec.evaluate.render.results import (
    ALL,
    BASELINES,
    LIFTS,
    OPPONENT,
    ORACLES,
    Interval,
    Report,
    Results,
    number,
)
from adaspec.evaluate.render.wording import (
    EDGE,
    NULL,
    SEEN,
    at_concurrencies,
    facts,
    marked,
    percent,
    plain,
    signed_percent,
    signed_range,
    times,
    winner,
)

_SPECS_BESIDE = 5
"""With more concurrencies than this, winning specs no longer fit beside the speedups."""
_NAME_WIDTH = 34
"""Characters of a name before it folds."""


def print_report(report: Report, console: Console) -> None:
    """Print what was run, the headline per policy, the speedups and the lifts per workload."""
    results = Results(report)
    _print_facts(report, console)
    if results.main is None:
        console.print("no rows: nothing was evaluated", style="yellow")
        return
    if results.has_headline:
        for policy in results.policies:
            _print_headline(results, policy, console)
    if results.has_all or len(results.workloads) == 1:
        _print_speedups(results, results.main, console)
    else:
        _print_by_workload(results, console)
    if results.has_headline and results.alone:
        for policy in results.policies:
            _print_lifts_alone(results, policy, console)
    _print_legend(results, console)


def _print_facts(report: Report, console: Console) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts(report):
        grid.add_row(label, Text(text, style="yellow" if label == "note" else ""))
    console.print(grid)


def _print_headline(results: Results, policy: str, console: Console) -> None:
    workload = results.main
    assert workload is not None
    points = [
        (concurrency, results.headline(workload, concurrency, policy))
        for concurrency in results.concurrencies
    ]
    table = _table()
    table.add_column("conc.", justify="right")
    table.add_column("speedup", justify="right", no_wrap=True)
    table.add_column("static\n:best", justify="right", style="bold", no_wrap=True)
    table.add_column("95% interval", justify="left", no_wrap=True)
    for opponent in [name for name in LIFTS if name != OPPONENT]:
        table.add_column(opponent.replace(":", "\n:"), justify="right", no_wrap=True)
    table.add_column("gap\nclosed", justify="right", no_wrap=True)
    table.add_column("…to\ncombine", justify="right", no_wrap=True)
    charged = any(number(entry.get("decide_share_of_step")) is not None for _, entry in points)
    if charged:
        table.add_column("decid-\ning", justify="right", no_wrap=True)
    for concurrency, entry in points:
        found = results.lift_interval(workload, concurrency, policy)
        table.add_row(
            str(concurrency),
            times(results.value(workload, concurrency, policy, "speedup")),
            _lift(results.lift(workload, concurrency, policy), found),
            signed_range(found) or NULL,
            *(
                signed_percent(number(entry.get(key)))
                for name, key in LIFTS.items()
                if name != OPPONENT
            ),
            percent(number(entry.get("gap_closed"))),
            percent(number(entry.get("gap_closed_combine"))),
            *([percent(number(entry.get("decide_share_of_step")), 1)] if charged else []),
        )
    _print_titled(
        f"{marked(results, policy)} on {_place(results, workload)}: "
        "lift over each opponent, gap closed to the oracles",
        table,
        console,
    )


def _print_speedups(results: Results, workload: str, console: Console) -> None:
    many = len(results.concurrencies) > _SPECS_BESIDE
    table = _table()
    table.add_column("policy", overflow="fold", max_width=_NAME_WIDTH)
    for concurrency in results.concurrencies:
        table.add_column(str(concurrency), justify="right")
    if not many:
        table.add_column("won by (at concurrency)", overflow="fold")
    for policy in results.order():
        cells = [
            times(results.value(workload, concurrency, policy, "speedup"))
            for concurrency in results.concurrencies
        ]
        if not many:
            cells.append(_winners(results, workload, policy))
        style = _row_style(results, policy)
        table.add_row(Text(marked(results, policy)), *cells, style=style)
        if policy in _last_of_groups(results):
            table.add_section()
    title = f"speedup over none on {_place(results, workload)}, by concurrency"
    _print_titled(title, table, console)
    if many:
        for policy in (OPPONENT, *BASELINES):
            won = _winners(results, workload, policy)
            if won:
                console.print(Text(f" {policy}  {won}".replace("\n", "; ")), style="dim")


def _print_by_workload(results: Results, console: Console) -> None:
    table = _table()
    table.add_column("workload", overflow="fold", max_width=24)
    table.add_column("policy", overflow="fold", max_width=_NAME_WIDTH)
    for concurrency in results.concurrencies:
        table.add_column(str(concurrency), justify="right")
    for workload in results.workloads:
        for index, policy in enumerate(results.order()):
            table.add_row(
                Text(plain(workload) if index == 0 else ""),
                Text(marked(results, policy)),
                *(
                    times(results.value(workload, concurrency, policy, "speedup"))
                    for concurrency in results.concurrencies
                ),
            )
        table.add_section()
    _print_titled("speedup over none by workload and concurrency", table, console)


def _print_lifts_alone(results: Results, policy: str, console: Console) -> None:
    cells = {name: _lifts_alone(results, name, policy, True) for name in results.alone}
    widths = [
        max(len(row[at]) for row in cells.values()) for at in range(len(results.concurrencies))
    ]
    name_width = min(max(len(plain(name)) for name in cells), _NAME_WIDTH)
    if name_width + sum(widths) + len(widths) > console.width:
        cells = {name: _lifts_alone(results, name, policy, False) for name in results.alone}
    table = _table()
    table.add_column("workload", overflow="fold", max_width=_NAME_WIDTH)
    for concurrency in results.concurrencies:
        table.add_column(str(concurrency), justify="right", no_wrap=True)
    for name, row in cells.items():
        table.add_row(Text(plain(name)), *row)
    if results.has_all:
        table.add_section()
        table.add_row(
            Text("worst", style="dim"), *(_worst(results, c, policy) for c in results.concurrencies)
        )
    _print_titled(
        f"{marked(results, policy)}: lift over the static:best of each workload alone, "
        "worst underlined",
        table,
        console,
    )


def _lifts_alone(results: Results, workload: str, policy: str, intervals: bool) -> list[Text]:
    row = []
    for concurrency in results.concurrencies:
        lift = results.lift(workload, concurrency, policy)
        found = results.lift_interval(workload, concurrency, policy)
        others = [results.lift(name, concurrency, policy) for name in results.alone]
        known = [each for each in others if each is not None]
        text = _lift(lift, found)
        if lift is not None and len(known) > 1 and lift == min(known):
            text.stylize("underline")
        if found is not None and intervals:
            text.append(" " + signed_range(found), style="dim not underline")
        row.append(text)
    return row


def _worst(results: Results, concurrency: int, policy: str) -> Text:
    entry = results.headline(ALL, concurrency, policy)
    return _lift(number(entry.get("worst_workload_lift")), None)


def _print_legend(results: Results, console: Console) -> None:
    lines = []
    if any(
        found.edge
        for workload in results.workloads
        for policy in (OPPONENT, *BASELINES)
        for found in results.winners(workload, policy)
    ):
        lines.append(f"{EDGE} the winner lies on the edge of its grid, in the parameters named")
    if any(results.seen_in_training(policy) for policy in results.policies):
        lines.append(f"{SEEN} its model trained on requests of this evaluation: not held out")
    if results.has_headline:
        lines.append(
            "...:best is the best setting in hindsight at each concurrency; gap closed = "
            "(policy - fixed:best) / (oracle:plan-splice - fixed:best)"
        )
    if lines:
        console.print()
    for line in lines:
        console.print(Text(line), style="dim")


def _winners(results: Results, workload: str, policy: str) -> str:
    found = results.winners(workload, policy)
    if len(found) == 1 and len(found[0].concurrencies) == len(results.concurrencies):
        return winner(found[0])
    return "\n".join(f"{winner(each)} ({at_concurrencies(each.concurrencies)})" for each in found)


def _last_of_groups(results: Results) -> set[str]:
    order = results.order()
    groups = (
        [name for name in order if name not in results.policies and name not in ORACLES],
        [name for name in order if name in results.policies],
    )
    return {group[-1] for group in groups if group}


def _row_style(results: Results, policy: str) -> str:
    if policy in results.policies:
        return "bold"
    return "dim" if policy in ORACLES else ""


def _lift(value: float | None, found: Interval | None) -> Text:
    """A lift, green or red where its whole interval lies on one side of 0."""
    style = ""
    if found is not None and found[0] > 0:
        style = "green"
    elif found is not None and found[1] < 0:
        style = "red"
    return Text(signed_percent(value), style=style)


def _place(results: Results, workload: str) -> str:
    if workload != ALL:
        return plain(workload)
    names = [plain(name) for name in results.workloads if name != ALL]
    return f"{names[0]}" if len(names) == 1 else "all workloads, mixed"


def _print_titled(title: str, table: Table, console: Console) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    console.print(table)


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)

"""A report on the terminal: what was run, the headline, speedups, worst lifts; 100 columns."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from adaspec.evaluate.render.frame import column_table, print_titled
from adaspec.evaluate.render.headlines import lift_text, place_of, print_headline, print_latency
from adaspec.evaluate.render.results import (
    ALL,
    BASELINES,
    OPPONENT,
    ORACLES,
    Report,
    Results,
    number,
)
from adaspec.evaluate.render.wording import (
    EDGE,
    EDGE_ADVICE,
    SAME,
    SEEN,
    at_concurrencies,
    batched,
    facts,
    marked,
    plain,
    rests_on_few,
    signed_range,
    times,
    winner,
)

_SPECS_BESIDE = 5
"""With more concurrencies than this, winning specs no longer fit beside the speedups."""
_NUMBER_WIDTH = 7
"""Characters of a speedup and the gap before it."""
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
            print_headline(results, policy, console)
        print_latency(results, console)
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
    warned = {"note", "left out"} if rests_on_few(report) else {"note"}
    for label, text in facts(report):
        grid.add_row(label, Text(text, style="yellow" if label in warned else ""))
    console.print(grid)


def _print_speedups(results: Results, workload: str, console: Console) -> None:
    winners = {name: _winners(results, workload, name) for name in (OPPONENT, *BASELINES)}
    numbers = _NUMBER_WIDTH * len(results.concurrencies)
    names = max(len(marked(results, name)) for name in results.order())
    widest = max((len(line) for won in winners.values() for line in won.split("\n")), default=0)
    beside = (
        len(results.concurrencies) <= _SPECS_BESIDE
        and min(names, _NAME_WIDTH) + numbers + widest + 4 <= console.width
    )
    room = _NAME_WIDTH if beside else max(_NAME_WIDTH, console.width - numbers - 4)
    table = column_table()
    table.add_column("policy", overflow="fold", max_width=room)
    for concurrency in results.concurrencies:
        table.add_column(str(concurrency), justify="right", no_wrap=True)
    if beside:
        table.add_column("won by (at concurrency)", no_wrap=True)
    for policy in results.order():
        cells = [
            times(results.value(workload, concurrency, policy, "speedup"))
            for concurrency in results.concurrencies
        ]
        if beside:
            cells.append(winners.get(policy, ""))
        style = _row_style(results, policy)
        table.add_row(Text(marked(results, policy)), *cells, style=style)
        if policy in _last_of_groups(results):
            table.add_section()
    title = f"speedup over none on {place_of(results, workload)}, by concurrency"
    print_titled(batched(results, title), table, console)
    if not beside and any(winners.values()):
        below = Table.grid(padding=(0, 2, 0, 0))
        below.add_column(style="dim", no_wrap=True)
        below.add_column(style="dim", overflow="fold")
        for name, won in winners.items():
            if won:
                below.add_row(name, Text(won))
        console.print()
        console.print(Text("won by (at concurrency)", style="dim"))
        console.print(below)


def _print_by_workload(results: Results, console: Console) -> None:
    table = column_table()
    table.add_column("workload", overflow="fold", max_width=_NAME_WIDTH)
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
    print_titled(batched(results, "speedup over none by workload and concurrency"), table, console)


def _print_lifts_alone(results: Results, policy: str, console: Console) -> None:
    cells = {name: _lifts_alone(results, name, policy, True) for name in results.alone}
    widths = [
        max(len(row[at]) for row in cells.values()) for at in range(len(results.concurrencies))
    ]
    name_width = min(max(len(plain(name)) for name in cells), _NAME_WIDTH)
    if name_width + sum(widths) + 2 * len(widths) + 1 > console.width:
        cells = {name: _lifts_alone(results, name, policy, False) for name in results.alone}
    table = column_table()
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
    print_titled(
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
        won = results.is_winner(workload, concurrency, policy)
        text = Text(SAME) if won else lift_text(lift, found)
        if lift is not None and len(known) > 1 and lift == min(known):
            text.stylize("underline")
        if found is not None and intervals and not won:
            text.append(" " + signed_range(found), style="dim not underline")
        row.append(text)
    return row


def _worst(results: Results, concurrency: int, policy: str) -> Text:
    entry = results.headline(ALL, concurrency, policy)
    return lift_text(number(entry.get("worst_workload_lift")), None)


def _print_legend(results: Results, console: Console) -> None:
    lines = []
    if any(
        found.edge
        for workload in results.workloads
        for policy in (OPPONENT, *BASELINES)
        for found in results.winners(workload, policy)
    ):
        lines.append(f"{EDGE} {EDGE_ADVICE}")
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

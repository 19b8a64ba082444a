"""Tables of a report's figures, described once for the terminal and for report.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from adaspec.evaluate.options import ALL
from adaspec.evaluate.render.context_tables import SEEN
from adaspec.evaluate.render.report import BASELINES, OPPONENT, Headline, Report, number
from adaspec.evaluate.render.report import Row as Measured
from adaspec.evaluate.render.table import (
    NULL,
    Column,
    Mark,
    Row,
    Span,
    Table,
    Text,
    code,
    decimal,
    foreign,
    milliseconds,
    percent,
    plain_range,
    signed_percent,
    signed_range,
    simple_table,
    times,
)

EDGE = "▲"
"""The mark of a winner on the edge of its grid; a larger grid might have a better setting."""
SAME = f"= `{OPPONENT}`"
"""The text in place of a lift if a named policy is the same setting that won."""
SOURCES = {"ngram": "n-gram", "neural": "neural"}


def headline(report: Report, policy: str) -> Table:
    """A policy's lifts over every opponent, one row per concurrency."""
    workload = report.main
    assert workload is not None
    rows = []
    for load in report.concurrencies:
        row, entry = report.row(workload, load, policy), report.headline(workload, load, policy)
        rows.append(Row([cell(load, row, entry) for _, cell in _HEADLINE_COLUMNS]))
    title = [*_name(report, policy), " on ", place_name(report, workload)]
    table = Table(
        batched(report, [*title, ": lift over each opponent"]),
        [column for column, _ in _HEADLINE_COLUMNS],
        [rows],
        _summary(report, workload, policy),
    )
    return table.without_empty_columns()


def latency(report: Report) -> Table | None:
    """Milliseconds per output token on the main workload; None if they were not measured."""
    workload = report.main
    assert workload is not None

    def cell(row: Measured, load: int) -> Text:
        if row.token_s_median is None or row.token_s_p95 is None:
            return NULL
        limit = report.row(workload, load, "none").token_s_p95
        slower = limit is not None and row.token_s_p95 > limit
        p95 = Span(milliseconds(row.token_s_p95), marks=(Mark.BAD,) if slower else ())
        return [f"{milliseconds(row.token_s_median)} / ", p95]

    return _by_load(
        report,
        workload,
        "Latency",
        cell,
        "Milliseconds per output token, median / 95th percentile over requests.",
        {Mark.BAD: "the slowest requests wait longer than with none"},
    )


def speedups(report: Report, workload: str) -> Table | None:
    """Every policy's speedup by concurrency."""
    return _by_load(
        report,
        workload,
        "Speedup over `none`",
        lambda row, _: [times(row.speedup), *_spare(plain_range(row.interval))],
    )


def steps(report: Report, workload: str) -> Table | None:
    """The tokens accepted and drafted per step; None if they were not counted."""

    def cell(row: Measured, _: int) -> Text:
        figures = (row.accepted_per_step, row.drafted_per_step, row.neural_steps_share)
        if figures == (None, None, None):
            return NULL
        return f"{decimal(figures[0])} / {decimal(figures[1])}, {percent(figures[2])}"

    sentence = (
        "Tokens accepted / drafted per request and step, and the share of engine steps that "
        "drafted with the neural drafter."
    )
    return _by_load(report, workload, "Tokens per step", cell, sentence)


def lifts_alone(report: Report, policy: str) -> Table:
    """A policy's lift over the static:best of each workload, and the worst of these lifts."""
    loads, rows = report.concurrencies, {name: report.lifts(name, policy) for name in report.alone}
    known = [
        [lift for lift in lifts if lift is not None] for lifts in zip(*rows.values(), strict=True)
    ]
    lowest = [min(lifts) if len(lifts) > 1 else None for lifts in known]

    def cell(workload: str, column: int) -> Text:
        entry = report.headline(workload, loads[column], policy)
        marks = [Mark.LOWEST] if entry.lift is not None and entry.lift == lowest[column] else []
        if entry.is_winner:
            return Span(SAME, marks=tuple(marks))
        return [_lift(entry, *marks), *_spare(signed_range(entry.interval))]

    groups = [[Row([foreign(name), *(cell(name, c) for c in range(len(loads)))]) for name in rows]]
    if report.has_all:
        worst = [report.headline(ALL, load, policy).worst_workload_lift for load in loads]
        cells = [signed_percent(lift) for lift in worst]
        groups.append([Row([Span("worst", marks=(Mark.STRONG,)), *cells])])
    return Table(
        [*_name(report, policy), f": lift over the `{OPPONENT}` of each workload alone"],
        [Column("workload", left=True), *_loads(report)],
        groups,
        meanings={Mark.LOWEST: "the worst"},
    )


def winners(report: Report, workload: str) -> Table | None:
    """The settings that won on a workload; None if there are none."""
    rows: list[list[Text]] = [
        [code(policy), ", ".join(map(str, won.concurrencies)), _winner(won.spec, won.edge)]
        for policy in (OPPONENT, *BASELINES)
        for won in report.winners(workload, policy)
    ]
    if not rows:
        return None
    edges = any(row.edge for cell, row in report.rows.items() if cell[0] == workload)
    advice = (
        f"{EDGE} the winner lies on the edge of its grid, in the parameters named: try --policy "
        "with values beyond the edge."
    )
    title: Text = ["The winning settings on ", place_name(report, workload)]
    heads = ("best of", "at concurrency", "setting")
    return simple_table(title, heads, rows, 3, advice if edges else "")


def calibration(document: Mapping[str, Any], title: str = "Calibration") -> Iterator[Table]:
    """The calibration of a learned policy's probabilities, before and after drafting."""
    yield simple_table(
        title,
        ["source", "", "states", "came true", *_calibration_heads("without tables")],
        [
            [SOURCES[source], f"S({entry['survival']})", *_calibrated(entry, "without_tables")]
            for source, judged in document["sources"].items()
            for entry in judged
        ],
        2,
        "S(j) is the probability that at least j drafted tokens are accepted, as predicted before "
        "drafting in the states that the policy visits. ECE is the expected calibration error over "
        "bins of equally many states; AUC and log-loss stand beside those of the same model "
        "without token tables.",
    )
    if document.get("drafted"):
        yield simple_table(
            f"{title}, token by token",
            ["drafted token", "states", "right", *_calibration_heads("before seen")],
            [[str(entry["token"]), *_calibrated(entry, "before")] for entry in document["drafted"]],
            0,
            "Where all drafted before it were right: how well the policy knows that a drafted "
            "token is right once it has seen it, with its confidences, and how well before.",
        )


def ablations(document: Mapping[str, Any], title: str = "Ablations") -> Table:
    """What each part of a learned policy contributes."""
    loads = [str(load) for load in document["concurrency"]]
    return simple_table(
        title,
        ["", "what is missing", *(f"at {load}" for load in loads)],
        [
            [row["name"], row["without"], *(signed_percent(row["lift"][load]) for load in loads)]
            for row in document["rows"]
        ],
        2,
        "Lift over `static:best`, all workloads mixed, of the policy, of policies trained and run "
        "without one part of it each, and of the best settings in hindsight of two simpler "
        f"families. No intervals: differences below a percent say little. `{NULL}`: nothing was "
        "there to take away, or, cross-fitted, one policy would have had to decide alone.",
    )


def place_name(report: Report, workload: str) -> Span:
    """The name of a workload in titles."""
    if workload != ALL:
        return foreign(workload)
    names = [name for name in report.workloads if name != ALL]
    return foreign(names[0]) if len(names) == 1 else Span("all workloads, mixed")


def batched(report: Report, title: Sequence[str | Span]) -> list[str | Span]:
    """`title`, with a note if copies of one request advanced in lockstep."""
    return [*title, *[" (lockstep batching)"][: report.is_lockstep]]


def _by_load(
    report: Report,
    workload: str,
    what: str,
    cell: Callable[[Measured, int], Text],
    sentence: str = "",
    meanings: Mapping[Mark, str] | None = None,
) -> Table | None:
    """A table with a column per concurrency, and a row per policy with any known figure."""
    groups = []
    for policies, mark in (
        (report.baselines, None),
        (report.named, Mark.STRONG),
        (report.oracles, Mark.FAINT),
    ):
        rows = []
        for name in policies:
            cells = [cell(report.row(workload, load, name), load) for load in report.concurrencies]
            if any(text != NULL for text in cells):
                rows.append(Row([_name(report, name), *cells], mark))
        groups.append(rows)
    title = batched(report, [f"{what} on ", place_name(report, workload), ", by concurrency"])
    columns = [Column("policy", left=True), *_loads(report)]
    return Table(title, columns, groups, sentence, meanings or {}) if any(groups) else None


def _loads(report: Report) -> list[Column]:
    return [Column(str(load)) for load in report.concurrencies]


def _spare(interval: str) -> list[Span]:
    return [Span(f" {interval}", marks=(Mark.FAINT,), spare=True)] if interval else []


def _name(report: Report, policy: str) -> list[str | Span]:
    return [code(policy), *[f" {SEEN}"][: report.seen_in_training(policy)]]


def _lift(entry: Headline, *marks: Mark) -> Span:
    """The lift over static:best, marked good or bad if its whole interval is on one side of 0."""
    low, high = entry.interval or (0.0, 0.0)
    side = [Mark.GOOD] if low > 0 else [Mark.BAD] if high < 0 else []
    return Span(signed_percent(entry.lift), marks=(*marks, *side) if entry.lift is not None else ())


def _winner(spec: str, edge: Sequence[str]) -> Text:
    return [code(spec), f" {EDGE} ", foreign(", ".join(edge))] if edge else code(spec)


def _summary(report: Report, workload: str, policy: str) -> Text:
    """What a named policy gains at the lowest and the highest concurrency."""
    ends = tuple(dict.fromkeys((report.concurrencies[0], report.concurrencies[-1])))
    speeds = [(load, report.row(workload, load, policy).speedup) for load in ends]
    runs = [f"{times(speed)} at {load}" for load, speed in speeds if speed is not None]
    if not runs:
        return [code(policy), " has no speed to show."]
    entries = [(load, report.headline(workload, load, policy)) for load in ends]
    lifts = [
        f"{'the same' if entry.is_winner else signed_percent(entry.lift)} at {load}"
        for load, entry in entries
        if entry.lift is not None
    ]
    text = ", ".join(runs).replace(" at ", " no speculation at concurrency ", 1)
    if lifts:
        text += f"; against the best static setting in hindsight it is {', '.join(lifts)}"
    return [code(policy), f" runs at {text}."]


def _calibration_heads(beside: str) -> list[str]:
    return ["ECE", "AUC", beside, "log-loss", beside]


def _calibrated(entry: Mapping[str, Any], beside: str) -> list[str]:
    other = entry[beside]
    figures = (entry["came"], entry["ece"], entry["auc"], other["auc"])
    values = (*figures, entry["log_loss"], other["log_loss"])
    return [f"{entry['states']:,}", *(decimal(number(value), 3) for value in values)]


_HeadlineCell = Callable[[int, Measured, Headline], Text]


def _lift_column(name: str, priority: int) -> tuple[Column, _HeadlineCell]:
    column = Column(f"over `{name}`", short_head=name.replace(":", "\n:"), priority=priority)
    return column, lambda _, __, entry: signed_percent(entry.lifts[name])


def _interval(entry: Headline) -> Text:
    return f"`{OPPONENT}`" if entry.is_winner else signed_range(entry.interval) or NULL


_HEADLINE_COLUMNS: tuple[tuple[Column, _HeadlineCell], ...] = (
    (Column("concurrency", short_head="conc."), lambda load, _, __: str(load)),
    (Column("speedup"), lambda _, row, __: times(row.speedup)),
    (
        Column(f"over `{OPPONENT}`", short_head=OPPONENT.replace(":", "\n:")),
        lambda _, __, entry: Span("=") if entry.is_winner else _lift(entry, Mark.STRONG),
    ),
    (Column("95% interval", left=True), lambda _, __, entry: _interval(entry)),
    _lift_column("static:tuned", priority=8),
    _lift_column("static:one", priority=4),
    _lift_column("adaptive:best", priority=5),
    _lift_column("hybrid:best", priority=2),
    _lift_column("fixed:best", priority=6),
    (Column("gap closed", priority=7), lambda _, __, entry: percent(entry.gap_closed)),
    (
        Column("gap closed to `oracle:combine`", short_head="gap to\ncombine", priority=1),
        lambda _, __, entry: percent(entry.gap_closed_combine),
    ),
    (
        Column("deciding, of a step", short_head="decid-\ning", priority=3),
        lambda _, __, entry: percent(entry.decide_share_of_step, 1),
    ),
)
"""The columns, and the cell of each for a concurrency, the policy's row and its headline."""

"""Every table of a report, described once for the terminal and for report.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from adaspec.evaluate.render.report import (
    ALL,
    BASELINES,
    OPPONENT,
    Headline,
    Report,
    number,
)
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
    simple_table,
    theirs,
)
from adaspec.evaluate.render.wording import (
    decimal,
    milliseconds,
    percent,
    plain_range,
    signed_percent,
    signed_range,
    times,
)

EDGE = "▲"
"""Marks a winner that lies on the edge of its grid: a larger grid might hold a better one."""
SEEN = "†"
"""Marks a policy whose model had trained on requests of this evaluation."""
SAME = f"= `{OPPONENT}`"
"""What stands instead of a lift where a named policy is the very setting that won."""
SOURCES = {"ngram": "n-gram", "neural": "neural"}
_MANY = 0.2
"""The share of a workload's requests beyond which leaving them out is worth a warning."""

_HINDSIGHT = "the best in hindsight on these very requests at each concurrency, of "
_DEFINITIONS = {
    "none": "no speculation",
    "fixed:best": _HINDSIGHT + "one drafter at one length (`fixed:ngram`, `fixed:neural`)",
    "hybrid:best": _HINDSIGHT + "the `hybrid` grid: n-gram or neural by match length, no splicing",
    "adaptive:best": _HINDSIGHT + "what adapts by itself: `budget`, `batch-table`, `ema`",
    "static:one": "the one static setting that is best over all concurrencies (geometric mean)",
    "static:tuned": "what the grids chose at each concurrency on the policy's training requests",
    "static:best": _HINDSIGHT + "every static setting of every grid, and `none`",
    "oracle:ngram": "n-gram alone: each request proposes its whole accepted span; greedy",
    "oracle:neural": "neural alone: each request proposes its whole accepted span; greedy",
    "oracle:combine": "the longer accepted span of the two, n-gram on ties; greedy",
    "oracle:plan": "perfect foresight, each step's plans chosen by the going rate; a reference",
    "oracle:plan-splice": "the same, with n-gram tokens spliced behind neural ones; a reference",
    "oracle:dp": "the cheapest possible path, by dynamic programming; a bound, for one request",
    "oracle:dp-splice": "the same, with splices; a bound, for one request",
}
_GREEDY = (
    "The `ngram`, `neural` and `combine` oracles are greedy: each request proposes its whole "
    "accepted span and the batch pays for the longest, so in mixed batches a short fixed draft "
    "can beat them. `plan` and `plan-splice` are references. Only `dp` and `dp-splice` are "
    "bounds, for one request."
)


def settings(report: Report) -> Table:
    """What was evaluated and how; only what the report says."""
    document = report.document
    traces = document.get("traces", {})
    lines: list[tuple[str, str]] = [("traces", ", ".join(traces.get("sources", ())))]
    if report.used:
        each = ", ".join(f"{name} {count:,}" for name, count in report.used.items())
        lines.append(("requests", f"{sum(report.used.values()):,} ({each})"))
    few = _few_left(report)
    reasons = [f"{count:,} {reason}" for reason, count in report.left_out_by_reason().items()]
    lines.append(("left out", "; ".join(reasons) + (f": {few}" if few else "")))
    models = [f"{what} {traces[what]}" for what in ("target", "drafter") if traces.get(what)]
    lines.append(("models", ", ".join(models)))
    lines.append(("cost", document.get("cost") or NULL))
    batching = [
        document.get("protocol") or document.get("batching") or NULL,
        *(
            f"{key} {document[key]}"
            for key in ("orders", "resamples", "seed")
            if document.get(key) is not None
        ),
        f"draft_len up to {document['cap']}" if document.get("cap") is not None else "",
        "prefill charged" if document.get("prefill") else "prefill not counted",
        "decisions charged" if document.get("charge_decisions") else "",
    ]
    lines.append(("batching", ", ".join(filter(None, batching))))
    lines += [("note", note) for note in (*document.get("notes", ()), *_adaptive_wins(report))]
    warnings = {"note"} | ({"left out"} if few else set())
    rows = [
        [Span(label, marks=(Mark.FAINT,)), theirs(text, *[Mark.WARNING][: label in warnings])]
        for label, text in lines
        if text
    ]
    return simple_table("", ["", ""], rows, 2)


def headline(report: Report, policy: str) -> Table:
    """A policy's lifts over every opponent, a row per concurrency."""
    workload = report.main
    assert workload is not None
    rows = [
        Row(
            [cell(load, report.row(workload, load, policy), entry) for _, cell in _HEADLINE_COLUMNS]
        )
        for load in report.concurrencies
        for entry in [report.headline(workload, load, policy)]
    ]
    title = [*_name(report, policy), " on ", place(report, workload), ": lift over each opponent"]
    columns = [column for column, _ in _HEADLINE_COLUMNS]
    table = Table(batched(report, title), columns, [rows], _summary(report, workload, policy))
    return table.without_empty_columns()


def latency(report: Report) -> Table | None:
    """Milliseconds per output token on the main workload; nothing where none were measured."""
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
    """What was accepted and drafted in a step; nothing where that was not counted."""

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
    """A policy's lift over each workload's own static:best, and the worst of them."""
    lowest = {
        load: min(known)
        for load in report.concurrencies
        for entries in [[report.headline(name, load, policy) for name in report.alone]]
        if len(known := [entry.lift for entry in entries if entry.lift is not None]) > 1
    }

    def cell(workload: str, load: int) -> Text:
        entry = report.headline(workload, load, policy)
        marks = [Mark.LOWEST] if entry.lift is not None and entry.lift == lowest.get(load) else []
        if entry.is_winner:
            return Span(SAME, marks=tuple(marks))
        return [_lift(entry, *marks), *_spare(signed_range(entry.interval))]

    groups = [
        [
            Row([theirs(name), *(cell(name, c) for c in report.concurrencies)])
            for name in report.alone
        ]
    ]
    if report.has_all:
        entries = [report.headline(ALL, load, policy) for load in report.concurrencies]
        worst = [signed_percent(entry.worst_workload_lift) for entry in entries]
        groups.append([Row([Span("worst", marks=(Mark.STRONG,)), *worst])])
    return Table(
        [*_name(report, policy), f": lift over the `{OPPONENT}` of each workload alone"],
        [Column("workload", left=True), *_loads(report)],
        groups,
        meanings={Mark.LOWEST: "the worst"},
    )


def winners(report: Report, workload: str) -> Table | None:
    """The settings that won on a workload; nothing where nothing was chosen."""
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
    title: Text = ["The winning settings on ", place(report, workload)]
    heads = ("best of", "at concurrency", "setting")
    return simple_table(title, heads, rows, 3, advice if edges else "")


def definitions(report: Report) -> Table | None:
    """What every row of the report means, in a sentence each."""
    shown = [name for name in _DEFINITIONS if name in (*report.baselines, *report.oracles)]
    rows: list[list[Text]] = [[code(name), _DEFINITIONS[name]] for name in shown]
    oracles = _GREEDY if report.oracles else ""
    return simple_table("What each row is", ("row", "is"), rows, 2, oracles) if rows else None


def calibration(found: Mapping[str, Any], title: str = "Calibration") -> Iterator[Table]:
    """How far a learned policy's probabilities can be believed, before and after drafting."""
    yield simple_table(
        title,
        ["source", "", "states", "came true", *_heads("without tables")],
        [
            [SOURCES[source], f"S({each['survival']})", *_judged(each, "without_tables")]
            for source, judged in found["sources"].items()
            for each in judged
        ],
        2,
        "S(j) is the probability that at least j drafted tokens are accepted, as predicted before "
        "drafting in the states that the policy visits. ECE is the expected calibration error over "
        "bins of equally many states; AUC and log-loss stand beside those of the same model "
        "without token tables.",
    )
    if found.get("drafted"):
        yield simple_table(
            f"{title}, token by token",
            ["drafted token", "states", "right", *_heads("before seen")],
            [[str(each["token"]), *_judged(each, "before")] for each in found["drafted"]],
            0,
            "Where all drafted before it were right: how well the policy knows that a drafted "
            "token is right once it has seen it, with its confidences, and how well before.",
        )


def ablations(found: Mapping[str, Any], title: str = "Ablations") -> Table:
    """What each part of a learned policy is worth."""
    loads = [str(load) for load in found["concurrency"]]
    return simple_table(
        title,
        ["", "what is missing", *(f"at {load}" for load in loads)],
        [
            [row["name"], row["without"], *(signed_percent(row["lift"][load]) for load in loads)]
            for row in found["rows"]
        ],
        2,
        "Lift over `static:best`, all workloads mixed, of the policy, of policies trained and run "
        "without one part of it each, and of the best settings in hindsight of two simpler "
        f"families. No intervals: differences below a percent say little. `{NULL}`: nothing was "
        "there to take away, or, cross-fitted, one policy would have had to decide alone.",
    )


def defaults(report: Report) -> Table | None:
    """What a spec without parameters stands for."""
    rows = [[code(s), code(text)] for s, text in report.document.get("defaults", {}).items()]
    return simple_table("What a bare spec means", ("spec", "means"), rows, 2) if rows else None


def requests(report: Report) -> Table | None:
    """How many requests of each workload were evaluated, and why others were not."""
    reasons = list(report.left_out_by_reason())
    rows: list[list[Text]] = []
    for name, count in report.used.items():
        left_out = report.left_out.get(name, {})
        rows.append([theirs(name), f"{count:,}", *(f"{left_out.get(why, 0):,}" for why in reasons)])
    heads: list[Text] = ["workload", "used"]
    heads += [("left out: ", theirs(why)) for why in reasons]
    return simple_table("Requests", heads, rows) if rows else None


def footnotes(report: Report) -> list[str]:
    """What the signs in the tables mean."""
    lines = [f"{NULL} was not computed."]
    if any(report.seen_in_training(policy) for policy in report.policies):
        lines.append(f"{SEEN} its model trained on requests of this evaluation: not held out.")
    return lines


def place(report: Report, workload: str) -> Span:
    """A workload as titles name it."""
    if workload != ALL:
        return theirs(workload)
    names = [name for name in report.workloads if name != ALL]
    return theirs(names[0]) if len(names) == 1 else Span("all workloads, mixed")


def batched(report: Report, title: Sequence[str | Span]) -> list[str | Span]:
    """`title`, saying so where copies of one request advanced in lockstep."""
    return [*title, *[" (lockstep batching)"][: report.is_lockstep]]


def _by_load(
    report: Report,
    workload: str,
    what: str,
    cell: Callable[[Measured, int], Text],
    sentence: str = "",
    meanings: Mapping[Mark, str] | None = None,
) -> Table | None:
    """A row per policy of which anything is known, and a column per concurrency."""
    groups = []
    for policies, mark in (
        (report.baselines, None),
        (report.named, Mark.STRONG),
        (report.oracles, Mark.FAINT),
    ):
        rows = [
            [cell(report.row(workload, load, name), load) for load in report.concurrencies]
            for name in policies
        ]
        named = zip(policies, rows, strict=True)
        groups.append(
            [
                Row([_name(report, policy), *cells], mark)
                for policy, cells in named
                if any(each != NULL for each in cells)
            ]
        )
    title = batched(report, [f"{what} on ", place(report, workload), ", by concurrency"])
    columns = [Column("policy", left=True), *_loads(report)]
    return Table(title, columns, groups, sentence, meanings or {}) if any(groups) else None


def _loads(report: Report) -> list[Column]:
    return [Column(str(load)) for load in report.concurrencies]


def _spare(interval: str) -> list[Span]:
    return [Span(f" {interval}", marks=(Mark.FAINT,), spare=True)] if interval else []


def _name(report: Report, policy: str) -> list[str | Span]:
    return [code(policy), *[f" {SEEN}"][: report.seen_in_training(policy)]]


def _lift(entry: Headline, *marks: Mark) -> Span:
    """The lift over static:best, good or bad where its whole interval lies on one side of 0."""
    low, high = entry.interval or (0.0, 0.0)
    side = [Mark.GOOD] if low > 0 else [Mark.BAD] if high < 0 else []
    return Span(signed_percent(entry.lift), marks=(*marks, *side) if entry.lift is not None else ())


def _winner(spec: str, edge: Sequence[str]) -> Text:
    return [code(spec), f" {EDGE} ", theirs(", ".join(edge))] if edge else code(spec)


def _heads(beside: str) -> list[str]:
    return ["ECE", "AUC", beside, "log-loss", beside]


def _judged(found: Mapping[str, Any], beside: str) -> list[str]:
    other = found[beside]
    figures = (found["came"], found["ece"], found["auc"], other["auc"])
    values = (*figures, found["log_loss"], other["log_loss"])
    return [f"{found['states']:,}", *(decimal(number(value), 3) for value in values)]


def _few_left(report: Report) -> str:
    """Which workloads lost over a fifth of their requests: `sharegpt rests on 47 of 230`."""
    totals = {name: count + report.left_out_of(name) for name, count in report.used.items()}
    return ", ".join(
        f"{name} rests on {count:,} of {totals[name]:,}"
        for name, count in report.used.items()
        if report.left_out_of(name) > _MANY * totals[name]
    )


def _adaptive_wins(report: Report) -> list[str]:
    """A note on the cells where adaptive:best beats static:best by over 0.1%, if any."""
    wins = []
    for workload in report.workloads:
        for load in report.concurrencies:
            mine = report.row(workload, load, "adaptive:best").speedup
            best = report.row(workload, load, OPPONENT).speedup
            if mine is not None and best is not None and mine > 1.001 * best:
                wins.append(f"{workload}/{load} ({times(mine)}, {times(best)})")
    return [f"adaptive:best beats {OPPONENT} at {', '.join(wins)}"] if wins else []


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


def _opponent(entry: Headline) -> Text:
    return Span("=") if entry.is_winner else _lift(entry, Mark.STRONG)


def _opponent_interval(entry: Headline) -> Text:
    return f"`{OPPONENT}`" if entry.is_winner else signed_range(entry.interval) or NULL


def _lift_column(name: str, priority: int) -> tuple[Column, _HeadlineCell]:
    column = Column(f"over `{name}`", short_head=name.replace(":", "\n:"), priority=priority)
    return column, lambda _, __, entry: signed_percent(entry.lifts[name])


_HeadlineCell = Callable[[int, Measured, Headline], Text]
_HEADLINE_COLUMNS: tuple[tuple[Column, _HeadlineCell], ...] = (
    (Column("concurrency", short_head="conc."), lambda load, _, __: str(load)),
    (Column("speedup"), lambda _, row, __: times(row.speedup)),
    (
        Column(f"over `{OPPONENT}`", short_head=OPPONENT.replace(":", "\n:")),
        lambda _, __, entry: _opponent(entry),
    ),
    (Column("95% interval", left=True), lambda _, __, entry: _opponent_interval(entry)),
    _lift_column("static:tuned", priority=8),
    _lift_column("static:one", priority=4),
    _lift_column("adaptive:best", priority=5),
    _lift_column("hybrid:best", priority=2),
    _lift_column("fixed:best", priority=6),
    (
        Column("gap closed", priority=7),
        lambda _, __, entry: percent(entry.gap_closed),
    ),
    (
        Column("gap closed to `oracle:combine`", short_head="gap to\ncombine", priority=1),
        lambda _, __, entry: percent(entry.gap_closed_combine),
    ),
    (
        Column("deciding, of a step", short_head="decid-\ning", priority=3),
        lambda _, __, entry: percent(entry.decide_share_of_step, 1),
    ),
)
"""What stands in each column, given the concurrency, the policy's row and its headline."""

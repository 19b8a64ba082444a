"""Tables of a report's settings, figures and words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from adaspec.cost.engine import ASYNC
from adaspec.evaluate.options import ALL
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
from adaspec.evaluate.report import LIFT, OPPONENT, ROWS, Entry, Report, is_winner

MIX = "all workloads, mixed"

EDGE = "▲"
"""The mark of a winner on the edge of its grid; a larger grid might have a better setting."""
SEEN = "†"
"""The mark of a policy whose model was trained on requests of this evaluation."""
SOURCES = {"ngram": "n-gram", "neural": "neural"}
_GREEDY = (
    "The `ngram`, `neural` and `combine` oracles are greedy: each request proposes its whole "
    "accepted span and the batch pays for the longest, so in mixed batches a short fixed draft "
    "can beat them. `plan` and `plan-splice` are references. Only `dp` and `dp-splice` are "
    "bounds, for one request."
)


def settings(report: Report) -> Table:
    """What was evaluated and how; settings that the report lacks are left out."""
    document = report.document
    traces = document.get("traces", {})
    requests = ", ".join(f"{name} {count:,}" for name, count in report.used.items())
    left_out = "; ".join(f"{count:,} {reason}" for reason, count in report.reasons.items())
    few_left = report.few_left()
    batching = [
        document.get("protocol") or "closed loop",
        *(f"{key} {document[key]}" for key in ("orders", "resamples", "seed") if key in document),
        f"draft_len up to {document['cap']}" if "cap" in document else "",
        "prefill charged" if document.get("prefill") else "prefill not counted",
        "decisions charged" if document.get("charge_decisions") else "",
        f"{document['engine']} engine" if "engine" in document else "",
    ]
    lines = [
        ("traces", ", ".join(traces.get("sources", ()))),
        ("requests", f"{sum(report.used.values()):,} ({requests})" if requests else ""),
        ("left out", left_out + (f": {few_left}" if few_left else "")),
        ("models", ", ".join(f"{w} {traces[w]}" for w in ("target", "drafter") if traces.get(w))),
        ("cost", document.get("cost") or NULL),
        ("batching", ", ".join(filter(None, batching))),
        *(("note", note) for note in document.get("notes", ())),
    ]
    warnings = {"note", "left out"} if few_left else {"note"}
    rows = [
        [Span(label, marks=(Mark.FAINT,)), foreign(text, *[Mark.WARNING][: label in warnings])]
        for label, text in lines
        if text
    ]
    return simple_table("", ["", ""], rows, 2)


def definitions(report: Report) -> Table | None:
    """One sentence for each of the report's baselines and oracles."""
    shown = (*report.baselines, *report.oracles)
    rows: list[list[Text]] = [[code(name), ROWS[name]] for name in shown]
    oracles = _GREEDY if report.oracles else ""
    return simple_table("What each row is", ("row", "is"), rows, 2, oracles) if rows else None


def footnotes(report: Report) -> list[str]:
    """The meaning of the signs in the tables."""
    lines = [f"{NULL} was not computed."]
    if report.seen.intersection(report.policies):
        lines.append(f"{SEEN} its model trained on requests of this evaluation: not held out.")
    if report.judged:
        lines.append(
            "`...:best` is the best setting in hindsight at each concurrency; gap closed = "
            "(policy - `vllm:best`) / (`oracle:plan-splice` - `vllm:best`)."
        )
    return lines


def headline(report: Report, workload: str, policy: str) -> Table:
    """A policy's lifts over every opponent, one row per concurrency."""
    entries = [{"concurrency": load, **e} for load, e in report.across(workload, policy)]
    cells = [[cell(entry) for _, cell in _HEADLINE_COLUMNS] for entry in entries]
    kept = [
        index
        for index, (column, _) in enumerate(_HEADLINE_COLUMNS)
        if column.priority is None or any(row[index] != NULL for row in cells)
    ]
    title = [*_name(report, policy), " on ", place_name(report, workload)]
    return Table(
        batched(report, [*title, ": lift over each opponent"]),
        [_HEADLINE_COLUMNS[index][0] for index in kept],
        [
            [
                Row([row[index] for index in kept], load=load)
                for row, load in zip(cells, report.concurrencies, strict=True)
            ]
        ],
        _summary(policy, entries),
    )


def _summary(policy: str, entries: Sequence[Entry]) -> Text:
    """What a named policy gains at the lowest and the highest concurrency."""
    ends = [*entries[:1], *entries[1:][-1:]]
    runs = [
        f"{times(entry['speedup'])} at {entry['concurrency']}"
        for entry in ends
        if entry.get("speedup") is not None
    ]
    if not runs:
        return [code(policy), " has no speed to show."]
    lifts = [
        f"{'the same' if is_winner(entry) else signed_percent(entry[LIFT])}"
        f" at {entry['concurrency']}"
        for entry in ends
        if entry.get(LIFT) is not None
    ]
    text = ", ".join(runs).replace(" at ", " no speculation at concurrency ", 1)
    if lifts:
        text += f"; against the best static setting in hindsight it is {', '.join(lifts)}"
    return [code(policy), f" runs at {text}."]


def latency(report: Report, workload: str) -> Table | None:
    """Milliseconds per output token; None if they were not measured."""

    def seconds(entry: Entry, which: str) -> float | None:
        return (entry.get("detail", {}).get("latency_s") or {}).get(which)

    limits = {load: seconds(none, "p95") for load, none in report.across(workload, "none")}

    def cell(entry: Entry, load: int) -> Text:
        median, p95, limit = seconds(entry, "median"), seconds(entry, "p95"), limits[load]
        if median is None or p95 is None:
            return NULL
        slower = limit is not None and p95 > limit
        marks = (Mark.BAD,) if slower else ()
        return [f"{milliseconds(median)} / ", Span(milliseconds(p95), marks=marks)]

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
        lambda entry, _: [times(entry.get("speedup")), *_spare(plain_range(entry.get("ci95")))],
    )


def steps(report: Report, workload: str) -> Table | None:
    """The tokens accepted and drafted per step; None if they were not counted."""
    keys = ("accepted_per_step", "drafted_per_step", "neural_steps_share")

    def cell(entry: Entry, _: int) -> Text:
        accepted, drafted, share = figures = [entry.get(key) for key in keys]
        if figures == [None, None, None]:
            return NULL
        return f"{decimal(accepted)} / {decimal(drafted)}, {percent(share)}"

    sentence = (
        "Tokens accepted / drafted per request and step, and the share of engine steps that "
        "drafted with the neural drafter."
    )
    return _by_load(report, workload, "Tokens per step", cell, sentence)


def lifts_alone(report: Report, policy: str) -> Table:
    """A policy's lift over the static:best of each workload, and the worst of these lifts."""
    rows = {name: [e for _, e in report.across(name, policy)] for name in report.alone}
    lowest = []
    for entries in zip(*rows.values(), strict=True):
        known = [entry[LIFT] for entry in entries if entry.get(LIFT) is not None]
        lowest.append(min(known) if len(known) > 1 else None)

    def cell(entry: Entry, least: float | None) -> Text:
        lift = entry.get(LIFT)
        marks = [Mark.LOWEST] if lift is not None and lift == least else []
        if is_winner(entry):
            return Span(f"= `{OPPONENT}`", marks=tuple(marks))
        return [_lift(entry, *marks), *_spare(signed_range(entry.get("lift_ci95")))]

    groups = [[Row([foreign(name), *map(cell, entries, lowest)]) for name, entries in rows.items()]]
    if report.has_all:
        worst = report.figures(ALL, policy, "worst_workload_lift")
        groups.append([Row([Span("worst", marks=(Mark.STRONG,)), *map(signed_percent, worst)])])
    return Table(
        [*_name(report, policy), f": lift over the `{OPPONENT}` of each workload alone"],
        [Column("workload", left=True), *_loads(report)],
        groups,
        meanings={Mark.LOWEST: "the worst"},
    )


def winners(report: Report, workload: str) -> Table | None:
    """The settings that won on a workload; None if there are none."""
    won = [
        (policy, *each)
        for policy in sorted(report.baselines, key=lambda name: name != OPPONENT)
        for each in report.winners(workload, policy)
    ]
    rows: list[list[Text]] = [
        [
            code(policy),
            ", ".join(map(str, loads)),
            [_distinct(spec), f" {EDGE} ", foreign(", ".join(edge))] if edge else _distinct(spec),
        ]
        for policy, spec, edge, loads in won
    ]
    advice = (
        f"{EDGE} the winner lies on the edge of its grid, in the parameters named: try --policy "
        "with values beyond the edge."
    )
    title: Text = ["The winning settings on ", place_name(report, workload)]
    heads = ("best of", "at concurrency", "setting")
    sentence = advice if any(edge for _, _, edge, _ in won) else ""
    return simple_table(title, heads, rows, 3, sentence) if rows else None


def _distinct(spec: str) -> Span:
    """A setting; of those of several folds, each once."""
    return code(" / ".join(dict.fromkeys(spec.split(" / "))))


def calibration(document: Mapping[str, Any], title: str = "Calibration") -> Iterator[Table]:
    """The calibration of a learned policy's probabilities, before and after drafting."""

    heads = ["states", "came true", "ECE", "AUC", "log-loss"]

    def figures(entry: Mapping[str, Any], *others: Any) -> list[str]:
        values = [entry["came"], entry["ece"], entry["auc"], entry["log_loss"], *others]
        return [f"{entry['states']:,}", *(decimal(value, 3) for value in values)]

    yield simple_table(
        title,
        ["source", "", *heads],
        [
            [SOURCES[source], f"S({entry['survival']})", *figures(entry)]
            for source, judged in document["sources"].items()
            for entry in judged
        ],
        2,
        "S(j) is the probability that at least j drafted tokens are accepted, as predicted before "
        "drafting at every position whose outcome is known. ECE is the expected calibration error "
        "over bins of equally many positions.",
    )
    if document.get("drafted"):
        yield simple_table(
            f"{title}, token by token",
            ["drafted token", *heads, "AUC before seen", "log-loss before"],
            [
                [str(e["token"]), *figures(e, e["before"]["auc"], e["before"]["log_loss"])]
                for e in document["drafted"]
            ],
            0,
            "Where all drafted before it were right: how well the policy knows that a drafted "
            "token is right once it has seen it, with its confidences, and how well before.",
        )


def estimates(document: Mapping[str, Any]) -> Table:
    """What ran, and what each policy's own path would have given, on logged traces."""
    rows: list[list[Text]] = []
    for row in document["rows"]:
        said: list[Text] = [NULL] * 4
        (figures,) = row["estimates"].values()
        if figures is not None:
            said = [
                decimal(figures["emitted_per_step"]),
                f"{figures['tokens_per_s']:,.0f}",
                signed_percent(figures["lift_over_logged"]),
                signed_range(figures["lift_over_logged_ci95"]),
            ]
        names: list[Text] = [foreign(row["workload"]), code(row["policy"]), f"{row['requests']:,}"]
        rows.append([*names, percent(row.get("revealed_share"), 1), *said])
    heads = ["workload", "policy", "requests", "revealed", "emitted per step", "tokens per second"]
    return simple_table(
        ["What a log says of other policies, costs of ", code(document["cost"])],
        [*heads, "over logged", "95%"],
        rows,
        2,
        "Through the logged texts and at the logged load: `logged` is what ran, all others what "
        "their own path is expected to give. *Revealed* is the share of its steps that text or log "
        "shows.",
    )


def place_name(report: Report, workload: str) -> Span:
    """The name of a workload in titles."""
    if workload != ALL:
        return foreign(workload)
    names = [name for name in report.workloads if name != ALL]
    return foreign(names[0]) if len(names) == 1 else Span(MIX)


def title(report: Report) -> list[str | Span]:
    """What the report is of."""
    names = [part for name in report.policies for part in (", ", code(name))]
    if not names:
        return batched(report, ["Evaluation: the baselines and the oracles"])
    return batched(report, ["Evaluation of ", *names[1:]])


def subject(report: Report) -> Text:
    """What the figures are about, in a line."""
    traces, document = report.document.get("traces", {}), report.document
    models = " with ".join(traces[what] for what in ("target", "drafter") if traces.get(what))
    engine = f"{document['engine']} engine" if "engine" in document else ""
    parts = [f"{sum(report.used.values()):,} recorded requests", models, engine]
    return foreign(", ".join(filter(None, [*parts, f"step times of {document.get('cost')}"])))


def batched(report: Report, title: Sequence[str | Span]) -> list[str | Span]:
    """`title`, with a note if it was in an async engine."""
    is_async = report.document.get("engine") == ASYNC
    return [*title, *[" (async engine)"][:is_async]]


def _by_load(
    report: Report,
    workload: str,
    what: str,
    cell: Callable[[Entry, int], Text],
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
            cells = [cell(entry, load) for load, entry in report.across(workload, name)]
            if any(text != NULL for text in cells):
                rows.append(Row([_name(report, name), *cells], mark))
        groups.append(rows)
    title = batched(report, [f"{what} on ", place_name(report, workload), ", by concurrency"])
    columns = [Column("policy", left=True), *_loads(report)]
    return Table(title, columns, groups, sentence, meanings or {}) if any(groups) else None


def _loads(report: Report) -> list[Column]:
    return [Column(str(load), load=load) for load in report.concurrencies]


def _spare(interval: str) -> list[Span]:
    return [Span(f" {interval}", marks=(Mark.FAINT,), spare=True)] if interval else []


def _name(report: Report, policy: str) -> list[str | Span]:
    return [code(policy), *[f" {SEEN}"][: policy in report.seen]]


def _lift(entry: Entry, *marks: Mark) -> Span:
    """The lift over static:best, marked good or bad if its whole interval is on one side of 0."""
    low, high = entry.get("lift_ci95") or (0.0, 0.0)
    side = [Mark.GOOD] if low > 0 else [Mark.BAD] if high < 0 else []
    lift = entry.get(LIFT)
    return Span(signed_percent(lift), marks=(*marks, *side) if lift is not None else ())


_HeadlineColumn = tuple[Column, Callable[[Entry], Text]]


def _lift_column(name: str, priority: int, interval: bool = False) -> _HeadlineColumn:
    """The lift over a row, with its interval if asked, where there is room for it."""
    key = f"lift_over_{name.replace(':', '_')}"
    column = Column(f"over `{name}`", short_head=name.replace(":", "\n:"), priority=priority)

    def cell(entry: Entry) -> Text:
        lift = signed_percent(entry.get(key))
        ends = signed_range(entry.get(f"{key}_ci95")) if interval else ""
        return [lift, *_spare(ends)] if ends else lift

    return column, cell


def _interval(entry: Entry) -> Text:
    return f"`{OPPONENT}`" if is_winner(entry) else signed_range(entry.get("lift_ci95")) or NULL


_HEADLINE_COLUMNS: tuple[_HeadlineColumn, ...] = (
    (Column("concurrency", short_head="conc."), lambda entry: str(entry["concurrency"])),
    (Column("speedup"), lambda entry: times(entry.get("speedup"))),
    (
        Column(f"over `{OPPONENT}`", short_head=OPPONENT.replace(":", "\n:")),
        lambda entry: Span("=") if is_winner(entry) else _lift(entry, Mark.STRONG),
    ),
    (Column("95% interval", left=True), _interval),
    _lift_column("static:tuned", priority=8),
    _lift_column("static:fresh", priority=9, interval=True),
    _lift_column("static:memory", priority=10, interval=True),
    _lift_column("suffix", priority=11, interval=True),
    _lift_column("static:one", priority=4),
    _lift_column("adaptive:best", priority=5, interval=True),
    _lift_column("hybrid:best", priority=2),
    _lift_column("fixed:best", priority=6, interval=True),
    _lift_column("vllm:best", priority=12, interval=True),
    (Column("gap closed", priority=7), lambda entry: percent(entry.get("gap_closed"))),
    (
        Column("gap closed to `oracle:combine`", short_head="gap to\ncombine", priority=1),
        lambda entry: percent(entry.get("gap_closed_combine")),
    ),
    (
        Column("deciding, of a step", short_head="decid-\ning", priority=3),
        lambda entry: percent(entry.get("decide_share_of_step"), 1),
    ),
)
"""The columns, and the cell of each for the figures of a policy at a concurrency."""

"""A report as GitHub markdown: how to read it, every table, the winners, the plots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adaspec.evaluate.headline import LEAST_GAP
from adaspec.evaluate.render import reliability
from adaspec.evaluate.render.ablations import ABLATED, ablation_lines
from adaspec.evaluate.render.definitions import defined
from adaspec.evaluate.render.results import (
    ALL,
    BASELINES,
    LIFTS,
    OPPONENT,
    Report,
    Results,
    Winner,
    number,
)
from adaspec.evaluate.render.wording import (
    EDGE,
    EDGE_ADVICE,
    NULL,
    SEEN,
    batched,
    decimal,
    facts,
    milliseconds,
    percent,
    plain,
    plain_range,
    requests_left_out,
    requests_used,
    signed_percent,
    signed_range,
    summary,
    times,
)


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture beside report.md: its path from there and what it shows."""

    path: str
    caption: str


_ONE = "static:one"
HOW_TO_READ = (
    "**Speedup** is tokens per second over `none` (no speculation) on the same requests in the "
    "same order, with *concurrency* requests running at once. "
    "**Lift** is speedup over an opponent's, minus 1: `static:best` is the one that counts, the "
    "best of all static settings picked in hindsight on these very requests at that concurrency, "
    "and a lift whose 95% interval holds 0 cannot be told from nothing. "
    "**Gap closed** is how far a policy gets from `fixed:best` (one method, one length) to "
    "`oracle:plan-splice` (perfect foresight): 0% is the first, 100% the second; "
    f"{NULL} where that gap is under {100 * LEAST_GAP:g}% of `none`, too little to take a share of."
)


def report_markdown(report: Report, plots: Sequence[Plot] = ()) -> str:
    """`report` as one markdown page; `plots` are embedded by their relative paths."""
    results = Results(report)
    parts = [_title(results), HOW_TO_READ, _facts(report)]
    if results.main is None:
        parts.append("No rows: nothing was evaluated.")
    if results.has_headline:
        parts.append("## Headline")
        parts += [part for policy in results.policies for part in _headline(results, policy)]
    parts += _rows_shown(results)
    if plots:
        parts += ["## Pictures", *(_picture(plot) for plot in plots)]
    for workload in results.workloads:
        parts += _workload(results, workload)
    if results.has_headline and results.alone:
        parts += ["## Lift over `static:best` on each workload alone", *_lifts_alone(results)]
    parts += _latency(results)
    parts += _calibration(report)
    parts += _ablations(report)
    parts += _winners(results)
    parts += _defaults(report)
    parts += _left_out(report)
    parts += _reproduce(report)
    parts += _legend(results)
    return "\n\n".join(parts) + "\n"


def code(text: object, in_table: bool = False) -> str:
    """`text` as a code span that markdown leaves alone, bars escaped inside a table."""
    content = plain(text)
    longest = max((len(run) for run in _runs_of(content, "`")), default=0)
    fence = "`" * (longest + 1)
    if longest:
        content = f" {content} "
    if in_table:
        content = content.replace("|", "\\|")
    return f"{fence}{content}{fence}"


def prose(text: object) -> str:
    """`text` with markdown's own characters escaped."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#~&@" else c for c in plain(text))


def _runs_of(text: str, character: str) -> list[str]:
    return "".join(c if c == character else " " for c in text).split()


def _title(results: Results) -> str:
    if not results.policies:
        title = "# Evaluation: the baselines and the oracles"
    else:
        title = "# Evaluation of " + ", ".join(code(name) for name in results.policies)
    return batched(results, title)


def _rows_shown(results: Results) -> list[str]:
    meanings, oracles = defined(results)
    if not meanings:
        return []
    table = _table(["row", "is"], [[code(name, True), text] for name, text in meanings], "ll")
    return ["## What each row is", table, *([oracles] if oracles else [])]


def _facts(report: Report) -> str:
    return _table(["", ""], [[label, prose(text)] for label, text in facts(report)], "ll")


def _headline(results: Results, policy: str) -> list[str]:
    workload = results.main
    assert workload is not None
    others = [name for name in LIFTS if name != OPPONENT]
    head = ["concurrency", "speedup", f"over `{OPPONENT}`", "95% interval"]
    head += [f"over `{name}`" for name in others]
    head += ["gap closed", "gap closed to `oracle:combine`", "deciding, of a step"]
    rows = []
    for concurrency in results.concurrencies:
        entry = results.headline(workload, concurrency, policy)
        rows.append(
            [
                str(concurrency),
                times(results.value(workload, concurrency, policy, "speedup")),
                *_over_opponent(results, workload, concurrency, policy),
                *(signed_percent(number(entry.get(LIFTS[name]))) for name in others),
                percent(number(entry.get("gap_closed"))),
                percent(number(entry.get("gap_closed_combine"))),
                percent(number(entry.get("decide_share_of_step")), 1),
            ]
        )
    title = f"### {_name(results, policy)} on {_place(workload, results)}"
    return [title, _markdown_sentence(results, policy), _table(*_without_nulls(head, rows))]


def _markdown_sentence(results: Results, policy: str) -> str:
    return f"{code(policy)} {prose(summary(results, policy).removeprefix(plain(policy)))}"


def _over_opponent(results: Results, workload: str, concurrency: int, policy: str) -> list[str]:
    """The lift over static:best and its interval; said in words where the policy is the winner."""
    if results.is_winner(workload, concurrency, policy):
        return [f"= `{OPPONENT}`", NULL]
    lift = results.lift(workload, concurrency, policy)
    spread = results.lift_interval(workload, concurrency, policy)
    return [
        f"**{signed_percent(lift)}**" if lift is not None else NULL,
        signed_range(spread) or NULL,
    ]


def _without_nulls(
    head: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """The table without the columns that hold nothing; the first two always stay."""
    kept = [at for at in range(len(head)) if at < 2 or any(row[at] != NULL for row in rows)]
    return [head[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _workload(results: Results, workload: str) -> list[str]:
    speed = [
        [
            _name(results, policy, True),
            *(
                " ".join(
                    filter(
                        None,
                        (
                            times(results.value(workload, concurrency, policy, "speedup")),
                            plain_range(results.interval(workload, concurrency, policy)),
                        ),
                    )
                )
                for concurrency in results.concurrencies
            ),
        ]
        for policy in results.order()
    ]
    head = ["policy", *(str(each) for each in results.concurrencies)]
    parts = [
        f"## {_place(workload, results).capitalize() if workload == ALL else prose(workload)}",
        "Speedup over `none` by concurrency, with its 95% interval where one was computed:",
        _table(head, speed, "l"),
    ]
    steps = [
        [_name(results, policy, True), *cells]
        for policy in results.order()
        if (cells := _steps(results, workload, policy))
    ]
    if steps:
        parts.append(
            "Tokens accepted / drafted per request and step, and the share of engine steps that "
            "drafted with the neural drafter:"
        )
        parts.append(_table(head, steps, "l"))
    return parts


def _steps(results: Results, workload: str, policy: str) -> list[str]:
    """`accepted / drafted, share` per concurrency; nothing where none of them was computed."""
    cells = []
    keys = ("accepted_per_step", "drafted_per_step", "neural_steps_share")
    empty = True
    for concurrency in results.concurrencies:
        accepted, drafted, share = (
            results.value(workload, concurrency, policy, key) for key in keys
        )
        empty = empty and (accepted, drafted, share) == (None, None, None)
        cells.append(f"{decimal(accepted)} / {decimal(drafted)}, {percent(share)}")
    return [] if empty else cells


def _lifts_alone(results: Results) -> list[str]:
    parts = []
    head = ["workload", *(str(each) for each in results.concurrencies)]
    for policy in results.policies:
        rows = [
            [
                prose(workload),
                *(
                    _lift_alone(results, workload, concurrency, policy)
                    for concurrency in results.concurrencies
                ),
            ]
            for workload in results.alone
        ]
        if results.has_all:
            worst = [
                number(results.headline(ALL, concurrency, policy).get("worst_workload_lift"))
                for concurrency in results.concurrencies
            ]
            rows.append(["**worst**", *(signed_percent(each) for each in worst)])
        parts += [f"{_name(results, policy)}, by concurrency:", _table(head, rows, "l")]
    return parts


def _lift_alone(results: Results, workload: str, concurrency: int, policy: str) -> str:
    if results.is_winner(workload, concurrency, policy):
        return f"= `{OPPONENT}`"
    lift = signed_percent(results.lift(workload, concurrency, policy))
    return f"{lift} {signed_range(results.lift_interval(workload, concurrency, policy))}".rstrip()


def _latency(results: Results) -> list[str]:
    workload = results.main
    rows = []
    for policy in results.order() if workload is not None else []:
        cells = []
        for concurrency in results.concurrencies:
            latency = results.detail(workload or ALL, concurrency, policy).get("latency_s") or {}
            median, p95 = number(latency.get("median")), number(latency.get("p95"))
            cells.append(f"{milliseconds(median)} / {milliseconds(p95)}")
        if any(cell != f"{NULL} / {NULL}" for cell in cells):
            rows.append([_name(results, policy, True), *cells])
    if not rows or workload is None:
        return []
    return [
        f"## Latency on {_place(workload, results)}",
        "Milliseconds per output token, median / 95th percentile over requests, by concurrency:",
        _table(["policy", *(str(each) for each in results.concurrencies)], rows, "l"),
    ]


def _calibration(report: Report) -> list[str]:
    found = report.get("calibration")
    if not found or not found.get("sources"):
        return []
    table = _table(reliability.HEAD, reliability.calibration_rows(found), "ll")
    parts = ["## Calibration", reliability.EXPLAINED, table]
    heard = reliability.heard_rows(found)
    if heard:
        parts += [reliability.HEARD, _table(reliability.HEARD_HEAD, heard)]
    return parts


def _ablations(report: Report) -> list[str]:
    found = report.get("ablations")
    return ["## Ablations", ABLATED, _table(*ablation_lines(found), "ll")] if found else []


def _winners(results: Results) -> list[str]:
    rows, single = [], []
    for workload in results.workloads:
        for found in results.winners(workload, _ONE)[:1]:
            single.append([prose(workload), _winner(found)])
        for policy in (OPPONENT, *BASELINES):
            if policy == _ONE:
                continue
            won = {
                concurrency: _winner(found)
                for found in results.winners(workload, policy)
                for concurrency in found.concurrencies
            }
            if won:
                cells = (won.get(concurrency, NULL) for concurrency in results.concurrencies)
                rows.append([prose(workload), code(policy, True), *cells])
    if not rows and not single:
        return []
    head = ["workload", "best of", *(str(each) for each in results.concurrencies)]
    return [
        "## The winning settings",
        f"By concurrency. {EDGE} {EDGE_ADVICE}.",
        _table(head, rows, "l" * len(head)),
        f"`{_ONE}`, the same at every concurrency:",
        _table(["workload", "setting"], single, "ll"),
    ]


def _winner(found: Winner) -> str:
    edge = ", ".join(prose(each) for each in found.edge)
    return code(found.spec, True) + (f" {EDGE} {edge}".rstrip() if found.edge else "")


def _defaults(report: Report) -> list[str]:
    defaults = report.get("defaults")
    if not isinstance(defaults, dict) or not defaults:
        return []
    rows = [[code(spec, True), code(text, True)] for spec, text in defaults.items()]
    return ["## What a bare spec means", _table(["spec", "means"], rows, "ll")]


def _left_out(report: Report) -> list[str]:
    used = requests_used(report)
    if not used:
        return []
    reasons = list(requests_left_out(report))
    rows = [
        [
            prose(workload),
            f"{n:,}",
            *(f"{requests_left_out(report, workload).get(why, 0):,}" for why in reasons),
        ]
        for workload, n in used.items()
    ]
    head = ["workload", "used", *(f"left out: {prose(why)}" for why in reasons)]
    return ["## Requests", _table(head, rows, "l")]


def _reproduce(report: Report) -> list[str]:
    lines = []
    if report.get("command"):
        lines.append(f"```\n{plain(report['command']).replace('```', '` ` `')}\n```")
    settings = [
        f"{key} {plain(report[key])}"
        for key in ("seed", "orders", "resamples", "cap", "adaspec")
        if report.get(key) is not None
    ]
    if settings:
        lines.append(prose(", ".join(settings)) + ".")
    return ["## How to make this again", *lines] if lines else []


def _legend(results: Results) -> list[str]:
    lines = [f"{NULL} was not computed."]
    if any(results.seen_in_training(policy) for policy in results.policies):
        lines.append(f"{SEEN} its model trained on requests of this evaluation: not held out.")
    return ["---", "\n".join(lines)]


def _picture(plot: Plot) -> str:
    return f"![{prose(plot.caption)}]({plot.path})\n\n*{prose(plot.caption)}*"


def _name(results: Results, policy: str, in_table: bool = False) -> str:
    return code(policy, in_table) + (f" {SEEN}" if results.seen_in_training(policy) else "")


def _place(workload: str, results: Results) -> str:
    if workload != ALL:
        return prose(workload)
    names = [prose(name) for name in results.workloads if name != ALL]
    return names[0] if len(names) == 1 else "all workloads, mixed"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A table; `align` says l or r per column, further columns are right-aligned."""
    marks = [":--" if align[at : at + 1] == "l" else "--:" for at in range(len(head))]
    lines = [head, marks, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

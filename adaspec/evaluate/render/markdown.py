"""Tables, and with them a report, as GitHub markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adaspec.evaluate.options import ALL, MIN_GAP
from adaspec.evaluate.render import context_tables, result_tables
from adaspec.evaluate.render.report import Report
from adaspec.evaluate.render.table import NULL, Kind, Mark, Span, Table, Text, code, foreign, spans
from adaspec.evaluate.render.wording import plain


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture beside report.md: its path from there and what it shows."""

    path: str
    caption: str


_HOW_TO_READ = (
    "**Speedup** is tokens per second over `none` (no speculation) on the same requests in the "
    "same order, with *concurrency* requests running at once. "
    "**Lift** is speedup over an opponent's, minus 1: `static:best` is the one that counts, the "
    "best of all static settings picked in hindsight on these very requests at that concurrency, "
    "and a lift whose 95% interval holds 0 cannot be told from nothing. "
    "**Gap closed** is how far a policy gets from `fixed:best` (one method, one length) to "
    "`oracle:plan-splice` (perfect foresight): 0% is the first, 100% the second; "
    f"{NULL} where that gap is under {100 * MIN_GAP:g}% of `none`, too little to take a share of."
)


def report_markdown(report: Report, plots: Sequence[Plot] = ()) -> str:
    """`report` as one markdown page; `plots` are embedded by their relative paths."""
    return "\n\n".join(filter(None, _parts(report, plots))) + "\n"


def table_markdown(table: Table | None, level: int = 2) -> str:
    """A table under its title, a heading of that level; nothing for no table."""
    if table is None:
        return ""
    lines = [
        [text_markdown(column.head) for column in table.columns],
        [":--" if column.left else "--:" for column in table.columns],
        *([text_markdown(cell, in_table=True) for cell in row.cells] for row in table.rows),
    ]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    title = f"{'#' * level} {text_markdown(table.title)}" if table.title else ""
    return "\n\n".join(filter(None, (title, text_markdown(table.sentence), rows)))


def text_markdown(text: Text, in_table: bool = False) -> str:
    """A text with all that comes from outside escaped, bars inside a table too."""
    return "".join(_span(span, in_table) for span in spans(text))


def _parts(report: Report, plots: Sequence[Plot]) -> Iterator[str]:
    title = (
        ["Evaluation: the baselines and the oracles"]
        if not report.policies
        else [
            "Evaluation of ",
            *[part for name in report.policies for part in (", ", code(name))][1:],
        ]
    )
    yield f"# {text_markdown(result_tables.batched(report, title))}"
    yield _HOW_TO_READ
    yield table_markdown(context_tables.settings(report))
    judged = report.policies if report.headlines else ()
    if report.main is None:
        yield "No rows: nothing was evaluated."
    elif judged:
        yield "## Headline"
        for policy in judged:
            yield table_markdown(result_tables.headline(report, policy), 3)
    yield table_markdown(context_tables.definitions(report))
    if plots:
        yield "## Pictures"
    for plot in plots:
        caption = text_markdown(foreign(plot.caption))
        yield f"![{caption}]({plot.path})\n\n*{caption}*"
    for workload in report.workloads:
        heading = text_markdown(result_tables.place_name(report, workload))
        yield f"## {heading[0].upper() + heading[1:] if workload == ALL else heading}"
        for describe in (result_tables.speedups, result_tables.steps, result_tables.winners):
            yield table_markdown(describe(report, workload), 3)
    if judged and report.alone:
        yield "## Lift over `static:best` on each workload alone"
        for policy in judged:
            yield table_markdown(result_tables.lifts_alone(report, policy), 3)
    if report.main is not None:
        yield table_markdown(result_tables.latency(report))
    if report.calibration and report.calibration["sources"]:
        for table in result_tables.calibration(report.calibration):
            yield table_markdown(table)
    if report.ablations:
        yield table_markdown(result_tables.ablations(report.ablations))
    yield table_markdown(context_tables.defaults(report))
    yield table_markdown(context_tables.requests(report))
    yield from _how_made(report)
    yield "---"
    yield "\n".join(context_tables.footnotes(report))


def _how_made(report: Report) -> Iterator[str]:
    document = report.document
    keys = ("seed", "orders", "resamples", "cap", "adaspec")
    settings = ", ".join(f"{key} {document[key]}" for key in keys if document.get(key) is not None)
    command = document.get("command")
    if command or settings:
        yield "## How to make this again"
    if command:
        yield f"```\n{plain(command).replace('```', '` ` `')}\n```"
    if settings:
        yield f"{text_markdown(foreign(settings))}."


def _span(span: Span, in_table: bool) -> str:
    if span.kind is Kind.OWN:
        text = span.text
    elif span.kind is Kind.CODE:
        text = _code(span.text, in_table)
    else:
        text = re.sub(r"([\\`*_\[\]<>|#~&@])", r"\\\1", plain(span.text))
    return f"**{text}**" if Mark.STRONG in span.marks else text


def _code(text: str, in_table: bool) -> str:
    """A code span that markdown leaves alone."""
    content = plain(text)
    longest = max(map(len, re.findall("`+", content)), default=0)
    fence = "`" * (longest + 1)
    padded = f" {content} " if longest else content
    return f"{fence}{padded.replace('|', chr(92) + '|') if in_table else padded}{fence}"

"""Reports and their tables as GitHub markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from adaspec.evaluate.options import ALL, MIN_GAP
from adaspec.evaluate.render import tables
from adaspec.evaluate.render.table import (
    NULL,
    Kind,
    Mark,
    Span,
    Table,
    Text,
    foreign,
    plain,
    spans,
)
from adaspec.evaluate.report import Report

HOW_TO_READ = (
    "**Speedup** is tokens per second over `none` (no speculation) on the same requests in the "
    "same order, with *concurrency* requests running at once. "
    "**Lift** is speedup over an opponent's, minus 1: `static:best` is the one that counts, the "
    "best of all static settings picked in hindsight on these very requests at that concurrency, "
    "and a lift whose 95% interval holds 0 cannot be told from nothing. "
    "**Gap closed** is how far a policy gets from `fixed:best` (one method, one length) to "
    "`oracle:plan-splice` (perfect foresight): 0% is the first, 100% the second; "
    f"{NULL} where that gap is under {100 * MIN_GAP:g}% of `none`, too little to take a share of."
)


def report_markdown(report: Report, plots: Sequence[tuple[str, str]] = ()) -> str:
    """`report` as one markdown page; `plots` are relative paths and captions."""
    return "\n\n".join(_parts(report, plots)) + "\n"


def _parts(report: Report, plots: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield f"# {text_markdown(tables.title(report))}"
    yield HOW_TO_READ
    yield table_markdown(tables.settings(report))
    if report.main is None:
        yield "No rows: nothing was evaluated."
    elif report.judged:
        yield "## Headline"
        main = report.main
        yield from _shown(3, *(tables.headline(report, main, name) for name in report.judged))
    yield from _shown(2, tables.definitions(report))
    if plots:
        yield "## Pictures"
    for path, caption in plots:
        shown = text_markdown(foreign(caption))
        yield f"![{shown}]({path})\n\n*{shown}*"
    yield from _results(report)
    yield from _shown(2, tables.defaults(report), tables.requests(report))
    yield from _how_made(report)
    yield "---"
    yield "\n".join(tables.footnotes(report))


def _results(report: Report) -> Iterator[str]:
    for workload in report.workloads:
        name = text_markdown(tables.place_name(report, workload))
        yield f"## {name[:1].upper() + name[1:] if workload == ALL else name}"
        figures = (tables.speedups, tables.steps, tables.winners)
        yield from _shown(3, *(table(report, workload) for table in figures))
    if report.judged and report.alone:
        yield "## Lift over `static:best` on each workload alone"
        yield from _shown(3, *(tables.lifts_alone(report, policy) for policy in report.judged))
    if report.main is not None:
        yield from _shown(2, tables.latency(report, report.main))
    calibration = report.document.get("calibration")
    if calibration and calibration["sources"]:
        yield from _shown(2, *tables.calibration(calibration))


def _how_made(report: Report) -> Iterator[str]:
    document = report.document
    keys = ("seed", "orders", "resamples", "cap", "adaspec")
    settings = ", ".join(f"{key} {document[key]}" for key in keys if key in document)
    command = document.get("command")
    if command or settings:
        yield "## How to make this again"
    if command:
        yield f"```\n{plain(command).replace('```', '` ` `')}\n```"
    if settings:
        yield text_markdown([foreign(settings), "."])


def _shown(level: int, *some: Table | None) -> Iterator[str]:
    """Those tables that there are, under titles of this level."""
    return (table_markdown(table, level) for table in some if table is not None)


def table_markdown(table: Table, level: int = 2) -> str:
    """A table under its title, which is a heading of this level."""
    lines = [
        [text_markdown(column.head) for column in table.columns],
        [":--" if column.left else "--:" for column in table.columns],
        *([_markdown(cell, in_table=True) for cell in row.pieces] for row in table.rows),
    ]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    title = f"{'#' * level} {text_markdown(table.title)}" if table.title else ""
    return "\n\n".join(filter(None, (title, text_markdown(table.sentence), rows)))


def text_markdown(text: Text, in_table: bool = False) -> str:
    """A text in which names and sentences from outside are escaped, in a table also their bars."""
    return _markdown(spans(text), in_table)


def _markdown(pieces: Sequence[Span], in_table: bool) -> str:
    texts = []
    for span in pieces:
        text = span.text
        if span.kind is Kind.CODE:
            text = _code(text, in_table)
        elif span.kind is Kind.FOREIGN:
            text = re.sub(r"([\\`*_\[\]<>|#~&@])", r"\\\1", text)
        texts.append(f"**{text}**" if Mark.STRONG in span.marks else text)
    return "".join(texts)


def _code(content: str, in_table: bool) -> str:
    """A code span with a fence long enough that markdown does not interpret the text."""
    longest = max(map(len, re.findall("`+", content)), default=0)
    fence = "`" * (longest + 1)
    padded = f" {content} " if longest else content
    return f"{fence}{padded.replace('|', chr(92) + '|') if in_table else padded}{fence}"

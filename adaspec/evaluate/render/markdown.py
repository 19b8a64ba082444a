"""Reports and their tables as GitHub markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from adaspec.evaluate.render.page import Element, Heading, Listing, Plot, Section, report_page
from adaspec.evaluate.render.report import Report
from adaspec.evaluate.render.table import Kind, Mark, Span, Table, Text, foreign, plain, spans


def report_markdown(report: Report, plots: Sequence[Plot] = ()) -> str:
    """`report` as one markdown page; `plots` are embedded by their relative paths."""
    return "\n\n".join(map(_element, report_page(report, plots))) + "\n"


def table_markdown(table: Table, level: int = 2) -> str:
    """A table under its title, which is a heading of this level."""
    lines = [
        [text_markdown(column.head) for column in table.columns],
        [":--" if column.left else "--:" for column in table.columns],
        *([text_markdown(cell, in_table=True) for cell in row.cells] for row in table.rows),
    ]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    title = f"{'#' * level} {text_markdown(table.title)}" if table.title else ""
    return "\n\n".join(filter(None, (title, text_markdown(table.sentence), rows)))


def text_markdown(text: Text, in_table: bool = False) -> str:
    """A text in which names and sentences from outside are escaped, in a table also their bars."""
    return "".join(_span(span, in_table) for span in spans(text))


def _element(element: Element) -> str:
    match element:
        case Heading(text, level):
            return f"{'#' * level} {text_markdown(text)}"
        case Section(table, level):
            return table_markdown(table, level)
        case Listing(text):
            return f"```\n{plain(text).replace('```', '` ` `')}\n```"
        case Plot(path, caption):
            shown = text_markdown(foreign(caption))
            return f"![{shown}]({path})\n\n*{shown}*"
        case _:
            return text_markdown(element)


def _span(span: Span, in_table: bool) -> str:
    if span.kind is Kind.OWN:
        text = span.text
    elif span.kind is Kind.CODE:
        text = _code(span.text, in_table)
    else:
        text = re.sub(r"([\\`*_\[\]<>|#~&@])", r"\\\1", plain(span.text))
    return f"**{text}**" if Mark.STRONG in span.marks else text


def _code(text: str, in_table: bool) -> str:
    """A code span with a fence long enough that markdown does not interpret the text."""
    content = plain(text)
    longest = max(map(len, re.findall("`+", content)), default=0)
    fence = "`" * (longest + 1)
    padded = f" {content} " if longest else content
    return f"{fence}{padded.replace('|', chr(92) + '|') if in_table else padded}{fence}"

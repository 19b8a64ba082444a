"""Tables as Markdown, for the cards of policies."""

from __future__ import annotations

import re
from collections.abc import Sequence

from adaspec.evaluate.render.table import Kind, Mark, Span, Table, Text, spans


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


def text_markdown(text: Text) -> str:
    """A text in which names and sentences from outside are escaped."""
    return _markdown(spans(text), in_table=False)


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

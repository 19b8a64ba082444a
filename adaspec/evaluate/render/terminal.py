"""Reports and their tables on the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from adaspec.evaluate.render.contents import Contents
from adaspec.evaluate.render.table import (
    LOOKS,
    Column,
    Kind,
    Mark,
    Span,
    Table,
    Text,
    spans,
    unrepeated,
)

_STYLES = {
    Mark.STRONG: "bold",
    Mark.FAINT: "dim",
    Mark.GOOD: "green",
    Mark.BAD: "red",
    Mark.WARNING: "yellow",
    Mark.LOWEST: "underline",
}
_GAP = 2
"""The number of characters between two columns."""
_MIN_NAME = 20
"""A column of names keeps this many characters before columns are left out or numbers fold."""


def print_contents(contents: Contents, console: Console) -> None:
    """Print the settings, the headline per policy, and the brief ones of the other tables."""
    if contents.settings is not None:
        print_table(contents.settings, console)
    parts = [*contents.headline, *(p for s in contents.sections if s.brief for p in s.parts)]
    if not parts:
        console.print("no rows: nothing was evaluated", style="yellow")
        return
    for part in parts:
        if part.workload is None or part.workload in contents.brief_workloads:
            print_table(part.table, console)
    console.print()
    for note in contents.notes:
        console.print(_text(note), style="dim")


def print_table(table: Table, console: Console) -> None:
    """Print a table without ever cutting a number.

    If the table is too wide, spare text is left out first, then columns, and then lines fold.
    """
    kept, cells = list(range(len(table.columns))), _cells(table, spare=True)
    spare = _width(table, kept, cells) <= console.width
    if not spare:
        cells = _cells(table, spare)
        minor = [(c.priority, at) for at, c in enumerate(table.columns) if c.priority is not None]
        for _, index in sorted(minor):
            if _width(table, kept, cells, names=_MIN_NAME) <= console.width:
                break
            kept.remove(index)
    heads = {index: _head(table.columns[index], cells[index]) for index in kept}
    numbers_fit = _width(table, kept, cells, names=_MIN_NAME) <= console.width
    if not numbers_fit:
        cells = _cells(table, spare, stacked=True)
    names_fit = numbers_fit or _width(table, kept, cells, words=True) <= console.width
    if table.title:
        console.print()
        console.print(_text(table.title), style="bold")
    if table.sentence:
        console.print(_text(table.sentence))
    for mark, meaning in table.meanings.items():
        if any(mark in span.marks for row in table.rows for cell in row.pieces for span in cell):
            console.print(f"{LOOKS[mark]}: {meaning}")
    rich = RichTable(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
        show_header=any(table.columns[index].head for index in kept),
    )
    for index in kept:
        left = table.columns[index].left
        rich.add_column(
            heads[index],
            justify="left" if left else "right",
            overflow="fold",
            no_wrap=not numbers_fit and names_fit if left else numbers_fit,
        )
    rows = zip(*(cells[index] for index in kept), strict=True)
    for group in table.groups:
        for row, shown, texts in zip(group, unrepeated(group), rows, strict=False):
            cells_of_row = zip(kept, texts, strict=True)
            parts = [text if shown[index] else RichText() for index, text in cells_of_row]
            rich.add_row(*parts, style=_STYLES[row.mark] if row.mark else "")
        rich.add_section()
    console.print(rich)
    if len(kept) < len(table.columns):
        left_out = len(table.columns) - len(kept)
        many = f"{left_out} column{'s' * (left_out != 1)} left out"
        console.print(f"{many}: widen the terminal, or see report.html", style="dim")


def _cells(table: Table, spare: bool, stacked: bool = False) -> list[list[RichText]]:
    """The texts of each column."""
    rows = [[_rich(cell, spare, stacked) for cell in row.pieces] for row in table.rows]
    return [[row[index] for row in rows] for index in range(len(table.columns))]


def _width(
    table: Table,
    kept: Sequence[int],
    cells: Sequence[Sequence[RichText]],
    names: int | None = None,
    words: bool = False,
) -> int:
    """The width of a line, if names fold after `names` characters and, with `words`, numbers do."""
    total = -_GAP
    for index in kept:
        column = table.columns[index]
        folds = words and not column.left
        texts = [_head(column, cells[index]), *cells[index]]
        lines = [line for text in texts for line in re.split(r"\s" if folds else "\n", text.plain)]
        widest = max(cell_len(line) for line in lines)
        total += _GAP + (min(widest, names) if column.left and names else widest)
    return total


def _head(column: Column, cells: Sequence[RichText]) -> RichText:
    """A column's head; over numbers it breaks between words if the cells are narrower."""
    head = _text(column.short_head or column.head)
    if column.left or column.short_head or not head.plain:
        return head
    widest = max(cell_len(text.plain) for text in (*cells, *head.split(" ")))
    return RichText("\n".join(textwrap.wrap(head.plain, widest, break_long_words=False)))


def _text(text: Text) -> RichText:
    return _rich(spans(text), spare=True, stacked=False)


def _rich(pieces: Sequence[Span], spare: bool, stacked: bool) -> RichText:
    """A text with its marks; `stacked` puts `a / b` on two lines."""
    rich = RichText()
    for span in pieces:
        if spare or not span.spare:
            words = span.text
            if span.kind is Kind.OWN:
                words = words.replace("`", "")
                words = words.replace(" / ", "\n") if stacked else words
            rich.append(words, style=" ".join(_STYLES[mark] for mark in span.marks))
    return rich

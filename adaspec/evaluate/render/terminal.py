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

from adaspec.evaluate.render.page import summary
from adaspec.evaluate.render.report import Report
from adaspec.evaluate.render.table import Column, Kind, Mark, Table, Text, plain, spans

_STYLES = {
    Mark.STRONG: "bold",
    Mark.FAINT: "dim",
    Mark.GOOD: "green",
    Mark.BAD: "red",
    Mark.WARNING: "yellow",
    Mark.LOWEST: "underline",
}
_LOOKS = {Mark.BAD: "red", Mark.LOWEST: "underlined"}
"""The marks whose meaning a table may have to explain -> how a reader sees them."""
_GAP = 2
"""The number of characters between two columns."""
_MIN_NAME = 20
"""A column of names keeps this many characters before columns are left out or numbers fold."""


def print_report(report: Report, console: Console) -> None:
    """Print the settings, the headline per policy, and the speedups and lifts per workload."""
    tables, notes = summary(report)
    for table in tables:
        print_table(table, console)
    if report.main is None:
        console.print("no rows: nothing was evaluated", style="yellow")
        return
    console.print()
    for note in notes:
        console.print(_text(note), style="dim")


def print_table(table: Table, console: Console) -> None:
    """Print a table without ever cutting a number.

    If the table is too wide, spare text is left out first, then columns, and then lines fold.
    """
    kept, spare = _fitting(table, console.width)
    columns = [table.columns[index] for index in kept]
    if table.title:
        console.print()
        console.print(_text(table.title), style="bold")
    if table.sentence:
        console.print(_text(table.sentence))
    for mark, meaning in table.meanings.items():
        if any(
            mark in span.marks for row in table.rows for cell in row.cells for span in spans(cell)
        ):
            console.print(f"{_LOOKS[mark]}: {meaning}")
    rich = RichTable(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
        show_header=any(column.head for column in columns),
    )
    numbers_fit = _width(table, kept, spare, names=_MIN_NAME) <= console.width
    names_fit = numbers_fit or _width(table, kept, spare, words=True) <= console.width
    for index, column in zip(kept, columns, strict=True):
        rich.add_column(
            _head(column, [_text(row.cells[index], spare) for row in table.rows]),
            justify="left" if column.left else "right",
            overflow="fold",
            no_wrap=not numbers_fit and names_fit if column.left else numbers_fit,
        )
    for group in table.groups:
        above: list[RichText] = []
        for row in group:
            texts = [_text(row.cells[index], spare, not numbers_fit) for index in kept]
            rich.add_row(*_unrepeated(texts, above), style=_STYLES[row.mark] if row.mark else "")
            above = texts
        rich.add_section()
    console.print(rich)
    if len(kept) < len(table.columns):
        left_out = len(table.columns) - len(kept)
        many = f"{left_out} column{'s' * (left_out != 1)} left out"
        console.print(f"{many}: widen the terminal, or see report.md", style="dim")


def _fitting(table: Table, width: int) -> tuple[list[int], bool]:
    """The columns that fit into `width`, and whether spare text fits, too."""
    kept = list(range(len(table.columns)))
    if _width(table, kept, True) <= width:
        return kept, True
    priorities = {index: column.priority for index, column in enumerate(table.columns)}
    minor = [(priority, index) for index, priority in priorities.items() if priority is not None]
    for _, index in sorted(minor):
        if _width(table, kept, False, names=_MIN_NAME) <= width:
            break
        kept.remove(index)
    return kept, False


def _width(
    table: Table,
    kept: Sequence[int],
    spare: bool,
    names: int | None = None,
    words: bool = False,
) -> int:
    """The width of a line, if names fold after `names` characters and, with `words`, numbers do."""
    total = -_GAP
    for index in kept:
        column = table.columns[index]
        folds = words and not column.left
        cells = [_text(row.cells[index], spare, folds) for row in table.rows]
        texts = [_head(column, cells), *cells]
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


def _text(text: Text, spare: bool = True, stacked: bool = False) -> RichText:
    """A text with its marks; `stacked` puts `a / b` on two lines."""
    rich = RichText()
    for span in spans(text):
        if spare or not span.spare:
            is_own_text = span.kind is Kind.OWN
            words = span.text.replace("`", "") if is_own_text else plain(span.text)
            words = words.replace(" / ", "\n") if is_own_text and stacked else words
            rich.append(words, style=" ".join(_STYLES[mark] for mark in span.marks))
    return rich


def _unrepeated(texts: Sequence[RichText], above: Sequence[RichText]) -> list[RichText]:
    """The cells of a row, with the leading ones blank that repeat the row above."""
    shown = list(texts)
    for index, (text, other) in enumerate(zip(texts, above, strict=False)):
        if text != other:
            break
        shown[index] = RichText()
    return shown

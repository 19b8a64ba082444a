"""How every table of the terminal is framed: a title, perhaps a sentence, columns without walls."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def column_table() -> Table:
    """A table with a line under its head and two characters between columns."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)


def print_titled(title: str, table: Table, console: Console, sentence: str = "") -> None:
    """Print a table under its title and, where given, a sentence that says what it shows."""
    console.print()
    console.print(Text(title, style="bold"))
    if sentence:
        console.print(Text(sentence))
    console.print(table)

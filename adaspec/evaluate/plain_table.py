"""Tables of plain text, and how each reads on a terminal and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from adaspec.errors import printable

NULL = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a sentence beneath it, and rows of plain text, which whoever shows it escapes."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1
    """How many columns, from the left, hold names; the others hold figures, aligned right."""
    sentence: str = ""

    def print(self, console: Console) -> None:
        """Show it on a terminal; what is too wide goes on in the next line, and nothing is cut."""
        shown = RichTable(
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            show_edge=False,
            pad_edge=False,
            show_header=any(self.heads),
        )
        for at, head in enumerate(self.heads):
            justify: JustifyMethod = "left" if at < self.names else "right"
            shown.add_column(Text(printable(head)), justify=justify, overflow="fold")
        for row in self.rows:
            shown.add_row(*(Text(printable(cell)) for cell in row))
        for text, style in ((self.title, "bold"), (self.sentence, "")):
            if text:
                console.print(Text(printable(text), style))
        console.print(shown)
        console.print()

    def markdown(self, level: int = 2) -> str:
        """The table as Markdown, under its title as a heading of this level."""
        aligned = [":--" if at < self.names else "--:" for at in range(len(self.heads))]
        lines = [map(_escaped, self.heads), aligned, *(map(_escaped, row) for row in self.rows)]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        title = f"{'#' * level} {_escaped(self.title)}" if self.title else ""
        return "\n\n".join(filter(None, (title, _escaped(self.sentence), rows)))


@dataclass(frozen=True, slots=True)
class Section:
    """Tables under one heading, below the figures that they belong to."""

    title: str
    tables: Sequence[Table]
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By what each shows, its data and layout, as plotly takes them."""


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~&@])", r"\\\1", printable(text))


def decimal(value: float | None, places: int = 2) -> str:
    """A plain number."""
    return NULL if value is None else f"{value:z.{places}f}"


def times(value: float | None, interval: Sequence[float] | None = None) -> str:
    """A speedup: `2.86x`, or `2.86x ±0.04` with its interval."""
    around = f" ±{(interval[1] - interval[0]) / 2:.2f}" if interval else ""
    return NULL if value is None else f"{value:.2f}x{around}"


def lift(value: float | None, interval: Sequence[float] | None = None) -> str:
    """A lift: `+9.5%`, or `+9.5% ±1.4` with its interval."""
    around = f" ±{50 * (interval[1] - interval[0]):.1f}" if interval else ""
    return NULL if value is None else f"{100 * value:+z.1f}%{around}"


def percent(value: float | None, places: int = 0) -> str:
    """A share: `41%`."""
    return NULL if value is None else f"{100 * value:z.{places}f}%"

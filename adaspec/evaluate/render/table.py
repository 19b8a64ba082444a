"""The table model: each table is described once, and `terminal.py` and `markdown.py` show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

NULL = "–"
"""Shown where nothing was computed."""


class Kind(Enum):
    """Where a text comes from, hence what a renderer has to escape."""

    OWN = "own"
    """adaspec's own words, nothing of which needs escaping; `backticks` make code."""
    FOREIGN = "foreign"
    """A name or sentence from outside, shown as it is."""
    CODE = "code"
    """A name from outside, shown as code."""


class Mark(Enum):
    """How a text, or a row, is emphasised."""

    STRONG = "strong"
    FAINT = "faint"
    GOOD = "good"
    BAD = "bad"
    WARNING = "warning"
    LOWEST = "lowest"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text."""

    text: str
    kind: Kind = Kind.OWN
    marks: tuple[Mark, ...] = ()
    spare: bool = False
    """May be left out where there is no room for it."""


Text = str | Span | Sequence[str | Span]
"""A plain string is adaspec's own words."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head and its layout."""

    head: Text = ""
    left: bool = False
    """Names, aligned left and folded where there is no room; figures are right and never folded."""
    short_head: str = ""
    """The head where room is scarce; may have several lines."""
    priority: int | None = None
    """Where there is no room for all columns, the lowest is left out first; None stays."""


@dataclass(frozen=True, slots=True)
class Row:
    """A text per column."""

    cells: Sequence[Text]
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a sentence beneath it, and rows in groups."""

    title: Text
    columns: Sequence[Column]
    groups: Sequence[Sequence[Row]]
    sentence: Text = ""
    meanings: Mapping[Mark, str] = field(default_factory=dict)
    """What a mark means, where that is not obvious."""

    @property
    def rows(self) -> list[Row]:
        """The rows of all groups."""
        return [row for group in self.groups for row in group]

    def without_empty_columns(self) -> Table:
        """The table without optional columns in which nothing was computed."""
        kept = [
            index
            for index, column in enumerate(self.columns)
            if column.priority is None or any(row.cells[index] != NULL for row in self.rows)
        ]
        groups = [
            [Row([row.cells[index] for index in kept], row.mark) for row in group]
            for group in self.groups
        ]
        columns = [self.columns[index] for index in kept]
        return Table(self.title, columns, groups, self.sentence, self.meanings)


def simple_table(
    title: Text,
    heads: Sequence[Text],
    rows: Iterable[Sequence[Text]],
    names: int = 1,
    sentence: Text = "",
) -> Table:
    """One group of rows, whose first `names` columns hold names, and the others figures."""
    columns = [Column(head, left=index < names) for index, head in enumerate(heads)]
    return Table(title, columns, [[Row(cells) for cells in rows]], sentence)


def code(text: object, *marks: Mark) -> Span:
    """A name from outside, as code."""
    return Span(str(text), Kind.CODE, marks)


def foreign(text: object, *marks: Mark) -> Span:
    """A name or sentence from outside."""
    return Span(str(text), Kind.FOREIGN, marks)


def spans(text: Text) -> list[Span]:
    """The pieces of a text."""
    pieces = [text] if isinstance(text, (str, Span)) else text
    return [Span(each) if isinstance(each, str) else each for each in pieces]

"""A table, whoever shows it: described once, and shown by `terminal.py` and by `markdown.py`.

A page of HTML would be one more such module: it has nothing to know but what stands here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

NULL = "–"
"""What stands where nothing was computed."""


class Kind(Enum):
    """Who wrote a text, hence what a renderer has to escape."""

    OURS = "ours"
    """Our own words, nothing of which needs escaping; `backticks` make code."""
    THEIRS = "theirs"
    """A name or sentence from outside, shown as it is."""
    CODE = "code"
    """The same, to be set as code."""


class Mark(Enum):
    """What a text, or a row, is to be recognised by."""

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
    kind: Kind = Kind.OURS
    marks: tuple[Mark, ...] = ()
    spare: bool = False
    """Whether it may be left out where there is no room for it."""


Text = str | Span | Sequence[str | Span]
"""A plain string is of our own words."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head and how it is laid out."""

    head: Text = ""
    left: bool = False
    """Aligned left, and folded where there is no room; else right, and never folded."""
    short_head: str = ""
    """For where room is scarce; may be of several lines."""
    priority: int | None = None
    """Where there is no room for all columns, the lowest goes first; None stays."""


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
    """What a mark says, where that is not plain."""

    @property
    def rows(self) -> list[Row]:
        """The rows of all groups."""
        return [row for group in self.groups for row in group]

    def without_empty_columns(self) -> Table:
        """The same without columns in which nothing was computed; those that always stay, stay."""
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
    """One group of rows, whose first columns, so many, hold names, and the others figures."""
    columns = [Column(head, left=index < names) for index, head in enumerate(heads)]
    return Table(title, columns, [[Row(cells) for cells in rows]], sentence)


def code(text: object, *marks: Mark) -> Span:
    """A name from outside, as code."""
    return Span(str(text), Kind.CODE, marks)


def theirs(text: object, *marks: Mark) -> Span:
    """A name or sentence from outside."""
    return Span(str(text), Kind.THEIRS, marks)


def spans(text: Text) -> list[Span]:
    """The pieces of a text."""
    pieces = [text] if isinstance(text, (str, Span)) else text
    return [Span(each) if isinstance(each, str) else each for each in pieces]

"""The tables that terminal and page show, and the format of their figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

NULL = "–"
"""The text for a figure that was not computed."""


class Kind(Enum):
    """Where a text comes from, which tells a renderer what to escape."""

    OWN = "own"
    """adaspec's own words, which need no escaping; `backticks` make code."""
    FOREIGN = "foreign"
    """A name or sentence from outside, shown as it is."""
    CODE = "code"
    """A name from outside, shown as code."""


class Mark(Enum):
    """How a text or a row is emphasised."""

    STRONG = "strong"
    FAINT = "faint"
    GOOD = "good"
    BAD = "bad"
    WARNING = "warning"
    LOWEST = "lowest"


LOOKS = {Mark.BAD: "red", Mark.LOWEST: "underlined"}
"""The marks whose meaning a table may have to explain -> how a reader sees them."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text."""

    text: str
    kind: Kind = Kind.OWN
    marks: tuple[Mark, ...] = ()
    spare: bool = False
    """Whether the text may be left out if there is no room for it."""


Text = str | Span | Sequence[str | Span]
"""A text; its plain strings are adaspec's own words."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head and its layout."""

    head: Text = ""
    left: bool = False
    """Whether the column has names, aligned left and folded if there is no room.

    Figures are aligned right and are never folded.
    """
    short_head: str = ""
    """The head to use if room is scarce; it may have several lines."""
    priority: int | None = None
    """If there is no room for all columns, the lowest priority goes first; None always stays."""
    load: int | None = None
    """The concurrency that the column is about, if it is about one."""


@dataclass(frozen=True, slots=True)
class Row:
    """A text per column."""

    cells: Sequence[Text]
    mark: Mark | None = None
    load: int | None = None
    """The concurrency that the row is about, if it is about one."""
    pieces: Sequence[Sequence[Span]] = field(init=False)
    """The pieces of each cell, for those who show it."""

    def __post_init__(self) -> None:
        """Take the cells apart once, as they are looked at many times."""
        object.__setattr__(self, "pieces", [spans(cell) for cell in self.cells])


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a sentence beneath it, and rows in groups."""

    title: Text
    columns: Sequence[Column]
    groups: Sequence[Sequence[Row]]
    sentence: Text = ""
    meanings: Mapping[Mark, str] = field(default_factory=dict)
    """Mark -> its meaning, for marks that are not obvious."""

    @property
    def rows(self) -> list[Row]:
        """The rows of all groups."""
        return [row for group in self.groups for row in group]


def simple_table(
    title: Text,
    heads: Sequence[Text],
    rows: Iterable[Sequence[Text]],
    names: int = 1,
    sentence: Text = "",
) -> Table:
    """A table with one group of rows; its first `names` columns have names, the others figures."""
    columns = [Column(head, left=index < names) for index, head in enumerate(heads)]
    return Table(title, columns, [[Row(cells) for cells in rows]], sentence)


def unrepeated(group: Sequence[Row]) -> Iterator[list[Sequence[Span]]]:
    """Each row's cells, the leading ones empty that repeat the row above."""
    above: Sequence[Sequence[Span]] = ()
    for row in group:
        same = 0
        while same < len(above) and row.pieces[same] == above[same]:
            same += 1
        yield [() if at < same else cell for at, cell in enumerate(row.pieces)]
        above = row.pieces


def code(text: object, *marks: Mark) -> Span:
    """A name from outside, as code on one line."""
    return Span(plain(text), Kind.CODE, marks)


def foreign(text: object, *marks: Mark) -> Span:
    """A name or sentence from outside, on one line."""
    return Span(plain(text), Kind.FOREIGN, marks)


def spans(text: Text) -> list[Span]:
    """The pieces of a text."""
    pieces = [text] if isinstance(text, (str, Span)) else text
    return [Span(piece) if isinstance(piece, str) else piece for piece in pieces]


def plain(name: object) -> str:
    """`name` on one line, with ? for unprintable characters, which could control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(str(name).split()))


def decimal(value: float | None, places: int = 2) -> str:
    """A plain number."""
    return NULL if value is None else f"{value:z.{places}f}"


def times(value: float | None) -> str:
    """A speedup: `2.86x`."""
    return NULL if value is None else f"{value:.2f}x"


def signed_percent(value: float | None) -> str:
    """A lift: `+9.5%`."""
    return NULL if value is None else f"{100 * value:+z.1f}%"


def percent(value: float | None, places: int = 0) -> str:
    """A share: `41%`."""
    return NULL if value is None else f"{100 * value:z.{places}f}%"


def signed_range(value: Sequence[float] | None) -> str:
    """A lift's interval in percent: `[+8.1, +10.9]`; empty if there is none."""
    return "" if value is None else f"[{100 * value[0]:+z.1f}, {100 * value[1]:+z.1f}]"


def plain_range(value: Sequence[float] | None) -> str:
    """A speedup's interval: `[2.81, 2.90]`; empty if there is none."""
    return "" if value is None else f"[{value[0]:.2f}, {value[1]:.2f}]"


def milliseconds(value_s: float | None) -> str:
    """Seconds, written in milliseconds."""
    return NULL if value_s is None else f"{1e3 * value_s:.2f}"


def short(name: str, width: int) -> str:
    """`name` cut in its middle to `width` characters."""
    text = plain(name)
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[-(width - 1 - head) :]}"

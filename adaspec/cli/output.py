"""What commands print: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from adaspec.documents import json_types

if TYPE_CHECKING:
    from adaspec.evaluate.report import EvaluationReport
    from adaspec.places import Place

PIPE_WIDTH = 100
"""Columns that tables are laid out for where no terminal says how many there are."""

PATIENCE_S = 1.0
"""How long work may last before a progress bar appears."""
_UNPRINTABLE = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that JSON allows unescaped though they steer terminals, or cannot be written."""


class _PlainPipeConsole(Console):
    """A console that leaves a broken pipe to the command line's `run`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def results() -> Console:
    """A console on standard output, for tables that people read; a pipe gets their full width."""
    console = _PlainPipeConsole(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def remarks() -> Console:
    """A console on standard error, for whatever is not the result."""
    return _PlainPipeConsole(stderr=True, highlight=False)


def printable(text: str) -> str:
    """The text without what would steer a terminal: names come from whoever made the file."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def print_json(document: object) -> None:
    """Write a document to standard output as strict JSON: NaN and infinities become null.

    What would steer a terminal, or is no text, is escaped as JSON may have it.
    """
    text = json.dumps(json_types(document), indent=2, allow_nan=False, ensure_ascii=False)
    print(_UNPRINTABLE.sub(lambda sign: json.dumps(sign[0])[1:-1], text))


def add_columns(table: Table, *heads: str) -> None:
    """Add columns of figures, aligned right."""
    for head in heads:
        table.add_column(head, justify="right")


def add_sections(table: Table, rows: Iterable[Sequence[str]]) -> None:
    """Add rows, with a line wherever the first cell changes."""
    first = None
    for row in rows:
        if first not in (None, row[0]):
            table.add_section()
        first = row[0]
        table.add_row(*row)


def print_lines(console: Console, *lines: str) -> None:
    """Print lines as they are, however long, but for what would steer a terminal."""
    for line in lines:
        console.print(printable(line), soft_wrap=True, markup=False)


def publish(report: EvaluationReport, place: Place | None, as_json: bool) -> None:
    """Add the command to a report, write its folder where there is one to write, and print it."""
    report.document["command"] = shlex.join(["adaspec", *sys.argv[1:]])
    if place is not None:
        with ProgressBar() as bar:
            report.write(place, progress=bar)
    if as_json:
        print_json(report.document)
    else:
        report.print(results())
    if place is not None:
        click.echo(f"report written to {place.path}", err=True)


class ProgressBar:
    """A bar on standard error, on a terminal only, and only once work has taken over a second.

    Inside the `with`, call it as `bar(stage, done, total)`; each stage gets a line of its own.
    """

    def __init__(self, console: Console | None = None, patience_s: float = PATIENCE_S) -> None:
        self._console = console if console is not None else remarks()
        self._shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._stages: dict[str, TaskID] = {}
        self._patience_s = patience_s
        self._entered_s = math.inf
        self._started = False

    def __enter__(self) -> Self:
        self._entered_s = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._started:
            self._shown.stop()

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Say that `done` of `total` are through in this stage."""
        if not self._console.is_terminal:
            return
        if stage not in self._stages:
            self._stages[stage] = self._shown.add_task(stage, total=total)
        self._shown.update(self._stages[stage], completed=done, total=total)
        if not self._started and time.monotonic() - self._entered_s >= self._patience_s:
            self._shown.start()
            self._started = True

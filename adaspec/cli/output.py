"""Print results to standard output, and everything else to standard error."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from adaspec.documents import json_types

if TYPE_CHECKING:
    from pathlib import Path

    from adaspec.evaluate.report_folder import EvaluationReport

PIPE_WIDTH = 100
"""The width of tables in characters if no terminal tells its width."""

_STEPS_SHOWN = 8
"""About so many steps of a cost model's table."""
_COST_COLUMNS: tuple[JustifyMethod, ...] = ("left", "right", "left")

PATIENCE_S = 1.0
"""The time that work may take before a progress bar appears."""
_UNPRINTABLE = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that JSON allows unescaped, but that control terminals or cannot be written."""


class _PlainPipeConsole(Console):
    """A console that leaves a broken pipe to `run` in `adaspec.cli.main`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def results() -> Console:
    """A console on standard output, for tables; in a pipe it is `PIPE_WIDTH` wide."""
    console = _PlainPipeConsole(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def remarks() -> Console:
    """A console on standard error, for everything except results."""
    return _PlainPipeConsole(stderr=True, highlight=False)


def printable(text: str) -> str:
    """The text with ? for characters that could control a terminal, as names in files may have."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def print_json(document: object) -> None:
    """Write a document to standard output as strict JSON: NaN and infinities become null.

    Characters that could control a terminal, or that cannot be encoded, are escaped.
    """
    text = json.dumps(json_types(document), indent=2, allow_nan=False, ensure_ascii=False)
    print(_UNPRINTABLE.sub(lambda sign: json.dumps(sign[0])[1:-1], text))


def cost_table(cost: Mapping[str, Any], fit: Mapping[str, Any] | None) -> Table:
    """A cost model's times, each with what its fit says of it."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for justify in _COST_COLUMNS:
        table.add_column(justify=justify)
    known = fit or {"standard_errors_s": {}, "not_identified": {}, "at_zero": ()}
    steps = list(zip(cost["tokens"], cost["seconds"], strict=True))
    for size, seconds in steps[:: max(1, len(steps) // _STEPS_SHOWN)]:
        table.add_row(f"a step of {size:,} tokens", f"{1e3 * seconds:.4g} ms", "")
    times = {name: value for name, value in cost.items() if isinstance(value, int | float)}
    for engine in ("sync", "async"):
        for name, value in cost.get(engine, {}).items():
            times[f"{engine} {name}"] = value
    of_fit = (*known["standard_errors_s"], *known["not_identified"], *known["at_zero"])
    for name in dict.fromkeys((*times, *of_fit)):
        remark = "no step took more for it" if name in known["at_zero"] else ""
        if name in known["standard_errors_s"]:
            remark = f"+- {known['standard_errors_s'][name]:.2g}"
        if name in known["not_identified"]:
            remark = f"not identified: {known['not_identified'][name]}"
        shown = f"{times[name]:.6g}" if name in times else "in the steps"
        table.add_row(name, shown, escape(printable(remark)))
    if fit is not None:
        table.add_row(
            "held-out error",
            f"{fit['mean_error']:.1%}",
            f"median {fit['median_error']:.1%}, 95th percentile {fit['p95_error']:.1%},"
            f" {fit['held_out_points']} of {fit['points']} points",
        )
    return table


def print_lines(console: Console, *lines: str) -> None:
    """Print lines without folding them, with ? for characters that could control a terminal."""
    for line in lines:
        console.print(printable(line), soft_wrap=True, markup=False)


def publish(report: EvaluationReport, out: Path | None, force: bool, as_json: bool) -> None:
    """Add the command line to a report, write its folder if it shall have one, and print it."""
    report.document["command"] = shlex.join(["adaspec", *sys.argv[1:]])
    if out is not None:
        report.write(out, force)
    if as_json:
        print_json(report.document)
    else:
        report.print(results())
    if out is not None:
        click.echo(f"report written to {out}", err=True)


class ProgressBar:
    """A progress bar on standard error, shown only on a terminal and after a second of work.

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
        """Show that `done` of `total` are finished in this stage."""
        if not self._console.is_terminal:
            return
        if stage not in self._stages:
            self._stages[stage] = self._shown.add_task(stage, total=total)
        self._shown.update(self._stages[stage], completed=done, total=total)
        if not self._started and time.monotonic() - self._entered_s >= self._patience_s:
            self._started = True  # before it is: an interrupt may come while it starts
            self._shown.start()

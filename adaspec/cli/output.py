"""Print results to standard output, and everything else to standard error."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from adaspec.errors import printable
from adaspec.evaluate.plain_table import NULL, Table
from adaspec.records import json_types

if TYPE_CHECKING:
    from pathlib import Path

    from adaspec.evaluate.report import EvaluationReport

PIPE_WIDTH = 100
"""The width of tables in characters if no terminal tells its width."""
LINE_PERIOD_S = 30.0
"""So often progress is told where no terminal shows a bar."""


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


def say(line: str) -> None:
    """Write a line to standard output, with ? for what could control a terminal."""
    click.echo(printable(line))


def remark(line: str) -> None:
    """The same to standard error, for everything except results."""
    click.echo(printable(line), err=True)


def print_json(document: object) -> None:
    """Write a document as strict JSON, in ASCII, which controls no terminal."""
    print(json.dumps(json_types(document), indent=2, allow_nan=False))


def print_cost(cost: Mapping[str, Any], fit: Mapping[str, Any] | None) -> None:
    """Show a cost model's times, each with what its fit says of it."""
    unknown = fit["not_identified"] if fit is not None else {}
    steps = list(zip(cost["tokens"], cost["seconds"], strict=True))
    rows = [[name, cost[name] or NULL, ""] for name in ("name", "target", "hardware")]
    rows += [
        [f"a step of {size:,} tokens", f"{1e3 * seconds:.4g} ms", ""]
        for size, seconds in steps[:: max(1, len(steps) // 8)]
    ]
    times = {name: value for name, value in cost.items() if isinstance(value, int | float)}
    for name in dict.fromkeys((*times, *unknown)):
        why = f"not identified: {unknown[name]}" if name in unknown else ""
        rows.append([name, f"{times[name]:.6g}" if name in times else "in the steps", why])
    if fit is not None:
        said = (
            f"median {fit['median_error']:.1%}, 95th percentile {fit['p95_error']:.1%},"
            f" {fit['held_out_points']} of {fit['points']} points"
        )
        rows.append(["held-out error", f"{fit['mean_error']:.1%}", said])
    Table("", [""] * 3, rows, 1).print(results())


def publish(
    report: EvaluationReport, out: Path | None, force: bool, as_json: bool, latency: bool = False
) -> None:
    """Add the command line to a report, write its folder if it shall have one, and print it."""
    report.document["command"] = shlex.join(["adaspec", *sys.argv[1:]])
    try:
        if out is not None:
            report.write(out, force)
    finally:  # what took an hour is shown, too, where another has made that folder meanwhile
        if as_json:
            print_json(report.document)
        else:
            report.print(results(), latency)
    if out is not None:
        remark(f"report written to {out}")


class ProgressBar(Progress):
    """A progress bar on standard error; where that is no terminal, a line every half minute."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        shown = console or _PlainPipeConsole(stderr=True, highlight=False)
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            console=shown,
            transient=True,
            disable=not shown.is_terminal,
        )
        self._stages: dict[str, TaskID] = {}
        self._clock, self._began_s, self._printed_s = clock, clock(), clock()

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Show that `done` of `total` are finished in this stage."""
        if stage not in self._stages:
            self._stages[stage] = self.add_task(stage, total=total)
        self.update(self._stages[stage], completed=done, total=total)
        now_s = self._clock()
        if self.disable and now_s - self._printed_s >= LINE_PERIOD_S:
            self._printed_s = now_s
            minutes, seconds = divmod(int(now_s - self._began_s), 60)
            told = f"{stage} {done:.0f}/{total:.0f} after {minutes}:{seconds:02}"
            self.console.print(told, markup=False)

"""How a report becomes a folder, a table or JSON."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from adaspec.cli.output import ProgressBar, print_json, results
from adaspec.evaluate.report import EvaluationReport
from adaspec.places import Place


def finish(report: EvaluationReport, place: Place | None, bar: ProgressBar) -> None:
    """Add the command that made the report, and write its folder where one is wanted."""
    report.document["command"] = shlex.join(["adaspec", *sys.argv[1:]])
    if place is not None:
        report.write(place, progress=bar)


def show(report: EvaluationReport, out: Path | None, as_json: bool) -> None:
    """The report on standard output, as a table or for machines, and where its folder is."""
    if as_json:
        print_json(report.document)
    else:
        from adaspec.evaluate.render.table import print_report

        print_report(report.document, results())
    if out is not None:
        click.echo(f"report written to {out}", err=True)

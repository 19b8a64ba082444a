"""From an evaluation to what its user gets: a folder, and a table or JSON."""

from __future__ import annotations

import shlex
import sys

import click

from adaspec.cli.output import ProgressBar, print_json, results
from adaspec.evaluate.report import EvaluationReport
from adaspec.places import Place


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

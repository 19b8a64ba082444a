"""What every command adds to a report, and how it becomes a folder or a table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from adaspec.cli.output import ProgressBar, print_json, results
from adaspec.cost.model import CostModel

if TYPE_CHECKING:
    from adaspec.places import Place
    from adaspec.trace.schema import Request


def annotate(report: dict[str, Any], cost: CostModel | None) -> None:
    """Add how it was made; `cost` is None where a protocol brought its own."""
    report["keep_alive_forwards"] = None if cost is None else cost.keep_alive_forwards
    source = click.get_current_context().get_parameter_source("cost")
    if cost is not None and source is ParameterSource.DEFAULT:
        report["notes"].append(
            f"costs are the builtin '{cost.name}' ({cost.hardware}), since --cost was not "
            "given: another machine has other winners"
        )
    measured, traced = getattr(cost, "target", None), report["traces"]["target"]
    given = cost is not None and source is not ParameterSource.DEFAULT
    # A folder and a hub id may mean one model: the last word is what they share.
    if given and measured and traced and _last_word(measured) != _last_word(traced):
        report["notes"].append(
            f"the costs were measured with {measured}, the traces' target is {traced}: its steps "
            "take another time"
        )
    report["command"] = shlex.join(["adaspec", *sys.argv[1:]])


def _last_word(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2].lower()


def write_folder(
    report: dict[str, Any], requests: Sequence[Request], place: Place, bar: ProgressBar
) -> None:
    """The report's folder, with the figures of the trace."""
    from adaspec.evaluate.acceptance import ngram_accepted
    from adaspec.evaluate.render.acceptance import acceptance
    from adaspec.evaluate.render.write import write_report

    ngram = {(r.workload, r.id): ngram_accepted(r) for r in requests}
    write_report(
        report,
        acceptance(requests, ngram),
        place,
        progress=lambda done, total: bar("plots", done, total),
    )


def show(report: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """The report on standard output, as a table or for machines, and where its folder is."""
    if as_json:
        print_json(report)
    else:
        from adaspec.evaluate.render.table import print_report

        print_report(report, results())
    if out is not None:
        click.echo(f"report written to {out}", err=True)

"""From an evaluation's document to what its user gets: a folder, and a table or JSON."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from adaspec.cli.output import ProgressBar, print_json, results
from adaspec.cost.model import CostModel

if TYPE_CHECKING:
    from adaspec.places import Place
    from adaspec.trace.schema import Request


def publish(
    document: dict[str, Any],
    cost: CostModel | None,
    requests: Sequence[Request],
    place: Place | None,
    as_json: bool,
) -> None:
    """Complete a report's document, write its folder where there is one to write, and print it.

    `cost` is None where a protocol brought its own.
    """
    from adaspec.evaluate.acceptance import ngram_accepted
    from adaspec.evaluate.render.acceptance import acceptance
    from adaspec.evaluate.render.report import parse_report
    from adaspec.evaluate.render.terminal import print_report
    from adaspec.evaluate.render.write import write_report

    document["keep_alive_forwards"] = None if cost is None else cost.keep_alive_forwards
    document["notes"] += _notes(cost, document["traces"]["target"])
    document["command"] = shlex.join(["adaspec", *sys.argv[1:]])
    report = parse_report(document)
    if place is not None:
        ngram = {(each.workload, each.id): ngram_accepted(each) for each in requests}
        counts = acceptance(requests, ngram)
        with ProgressBar() as bar:
            write_report(report, counts, place, progress=lambda *done: bar("plots", *done))
    if as_json:
        print_json(document)
    else:
        print_report(report, results())
    if place is not None:
        click.echo(f"report written to {place.path}", err=True)


def _notes(cost: CostModel | None, target: str | None) -> Iterator[str]:
    """What a reader has to know of the costs."""
    if cost is None:
        return
    if click.get_current_context().get_parameter_source("cost") is ParameterSource.DEFAULT:
        yield (
            f"costs are the builtin '{cost.name}' ({cost.hardware}), since --cost was not given: "
            "another machine has other winners"
        )
    # A folder and a hub id may mean one model: the last word is what they share.
    elif cost.target and target and _last_word(cost.target) != _last_word(target):
        yield (
            f"the costs were measured with {cost.target}, the traces' target is {target}: its "
            "steps take another time"
        )


def _last_word(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2].lower()

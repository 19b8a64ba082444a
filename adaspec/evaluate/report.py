"""What an evaluation found: its document, which is also a table and a folder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaspec.arguments import AnyPath, path_of, truth
from adaspec.cost.model import CostModel
from adaspec.errors import EvaluationError
from adaspec.evaluate.acceptance import ngram_accepted
from adaspec.evaluate.options import Progress, silent
from adaspec.places import Place
from adaspec.trace.schema import Request

if TYPE_CHECKING:
    from rich.console import Console


class EvaluationReport:
    """A report's document, and the requests that it is about; `print` shows it as a table."""

    def __init__(self, document: dict[str, Any], requests: Sequence[Request]) -> None:
        self.document = document
        """All of it, as `report.json` holds it."""
        self.requests = requests

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One per workload ('all' is their mix), concurrency and policy, baselines included."""
        return list(self.document["rows"])

    @property
    def headline(self) -> list[dict[str, Any]]:
        """How far ahead every policy is that was asked for, per workload and concurrency."""
        return list(self.document["headline"])

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures should know."""
        return list(self.document["notes"])

    def to_json(self) -> str:
        """The document as strict JSON."""
        from adaspec.evaluate.render.write import strict_json

        return strict_json(self.document)

    def write(
        self, folder: AnyPath | Place, force: bool = False, progress: Progress = silent
    ) -> Path:
        """Write report.json, report.md and plots to `folder`, all or nothing.

        `force` replaces a report that is there already, and nothing else. A place that was checked
        before is written to only as it was then.
        """
        from adaspec.evaluate.render.acceptance import acceptance
        from adaspec.evaluate.render.report import parse_report
        from adaspec.evaluate.render.write import check_destination, write_report

        if isinstance(folder, Place):
            place = folder
        else:
            path = path_of(folder, "folder", EvaluationError)
            place = check_destination(path, truth(force, "force", EvaluationError))
        ngram = {(each.workload, each.id): ngram_accepted(each) for each in self.requests}
        write_report(
            parse_report(self.document),
            acceptance(self.requests, ngram),
            place,
            progress=lambda done, total: progress("plots", done, total),
        )
        return place.path

    def print(self, console: Console) -> None:
        """Show it as tables, as wide as the console is."""
        from adaspec.evaluate.render.report import parse_report
        from adaspec.evaluate.render.terminal import print_report

        print_report(parse_report(self.document), console)

    def __str__(self) -> str:
        from rich.console import Console

        page = io.StringIO()
        self.print(Console(file=page, width=100, highlight=False))
        return page.getvalue()


def note_costs(document: dict[str, Any], cost: CostModel | None, given: bool) -> None:
    """Add what steps were charged with; `cost` is None where a protocol brought its own."""
    document["keep_alive_forwards"] = None if cost is None else cost.keep_alive_forwards
    if cost is None:
        return
    if not given:
        document["notes"].append(
            f"costs are the builtin '{cost.name}' ({cost.hardware}), since --cost was not "
            "given: another machine has other winners"
        )
        return
    traced = document["traces"]["target"]
    # A folder and a hub id may mean one model: the last word is what they share.
    if cost.target and traced and _last_word(cost.target) != _last_word(traced):
        document["notes"].append(
            f"the costs were measured with {cost.target}, the traces' target is {traced}: its "
            "steps take another time"
        )


def _last_word(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2].lower()

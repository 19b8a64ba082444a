"""The result of an evaluation as a user has it: its rows, its text, its page and its folder."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaspec.documents import json_types
from adaspec.errors import EvaluationError
from adaspec.evaluate.render.contents import Contents, contents_of, contents_of_log
from adaspec.evaluate.report import Report
from adaspec.files import AnyPath, Kind, check_folder, new_folder

if TYPE_CHECKING:
    from rich.console import Console

    from adaspec.evaluate.render.figures import Figure

REPORT, PAGE = "report.json", "report.html"


class EvaluationReport:
    """A report's document; `print` shows it as tables, `page` as one HTML page."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        """The whole report, as `report.json` holds it."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row per workload ('all' is their mix), concurrency and policy, baselines included."""
        return list(self.document["rows"])

    @property
    def headline(self) -> list[dict[str, Any]]:
        """The lifts of every named policy, per workload and concurrency."""
        return list(self.document["headline"])

    @property
    def notes(self) -> list[str]:
        """Notes that a reader of the figures should know."""
        return list(self.document["notes"])

    def to_json(self) -> str:
        """The document as strict JSON, a row a line."""
        parts = []
        for key, value in json_types(self.document).items():
            text = json.dumps(value, allow_nan=False)
            if isinstance(value, list) and any(isinstance(row, dict) for row in value):
                rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in value)
                text = f"[\n  {rows}\n ]"
            parts.append(f" {json.dumps(key)}: {text}")
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def write(self, folder: AnyPath, force: bool = False) -> Path:
        """Write report.json and report.html to `folder`, all or nothing.

        `force` replaces an existing report, and nothing else.
        """
        path = Path(folder)
        with new_folder(path, _KIND, force) as staged:
            (staged / REPORT).write_text(self.to_json(), encoding="utf-8")
            (staged / PAGE).write_text(self.page(), encoding="utf-8")
        return path

    def page(self) -> str:
        """The report as one HTML page that opens without a network."""
        # Imported here because jinja2 and plotly's bundle take a moment to load.
        from adaspec.evaluate.render.page import page

        return page(self.contents(), self.figures())

    def print(self, console: Console) -> None:
        """Show the report as tables, as wide as the console is."""
        from adaspec.evaluate.render.terminal import print_contents

        print_contents(self.contents(), console)

    def contents(self) -> Contents:
        """The tables that both show."""
        if self._is_of_log:
            return contents_of_log(self.document)
        return contents_of(Report(self.document))

    def figures(self) -> list[Figure]:
        """The figures of the page; none on logged traces, of which a few rows say it all."""
        from adaspec.evaluate.render.figures import figures_of

        return [] if self._is_of_log else figures_of(Report(self.document))

    @property
    def _is_of_log(self) -> bool:
        return self.document.get("kind") == "logged"

    def __str__(self) -> str:
        from rich.console import Console

        page = io.StringIO()
        self.print(Console(file=page, width=100, highlight=False))
        return page.getvalue()


def check_destination(folder: Path, force: bool = False) -> None:
    """Raise an EvaluationError if no report can be written to `folder`.

    Call it before a long evaluation. With `force`, a folder is replaced only if it has a
    report.json and nothing that does not belong to a report.
    """
    check_folder(folder, _KIND, force)


_KIND = Kind("a report", REPORT, {REPORT, PAGE}.__contains__, EvaluationError)

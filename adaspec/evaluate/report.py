"""The result of an evaluation as a user has it: its rows, its tables, its page and its folder."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from adaspec.errors import EvaluationError
from adaspec.evaluate import tables
from adaspec.evaluate.options import ALL
from adaspec.evaluate.plain_table import Section
from adaspec.files import AnyPath, Kind, new_folder
from adaspec.records import json_types

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
        """Write report.json and report.html, all or nothing; `force` replaces a report alone."""
        path = Path(folder)
        with new_folder(path, KIND, force) as staged:
            (staged / REPORT).write_text(self.to_json(), encoding="utf-8")
            (staged / PAGE).write_text(self.page(), encoding="utf-8", errors="replace")
        return path

    def page(self) -> str:
        """The report as one HTML page that opens without a network."""
        # Imported here because jinja2 and plotly's bundle take a moment to load.
        from adaspec.evaluate.page import figures, page

        report = tables.Figures(self.document)
        judged = ", ".join(report.judged or ("the baselines and the oracles",))
        return page(
            f"Evaluation of {judged}",
            _sections(report, report.workloads, True, lambda workload: figures(report, workload)),
            tables.settings(report),
            [tables.how_to_read(self.document)],
            self.document.get("command", ""),
        )

    def print(self, console: Console, latency: bool = False) -> None:
        """Show the tables of the mix and the leads on each workload, as wide as the console is.

        Latencies are among them where they are asked for, or have a goal.
        """
        report = tables.Figures(self.document)
        shown = [ALL] if ALL in report.workloads else report.workloads
        tables.settings(report).print(console)
        if not report.entries:
            console.print("no rows: nothing was evaluated", style="yellow")
        latency |= self.document.get("arrivals") is not None
        for section in _sections(report, shown, latency):
            for table in section.tables:
                table.print(console)

    def __str__(self) -> str:
        page = io.StringIO()
        self.print(Console(file=page, width=100, highlight=False))
        return page.getvalue()


def _sections(
    report: tables.Figures,
    workloads: Sequence[str],
    latency: bool,
    figures: Callable[[str], dict[str, Any]] = lambda workload: {},
) -> list[Section]:
    """The tables, of these workloads and of all together, under their headings."""
    sections = []
    for workload in workloads:
        some = [tables.headline(report, workload, policy) for policy in report.judged]
        some += [tables.speedups(report, workload), tables.winners(report, workload)]
        if latency:
            some[-1:-1] = tables.latencies(report, workload)
        shown = [table for table in some if table.rows]
        sections.append(Section(report.place(workload), shown, figures(workload)))
    if report.judged and len(report.workloads) > 2:
        alone = [tables.lifts_alone(report, policy) for policy in report.judged]
        sections.insert(1, Section("Each workload alone", alone))
    if judged := report.document.get("calibration"):
        sections.append(Section("Calibration", [tables.calibration(judged)]))
    return sections


KIND = Kind("a report", REPORT, {REPORT, PAGE}.__contains__, EvaluationError)

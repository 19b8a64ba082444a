"""The result of an evaluation as a user has it: its rows, its text, and its folder."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaspec.documents import json_types
from adaspec.errors import EvaluationError
from adaspec.evaluate.options import Progress, silent
from adaspec.evaluate.report import Report
from adaspec.files import AnyPath, Kind, check_folder, new_folder
from adaspec.trace.schema import Request

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from adaspec.evaluate.observation import Observations
    from adaspec.evaluate.vocabulary import TextOf

log = logging.getLogger("adaspec")


class EvaluationReport:
    """A report's document and the requests that were evaluated; `print` shows it as tables."""

    def __init__(
        self,
        document: dict[str, Any],
        requests: Sequence[Request],
        observe: Callable[[Progress], Observations] | None = None,
        text_of: Callable[[], TextOf | None] | None = None,
    ) -> None:
        """`observe` replays the steps that report.html shows, as the report is written.

        `text_of` then finds what tells their tokens' text.
        """
        self.document = document
        """The whole report, as `report.json` holds it."""
        self.requests = requests
        self._observe, self._text_of = observe, text_of

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
        """The document as strict JSON."""
        return json.dumps(json_types(self.document), allow_nan=False, indent=1) + "\n"

    def write(self, folder: AnyPath, force: bool = False, progress: Progress = silent) -> Path:
        """Write report.json, report.md, report.html and plots to `folder`, all or nothing.

        `force` replaces an existing report, and nothing else.
        """
        path = Path(folder)
        with new_folder(path, _KIND, force) as staged:
            self._fill(staged, progress)
        return path

    def print(self, console: Console) -> None:
        """Show the report as tables, as wide as the console is."""
        from adaspec.evaluate.render.terminal import print_report

        print_report(Report(self.document), console)

    def __str__(self) -> str:
        from rich.console import Console

        page = io.StringIO()
        self.print(Console(file=page, width=100, highlight=False))
        return page.getvalue()

    def _fill(self, folder: Path, progress: Progress) -> None:
        # Imported here because matplotlib is slow to load.
        from adaspec.evaluate.acceptance import acceptance
        from adaspec.evaluate.render.markdown import report_markdown
        from adaspec.evaluate.render.report_plots import REPORT_PLOTS
        from adaspec.evaluate.render.trace_plots import TRACE_PLOTS

        (folder / "report.json").write_text(self.to_json(), encoding="utf-8")
        (folder / "plots").mkdir()
        report, requests = Report(self.document), acceptance(self.requests)
        drawings: list[tuple[str, str, Callable[[Any], Figure | None], Any]] = [
            *((name, *each, report) for name, each in REPORT_PLOTS.items()),
            *((name, *each, requests) for name, each in TRACE_PLOTS.items()),
        ]
        plots = []
        for done, (name, caption, draw, data) in enumerate(drawings, start=1):
            figure, path = draw(data), f"plots/{name}.png"
            if figure is not None:
                with warnings.catch_warnings():  # a name may be in a script that the font lacks
                    warnings.filterwarnings("ignore", message="Glyph .* missing")
                    figure.savefig(folder / path, format="png", metadata={"Software": None})
                plots.append((path, caption))
            progress("plots", done, len(drawings))
        if not plots:
            (folder / "plots").rmdir()
        self._fill_html(folder, report, progress)
        (folder / "report.md").write_text(report_markdown(report, plots), encoding="utf-8")

    def _fill_html(self, folder: Path, report: Report, progress: Progress) -> None:
        try:
            from plotly.offline import get_plotlyjs
        except ImportError:
            log.warning("report.html was left out, as it needs plotly: pip install plotly")
            return
        from adaspec.evaluate.render.html import report_html

        observations = None if self._observe is None else self._observe(progress)
        text_of = None if self._text_of is None else self._text_of()
        page = report_html(report, observations, get_plotlyjs(), text_of)
        path = folder / "report.html"
        path.touch(mode=0o600)  # as a trace's files: some of its requests stand in it
        path.write_text(page, encoding="utf-8")


def check_destination(folder: Path, force: bool = False) -> None:
    """Raise an EvaluationError if no report can be written to `folder`.

    Call it before a long evaluation. With `force`, a folder is replaced only if it has a
    report.json and nothing that does not belong to a report.
    """
    check_folder(folder, _KIND, force)


def _belongs_to_report(name: str) -> bool:
    return name in {"report.json", "report.md", "report.html", "plots"} or (
        name.startswith("plots/") and name.endswith((".png", ".svg"))
    )


_KIND = Kind("a report", "report.json", _belongs_to_report, EvaluationError)

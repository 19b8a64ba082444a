"""The result of an evaluation: its document, what tables and plots ask of it, and its folder."""

from __future__ import annotations

import io
import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaspec import staging
from adaspec.arguments import AnyPath, path_of, truth
from adaspec.documents import json_types
from adaspec.errors import EvaluationError
from adaspec.evaluate.options import ALL, Progress, silent
from adaspec.places import Place
from adaspec.trace.schema import Request

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

REPORT_SCHEMA = 1
OPPONENT = "static:best"
_HINDSIGHT = "the best in hindsight on these very requests at each concurrency, of "
ROWS = {
    "none": "no speculation",
    "fixed:best": _HINDSIGHT + "one drafter at one length (`fixed:ngram`, `fixed:neural`)",
    "hybrid:best": _HINDSIGHT + "the `hybrid` grid: n-gram or neural by match length, no splicing",
    "adaptive:best": _HINDSIGHT + "what adapts by itself: `budget`, `batch-table`, `ema`",
    "static:one": "the one static setting that is best over all concurrencies (geometric mean)",
    "static:tuned": "what the grids chose at each concurrency on the policy's training requests",
    "static:best": _HINDSIGHT + "every static setting of every grid, and `none`",
    "oracle:ngram": "n-gram alone: each request proposes its whole accepted span; greedy",
    "oracle:neural": "neural alone: each request proposes its whole accepted span; greedy",
    "oracle:combine": "the longer accepted span of the two, n-gram on ties; greedy",
    "oracle:plan": "perfect foresight, each step's plans chosen by the going rate; a reference",
    "oracle:plan-splice": "the same, with n-gram tokens spliced behind neural ones; a reference",
    "oracle:dp": "the cheapest possible path, by dynamic programming; a bound, for one request",
    "oracle:dp-splice": "the same, with splices; a bound, for one request",
}
"""The rows that every report may have, baselines first, and what each is."""
LIFT = "lift_over_static_best"
_WARN_LEFT_OUT = 0.2
"""A warning appears if a larger share of a workload's requests than this was left out."""

Entry = Mapping[str, Any]
"""A policy's row in a cell, together with its headline there if it has one; keys as in the JSON."""


class Report:
    """What tables and plots ask of a report's document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        if document.get("schema") != REPORT_SCHEMA:
            raise EvaluationError(
                f"report: schema {document.get('schema')!r} is not {REPORT_SCHEMA}, the one this "
                "build reads: run 'adaspec eval' again with this build, or install a newer adaspec"
            )
        self.document = document
        self.entries: dict[tuple[str, int, str], dict[str, Any]] = {}
        """By workload, concurrency and policy; what was not computed or is not finite is None."""
        for entry in json_types([*document["rows"], *document.get("headline", ())]):
            known = {k: None if v == [None, None] else v for k, v in entry.items()}
            cell = (entry["workload"], entry["concurrency"], entry["policy"])
            self.entries[cell] = self.entries.get(cell, {}) | known
        names = dict.fromkeys(workload for workload, _, _ in self.entries)
        self.workloads = tuple(sorted(names, key=lambda name: name != ALL))
        """The workloads, with the mix first if it was run."""
        self.concurrencies = tuple(sorted({load for _, load, _ in self.entries}))
        self.policies: tuple[str, ...] = tuple(document.get("policies", ()))
        """The policies that `--policy` named, in the order given."""
        present = {policy for _, _, policy in self.entries}
        self.named = tuple(name for name in self.policies if name in present)
        self.judged = self.policies if document.get("headline") else ()
        """The policies that have headlines."""
        others = present.difference(self.policies)
        self.baselines = tuple(n for n in ROWS if n in others and not n.startswith("oracle:"))
        self.oracles = tuple(n for n in ROWS if n in others and n.startswith("oracle:"))
        """The oracles that have rows and were not named by `--policy`; `baselines` is alike."""
        self.shown = (*self.baselines, *self.named, *self.oracles)
        """All policies that have rows, in the order of the tables."""
        self.main = self.workloads[0] if self.workloads else None
        """The workload to show first: the mix, or else the first workload."""
        self.has_all = self.main == ALL
        alone = self.workloads[self.has_all :]
        self.alone = alone if len(alone) > 1 or not self.has_all else ()
        """The workloads that were run by themselves; none if there is only one beside the mix."""
        self.representative = self.main if self.has_all or len(alone) == 1 else None
        """The workload that stands for all: the mix, or the only one; None if there is neither."""
        self.seen = {
            p
            for (_, _, p), e in self.entries.items()
            if e.get("detail", {}).get("seen_in_training")
        }
        """The policies with a row of requests that they were trained on."""
        traces = document.get("traces", {})
        self.used: dict[str, int] = traces.get("requests", {})
        """Workload -> the number of requests evaluated."""
        self.left_out: dict[str, dict[str, int]] = traces.get("left_out", {})
        """Workload -> reason -> the number of requests left out."""
        self.reasons = dict(sum(map(Counter, self.left_out.values()), Counter[str]()))
        """Reason -> the number of requests left out, over all workloads."""

    def across(self, workload: str, policy: str) -> list[tuple[int, Entry]]:
        """Each concurrency with the policy's entry, which is empty if there is none."""
        return [(n, self.entries.get((workload, n, policy), {})) for n in self.concurrencies]

    def figures(self, workload: str, policy: str, key: str = "speedup") -> list[float | None]:
        """A figure at each concurrency."""
        return [entry.get(key) for _, entry in self.across(workload, policy)]

    def few_left(self) -> str:
        """The workloads that lost over a fifth of their requests: `chat rests on 47 of 230`."""
        lost = {name: sum(self.left_out.get(name, {}).values()) for name in self.used}
        return ", ".join(
            f"{name} rests on {count:,} of {count + lost[name]:,}"
            for name, count in self.used.items()
            if lost[name] > _WARN_LEFT_OUT * (count + lost[name])
        )

    def winners(self, workload: str, policy: str) -> list[tuple[str, list[str], list[int]]]:
        """The settings that won, the edges of the grid that they lie on, and at which loads."""
        won = [
            (detail["spec"], detail.get("edge") or [], load)
            for load, entry in self.across(workload, policy)
            if (detail := entry.get("detail", {})).get("spec") not in (None, policy)
        ]
        return [
            (spec, edge, [load for _, _, load in same])
            for (spec, edge), same in groupby(won, key=lambda each: each[:2])
        ]


def is_winner(entry: Entry) -> bool:
    """Whether the policy is the same setting that static:best picked."""
    return entry.get(LIFT) == 0 and entry.get("lift_ci95") in (None, [0.0, 0.0])


class EvaluationReport:
    """A report's document and the requests that were evaluated; `print` shows it as tables."""

    def __init__(self, document: dict[str, Any], requests: Sequence[Request]) -> None:
        self.document = document
        """The whole report, as `report.json` holds it."""
        self.requests = requests

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

    def write(
        self, folder: AnyPath | Place, force: bool = False, progress: Progress = silent
    ) -> Path:
        """Write report.json, report.md and plots to `folder`, all or nothing.

        `force` replaces an existing report, and nothing else. A place that was checked before is
        written to only if it has not changed since.
        """
        if isinstance(folder, Place):
            place = folder
        else:
            path = path_of(folder, "folder", EvaluationError)
            place = check_destination(path, truth(force, "force", EvaluationError))
        with staging.whole_folder(place, EvaluationError) as staged:
            self._fill(staged, progress)
        return place.path

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
        (folder / "report.md").write_text(report_markdown(report, plots), encoding="utf-8")


def check_destination(folder: Path, force: bool = False) -> Place:
    """The place at `folder`, or an EvaluationError if no report can be written there.

    Call it before a long evaluation. With `force`, a folder is replaced only if it has a
    report.json and nothing that does not belong to a report.
    """
    return staging.check_destination(folder, force, _CONTENTS)


def _belongs_to_report(name: str) -> bool:
    return name in {"report.json", "report.md", "plots"} or (
        name.startswith("plots/") and name.endswith((".png", ".svg"))
    )


_CONTENTS = staging.Contents(
    "a report", "report.json", _belongs_to_report, EvaluationError, "plots"
)

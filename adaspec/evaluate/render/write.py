"""A report as a folder: report.json, report.md and plots, written whole or not at all."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaspec import staging
from adaspec.errors import EvaluationError
from adaspec.evaluate.render.acceptance import Acceptance
from adaspec.evaluate.render.markdown import Plot, report_markdown
from adaspec.evaluate.render.results import Report
from adaspec.places import Place

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OURS = {"report.json", "report.md", "plots"}
_PICTURES = (".png", ".svg")


def strict_json(report: Report) -> str:
    """`report` as JSON that any parser takes: what is not finite as null, numpy as numbers."""
    return json.dumps(_plain(report), allow_nan=False, indent=1) + "\n"


def check_destination(folder: Path, force: bool = False) -> Place:
    """The place at `folder`, or an EvaluationError where `write_report` would refuse it.

    Meant for before a long evaluation. With `force` a folder is replaced only if it holds a
    report.json and nothing that a report does not.
    """
    return staging.check_destination(folder, force, _CONTENTS)


def write_report(
    report: Report,
    acceptance: Sequence[Acceptance] | None,
    folder: Path | Place,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write report.json, report.md and plots/*.png to `folder`, all or nothing.

    Everything is written beside the folder first and renamed at the end. A place that was checked
    before is written to only as it was then. `acceptance` adds the figures of the trace. `progress`
    is told (pictures done, pictures in all).
    """
    place = folder if isinstance(folder, Place) else check_destination(folder, force)
    with staging.whole_folder(place, EvaluationError) as staged:
        _fill(report, acceptance, staged, progress)


def drawings(
    report: Report, acceptance: Sequence[Acceptance] | None
) -> list[tuple[str, str, Callable[[], Figure | None]]]:
    """(file name without ending, caption, what draws it) for every picture a report may have."""
    # matplotlib is slow to load
    from adaspec.evaluate.render import figures, plots, reliability

    found: list[tuple[str, str, Callable[[], Figure | None]]] = [
        (
            "speedup",
            "Speedup over no speculation by concurrency, with 95% intervals",
            lambda: plots.speedup_figure(report),
        ),
        (
            "lift",
            "Lift over static:best by concurrency, with paired 95% intervals",
            lambda: plots.lift_figure(report),
        ),
        (
            "lift-by-workload",
            "Lift over each workload's own static:best",
            lambda: plots.lifts_by_workload_figure(report),
        ),
        (
            "speedup-by-workload",
            "Speedup over no speculation on each workload alone",
            lambda: plots.workloads_figure(report),
        ),
        (
            "oracles",
            "Speedups beside the oracles (as the paper's figure 11)",
            lambda: plots.oracles_figure(report),
        ),
    ]
    if report.get("calibration"):
        found.append(
            (
                "calibration",
                "How often what a learned policy expected came true",
                lambda: reliability.calibration_figure(report),
            )
        )
    if acceptance:
        found += [
            (
                "acceptance-positions",
                "Tokens accepted at each position of single requests (as figure 4)",
                lambda: figures.positions_figure(acceptance),
            ),
            (
                "acceptance-requests",
                "Tokens accepted, request by request (as figure 5)",
                lambda: figures.requests_figure(acceptance),
            ),
            (
                "acceptance-workloads",
                "Share of positions accepting at least j tokens, by workload (as figure 6)",
                lambda: figures.survival_figure(acceptance),
            ),
            (
                "ngram-against-neural",
                "Where n-gram and where neural gets further, a strip per request (as figure 9)",
                lambda: figures.strips_figure(acceptance),
            ),
            (
                "ngram-minus-neural",
                "n-gram minus neural accepted per position (as figure 10)",
                lambda: figures.difference_figure(acceptance),
            ),
        ]
    return found


def _fill(
    report: Report,
    acceptance: Sequence[Acceptance] | None,
    folder: Path,
    progress: Callable[[int, int], None] | None,
) -> None:
    text = strict_json(report)
    (folder / "report.json").write_text(text, encoding="utf-8")
    (folder / "plots").mkdir()
    plots = []
    todo = drawings(report, acceptance)
    for done, (name, caption, draw) in enumerate(todo, start=1):
        figure = draw()
        if figure is not None:
            path = f"plots/{name}.png"
            with warnings.catch_warnings():  # a name in a script that the font does not draw
                warnings.filterwarnings("ignore", message="Glyph .* missing")
                figure.savefig(folder / path, format="png", metadata={"Software": None})
            plots.append(Plot(path, caption))
        if progress is not None:
            progress(done, len(todo))
    if not plots:
        (folder / "plots").rmdir()
    (folder / "report.md").write_text(report_markdown(report, plots), encoding="utf-8")


def _is_ours(name: str) -> bool:
    return name in _OURS or (name.startswith("plots/") and name.endswith(_PICTURES))


_CONTENTS = staging.Contents("a report", "report.json", _is_ours, EvaluationError, "plots")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return _plain(value.tolist())
    return str(value)

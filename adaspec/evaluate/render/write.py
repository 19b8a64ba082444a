"""A report as a folder: report.json, report.md and plots, written whole or not at all."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaspec import staging
from adaspec.errors import EvaluationError
from adaspec.evaluate.render.acceptance import Acceptance
from adaspec.evaluate.render.markdown import Plot, report_markdown
from adaspec.evaluate.render.report import Report
from adaspec.places import Place

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {"report.json", "report.md", "plots"}
_PICTURES = (".png", ".svg")


def strict_json(document: Mapping[str, Any]) -> str:
    """`document` as JSON that any parser takes: what is not finite as null, numpy as numbers."""
    return json.dumps(_plain(document), allow_nan=False, indent=1) + "\n"


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
    is called with (pictures done, pictures in all).
    """
    place = folder if isinstance(folder, Place) else check_destination(folder, force)
    with staging.whole_folder(place, EvaluationError) as staged:
        _fill(report, acceptance, staged, progress)


def drawings(
    report: Report, acceptance: Sequence[Acceptance] | None
) -> dict[Plot, Callable[[], Figure | None]]:
    """What draws each picture that a report may have."""
    # matplotlib is slow to load
    from adaspec.evaluate.render import figures, plots

    drawn: dict[Plot, Callable[[], Figure | None]] = {}
    for name, (caption, draw) in plots.ALL.items():
        drawn[Plot(f"plots/{name}.png", caption)] = partial(draw, report)
    for name, (caption, draw_trace) in figures.ALL.items():
        drawn[Plot(f"plots/{name}.png", caption)] = partial(draw_trace, acceptance or ())
    return drawn


def _fill(
    report: Report,
    acceptance: Sequence[Acceptance] | None,
    folder: Path,
    progress: Callable[[int, int], None] | None,
) -> None:
    (folder / "report.json").write_text(strict_json(report.document), encoding="utf-8")
    (folder / "plots").mkdir()
    plots = []
    pictures = drawings(report, acceptance)
    for done, (plot, draw) in enumerate(pictures.items(), start=1):
        figure = draw()
        if figure is not None:
            with warnings.catch_warnings():  # a name in a script that the font does not draw
                warnings.filterwarnings("ignore", message="Glyph .* missing")
                figure.savefig(folder / plot.path, format="png", metadata={"Software": None})
            plots.append(plot)
        if progress is not None:
            progress(done, len(pictures))
    if not plots:
        (folder / "plots").rmdir()
    (folder / "report.md").write_text(report_markdown(report, plots), encoding="utf-8")


def _is_ours(name: str) -> bool:
    return name in _NAMES or (name.startswith("plots/") and name.endswith(_PICTURES))


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

"""A report as a folder: report.json, report.md and plots, written whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaspec.errors import EvaluationError
from adaspec.evaluate.render.acceptance import Acceptance
from adaspec.evaluate.render.markdown import Plot, report_markdown
from adaspec.evaluate.render.results import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OURS = {"report.json", "report.md", "plots"}
_PICTURES = (".png", ".svg")
_DROPPINGS = {".DS_Store", "Thumbs.db"}


def strict_json(report: Report) -> str:
    """`report` as JSON that any parser takes: what is not finite as null, numpy as numbers."""
    return json.dumps(_plain(report), allow_nan=False, indent=1) + "\n"


def check_destination(folder: Path, force: bool = False) -> None:
    """Raise EvaluationError where `write_report` would refuse `folder`; writes nothing.

    Meant for before a long evaluation. With `force` a folder is replaced only if it holds a
    report.json and nothing that a report does not: nobody's other files are ever deleted.
    """
    if not os.path.lexists(folder):
        parent = _first_existing(folder.parent)
        if not parent.is_dir():
            raise EvaluationError(f"{folder}: {parent} is not a folder: choose another place")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise EvaluationError(f"{folder}: {parent} cannot be written to: choose another place")
        return
    if not folder.is_dir():
        raise EvaluationError(f"{folder}: exists and is not a folder: choose another place")
    if not force:
        raise EvaluationError(f"{folder}: exists: choose another folder, or add --force")
    parent = folder.resolve().parent
    if not os.access(parent, os.W_OK | os.X_OK):
        raise EvaluationError(f"{folder}: {parent} cannot be written to: choose another place")
    held = _held(folder)
    if held and "report.json" not in held:
        raise EvaluationError(
            f"{folder}: holds no report.json, so --force will not replace it: "
            "choose another folder, or remove this one yourself"
        )
    strange = [name for name in held if not _is_ours(name)]
    if strange:
        raise EvaluationError(
            f"{folder}: also holds {strange[0]!r}, which is no part of a report, so --force will "
            "not replace it: move that away, or choose another folder"
        )


def write_report(
    report: Report,
    acceptance: Sequence[Acceptance] | None,
    folder: Path,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write report.json, report.md and plots/*.png to `folder`, all or nothing.

    Everything is written beside the folder first and renamed at the end. `acceptance` adds the
    figures of the trace. `progress` is told (pictures done, pictures in all).
    """
    check_destination(folder, force)
    target = folder.resolve()
    partial = target.parent / f".{target.name}.partial-{os.getpid()}"
    made: list[Path] = []
    try:
        made = _make_parents(target.parent)
        partial.mkdir()
        _fill(report, acceptance, partial, progress)
        _swap(partial, target)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in made:
            _remove_if_empty(parent)
        if isinstance(error, OSError):
            raise EvaluationError(f"{folder}: {_reason(error)}; nothing was written") from error
        raise


def drawings(
    report: Report, acceptance: Sequence[Acceptance] | None
) -> list[tuple[str, str, Callable[[], Figure | None]]]:
    """(file name without ending, caption, what draws it) for every picture a report may have."""
    from adaspec.evaluate.render import figures, plots  # matplotlib is slow to load

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
    for each in folder.rglob("*"):
        if each.is_file():
            _flush(each)


def _swap(partial: Path, target: Path) -> None:
    """Put `partial` in `target`'s place; the old folder comes back if that fails."""
    if not target.exists():
        partial.rename(target)
        return
    old = target.parent / f".{target.name}.replaced-{os.getpid()}"
    target.rename(old)
    try:
        partial.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _flush(path: Path) -> None:
    """Reach the disk before the rename does, so that a full one is noticed here."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _held(folder: Path) -> list[str]:
    """What a folder holds, plots/ by its files, droppings of file browsers aside."""
    try:
        names = sorted(each.name for each in folder.iterdir() if each.name not in _DROPPINGS)
        plots = folder / "plots"
        if plots.is_dir() and not plots.is_symlink():
            names.remove("plots")
            names += sorted(
                f"plots/{each.name}" for each in plots.iterdir() if each.name not in _DROPPINGS
            )
    except OSError as error:
        raise EvaluationError(f"{folder}: {_reason(error)}: choose another folder") from error
    return names


def _is_ours(name: str) -> bool:
    return name in _OURS or (name.startswith("plots/") and name.endswith(_PICTURES))


def _first_existing(folder: Path) -> Path:
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _make_parents(folder: Path) -> list[Path]:
    """Create what is missing of `folder`; the new ones, deepest first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir()
    return missing


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _reason(error: OSError) -> str:
    known = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EFBIG: "a file would exceed the size allowed",
        errno.EACCES: "may not be written to (permission denied)",
        errno.EPERM: "may not be written to (operation not permitted)",
        errno.EROFS: "lies on a read-only file system",
    }
    return known.get(error.errno or 0, f"cannot be written ({error.strerror or error})")


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

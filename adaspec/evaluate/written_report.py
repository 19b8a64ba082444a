"""Reports that were written before: read again, and their page made again."""

from __future__ import annotations

from pathlib import Path

from adaspec.documents import read_json
from adaspec.errors import EvaluationError
from adaspec.evaluate.report_folder import REPORT, EvaluationReport
from adaspec.files import new_file

_PAGE = b"<!doctype html>"
_AGAIN = "give what 'adaspec eval -o' wrote"


def is_report(path: Path) -> bool:
    """Whether `path` is a folder with a report, or a report's own file."""
    return (path / REPORT).is_file() or (path.name == REPORT and path.is_file())


def read_report(path: Path) -> EvaluationReport:
    """The report in a folder, or of its report.json, which is checked to have what is shown."""
    found = path / REPORT if path.is_dir() else path
    try:
        document = read_json(found, EvaluationError, _AGAIN)
    except FileNotFoundError:
        raise EvaluationError(f"{found}: there is no such file: {_AGAIN}") from None
    if not isinstance(document, dict):
        raise EvaluationError(f"{found}: is no report: {_AGAIN}")
    report = EvaluationReport(document)
    try:
        report.contents()
        report.figures()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
        why = f"{type(fault).__name__}: {fault}"
        raise EvaluationError(f"{found}: is no report of adaspec ({why}): {_AGAIN}") from fault
    return report


def write_page(report: EvaluationReport, path: Path, force: bool = False) -> None:
    """Write the page of a report to a file; `force` allows to replace another page."""
    if path.exists() and not force:
        raise EvaluationError(f"{path}: exists: choose another, or replace it: --force")
    if path.exists() and not (path.is_file() and path.read_bytes()[:15].lower() == _PAGE):
        raise EvaluationError(f"{path}: is there and no page: choose another place")
    with new_file(path, EvaluationError) as file:
        file.write(report.page().encode())

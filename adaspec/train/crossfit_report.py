"""A cross-fitted report that was written before, read back for a policy's card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaspec.cost.model import CostModel
from adaspec.documents import parse_json, read_file
from adaspec.errors import TrainingError
from adaspec.evaluate.evaluation import REPORT_SCHEMA
from adaspec.evaluate.options import Options
from adaspec.predict.model import feature_fingerprint
from adaspec.train.metrics import cells_of

REPORT = "report.json"
_AGAIN = "run 'adaspec train --crossfit' again on these traces"


def read_crossfit_report(folder: Path) -> dict[str, Any]:
    """The report in a folder; a `TrainingError` where it is none, or not cross-fitted."""
    path = folder / REPORT
    try:
        content = read_file(path, TrainingError, _AGAIN)
    except FileNotFoundError:
        raise TrainingError(
            f"{path}: there is no such file: give the folder that "
            "'adaspec train --crossfit N -o FOLDER' wrote"
        ) from None
    except OSError as error:
        raise TrainingError(f"{path}: cannot be read as a report ({error}): {_AGAIN}") from None
    report = parse_json(content, str(path), TrainingError, _AGAIN)
    if not isinstance(report, dict) or report.get("schema") != REPORT_SCHEMA:
        raise TrainingError(f"{path}: is no report that this build reads: {_AGAIN}")
    if not isinstance(report.get("cross_fitted"), Mapping):
        raise TrainingError(
            f"{path}: is no cross-fitted report, as its policies may have seen what they are "
            "judged by: give one of 'adaspec train --crossfit N -o FOLDER'"
        )
    return report


def crossfit_metrics(
    report: Mapping[str, Any], folder: Path, cost: CostModel, options: Options, contents: str
) -> dict[str, Any]:
    """What the card says of a cross-fitted report; refused where it is about something else."""
    found = report["cross_fitted"]
    differing = (
        ("requests", found.get("contents"), contents),
        ("features", found.get("fingerprint"), feature_fingerprint()),
        ("cost model", report.get("cost"), cost.name),
        ("longest draft", report.get("cap"), options.cap),
    )
    for what, theirs, ours in differing:
        if theirs != ours:
            raise TrainingError(
                f"{folder / REPORT}: its {what} ({theirs}) are not those of this training "
                f"({ours}): {_AGAIN}, with the same options"
            )
    try:
        return {
            "folds": found["folds"],
            "requests": report["traces"]["requests"],
            "orders": report["orders"],
            "resamples": report["resamples"],
            "cells": cells_of(report),
            "calibration": report["calibration"],
            **({"ablations": report["ablations"]} if "ablations" in report else {}),
        }
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise TrainingError(
            f"{folder / REPORT}: lacks what a card shows ({type(error).__name__}: {error}): "
            f"{_AGAIN}"
        ) from None

"""The part of a report that a policy's manifest keeps: its own, and a cross-fitted one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaspec.cost.engine import SYNC
from adaspec.cost.model import CostModel
from adaspec.documents import read_json
from adaspec.errors import TrainingError
from adaspec.evaluate.hindsight import STATIC_BEST
from adaspec.evaluate.options import NONE, Options
from adaspec.evaluate.report import REPORT_SCHEMA
from adaspec.predict.model import feature_fingerprint

DIGITS = 6
LIFTS = (
    "lift_over_static_best",
    "lift_ci95",
    "lift_over_static_tuned",
    "lift_over_static_tuned_ci95",
    "lift_over_static_one",
    "lift_over_adaptive_best",
    "lift_over_fixed_best",
    "gap_closed",
    "worst_workload_lift",
)

REPORT = "report.json"
_AGAIN = "run 'adaspec train --crossfit' again on these traces"


def read_crossfit_report(folder: Path) -> dict[str, Any]:
    """The report in a folder; raises a `TrainingError` if it is missing or not cross-fitted."""
    path = folder / REPORT
    try:
        report = read_json(path, TrainingError, _AGAIN)
    except FileNotFoundError:
        raise TrainingError(
            f"{path}: there is no such file: give the folder that "
            "'adaspec train --crossfit N -o FOLDER' wrote"
        ) from None
    if not isinstance(report, dict) or report.get("schema") != REPORT_SCHEMA:
        raise TrainingError(f"{path}: is no report that this build reads: {_AGAIN}")
    if not isinstance(report.get("cross_fitted"), Mapping):
        raise TrainingError(
            f"{path}: is no cross-fitted report, as its policies may have seen what they are "
            "judged by: give one of 'adaspec train --crossfit N -o FOLDER'"
        )
    return report


def crossfit_metrics(
    report: Mapping[str, Any],
    folder: Path,
    cost: CostModel,
    options: Options,
    contents: str,
    memory: bool,
) -> dict[str, Any]:
    """What the card shows of a cross-fitted report, which must be about this very training."""
    fit = report["cross_fitted"]
    differing = (
        ("requests", fit.get("contents"), contents),
        ("features", fit.get("fingerprint"), feature_fingerprint()),
        ("cost model", report.get("cost"), cost.name),
        ("longest draft", report.get("cap"), options.cap),
        ("engine", report.get("engine", SYNC), options.engine),
        ("--memory", fit.get("memory", False), memory),
    )
    for what, of_report, of_training in differing:
        if of_report != of_training:
            raise TrainingError(
                f"{folder / REPORT}: its {what} ({of_report}) are not those of this training "
                f"({of_training}): {_AGAIN}, with the same options"
            )
    try:
        return {
            "folds": fit["folds"],
            "requests": report["traces"]["requests"],
            "orders": report["orders"],
            "resamples": report["resamples"],
            "cells": cells_of(report),
            "calibration": report["calibration"],
        }
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise TrainingError(
            f"{folder / REPORT}: lacks what a card shows ({type(error).__name__}: {error}): "
            f"{_AGAIN}"
        ) from None


def cells_of(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Speedups, lifts and latencies of the judged policy, by workload and concurrency."""
    rows = {(row["workload"], row["concurrency"], row["policy"]): row for row in report["rows"]}
    cells: dict[str, dict[str, Any]] = {}
    for entry in report["headline"]:
        cell = (entry["workload"], entry["concurrency"])
        shown = {
            "policy": rows[(*cell, entry["policy"])],
            "none": rows[(*cell, NONE)],
            "static_best": rows[(*cell, STATIC_BEST)],
        }
        none = shown["none"]["tokens_per_s"]
        cells.setdefault(cell[0], {})[str(cell[1])] = {
            "speedup": rounded(shown["policy"]["tokens_per_s"] / none),
            "speedup_static_best": rounded(shown["static_best"]["tokens_per_s"] / none),
            **{name: rounded(entry[name]) for name in LIFTS},
            "latency_s": {
                name: {key: rounded(value, 9) for key, value in row["detail"]["latency_s"].items()}
                for name, row in shown.items()
            },
        }
    return cells


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """A number, or each number of a list, rounded; None if it is missing or not finite."""
    if isinstance(value, list):
        return [rounded(each, digits) for each in value]
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), digits)

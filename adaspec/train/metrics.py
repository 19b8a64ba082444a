"""The part of a report that a policy's manifest keeps: its own, and a cross-fitted one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaspec.cost.engine import SYNC
from adaspec.cost.model import CostModel
from adaspec.documents import json_types
from adaspec.errors import TrainingError
from adaspec.evaluate.options import Options
from adaspec.evaluate.report import read_report
from adaspec.predict.fingerprint import feature_fingerprint


def metrics_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest keeps of a report: on which requests a policy was judged, and how it did.

    The policy's name is left out, as it is its folder's.
    """
    kept = ("orders", "resamples", "headline", "calibration")
    metrics = {key: json_types(document[key]) for key in kept if key in document}
    for entry in metrics.get("headline", ()):
        del entry["policy"]
    return {"requests": document["traces"]["requests"], **metrics}


def read_crossfit_report(
    folder: Path, cost: CostModel, options: Options, contents: str, memory: bool
) -> dict[str, Any]:
    """The cross-fitted report in a folder, which must be about this very training."""
    report = read_report(folder).document
    fit = report.get("cross_fitted")
    if not isinstance(fit, Mapping):
        raise TrainingError(
            f"{folder}: is no cross-fitted report, as its policies may have seen what they are "
            "judged by: give one of 'adaspec train --crossfit N -o FOLDER'"
        )
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
                f"{folder}: its {what} ({of_report}) are not those of this training "
                f"({of_training}): run 'adaspec train --crossfit' again on these traces, with the "
                "same options"
            )
    return report

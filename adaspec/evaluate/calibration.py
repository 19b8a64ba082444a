"""How good probabilities were: calibration, and how well they tell what came from what did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

Array = NDArray[np.float64]

BINS = 15
_CERTAIN = 1e-6
"""Probabilities are kept this far from 0 and 1: one certain miss would outweigh all the rest."""


def judge(outcomes: Array, predicted: Array) -> dict[str, Any]:
    """Rounded figures of how good probabilities were; the AUC is None if all outcomes are equal."""
    bins = reliability(outcomes, predicted)
    return {
        "states": len(outcomes),
        "came": _rounded(outcomes.mean()),
        "ece": _rounded(expected_calibration_error(bins)),
        **sharpness(outcomes, predicted),
        "curve": [[_rounded(mean), _rounded(share), count] for mean, share, count in bins],
    }


def reliability(outcomes: Array, predicted: Array) -> list[tuple[float, float, int]]:
    """(mean predicted, share that came true, states) of `BINS` equally large bins, ascending.

    scikit-learn's quantile bins differ in size where predictions are equal.
    """
    order = np.argsort(predicted, kind="stable")
    parts = np.array_split(order, min(BINS, len(order)))
    return [
        (float(predicted[part].mean()), float(outcomes[part].mean()), len(part)) for part in parts
    ]


def expected_calibration_error(bins: Sequence[tuple[float, float, int]]) -> float:
    """Sum over bins of (share of states * abs(mean predicted - share that came true))."""
    total = sum(count for _, _, count in bins)
    return sum(count * abs(mean - share) for mean, share, count in bins) / total


def sharpness(outcomes: Array, predicted: Array) -> dict[str, float | None]:
    """The log-loss, and the AUC, which is None if all outcomes are equal."""
    has_both_outcomes = 0 < outcomes.sum() < len(outcomes)
    bounded = np.clip(predicted, _CERTAIN, 1 - _CERTAIN)
    return {
        "auc": _rounded(roc_auc_score(outcomes, predicted)) if has_both_outcomes else None,
        "log_loss": _rounded(log_loss(outcomes, bounded, labels=[0, 1])),
    }


def _rounded(value: float) -> float:
    return round(float(value), 6)

"""How well survival curves are calibrated, as they predict before drafting, on unseen requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from adaspec.evaluate.options import Progress
from adaspec.policy.learned import LearnedPolicy
from adaspec.predict.model import BEFORE_HEADS, Model
from adaspec.predict.network import predict
from adaspec.predict.survival import survivals
from adaspec.train.outcomes import Recorded
from adaspec.train.rows import Array, Floats, Members, survey

DEPTHS = 4
"""The survival probabilities S(1) to S(4) are judged."""
BINS = 15
_CERTAIN = 1e-6
"""Probabilities are kept this far from 0 and 1: one certain miss would outweigh all the rest."""


def calibration_of(
    recorded: Recorded, judged: Sequence[tuple[LearnedPolicy, Members]], progress: Progress
) -> list[dict[str, Any]]:
    """A row per source and depth, about all requests, for each of which its own policy predicts."""
    seen: dict[tuple[str, int], list[tuple[Array, Array]]] = {}
    for done, (policy, members) in enumerate(judged):
        progress("calibration", done, len(judged))
        rows = survey(recorded.recording, policy.model, members, 0)["before"]
        for source, outcomes, usable in recorded.sources(rows.at):
            predicted = _predicted(policy.model, rows.x, source)
            for depth in range(1, DEPTHS + 1):
                known = (outcomes.known >= depth) & usable
                came = (outcomes.right[known] >= depth).astype(np.float64)
                seen.setdefault((source, depth), []).append((came, predicted[known, depth - 1]))
    progress("calibration", len(judged), len(judged))
    joined = {key: [*map(np.concatenate, zip(*pairs, strict=True))] for key, pairs in seen.items()}
    return [
        {"source": source, "survival": depth, **judge(came, predicted)}
        for (source, depth), (came, predicted) in joined.items()
        if len(came)
    ]


def _predicted(model: Model, x: Floats, source: str) -> Array:
    """S(1) .. S(DEPTHS) of a source by networks and curves, one row per row of features."""
    said = predict(model.networks["before"], x)
    first, more = (
        said[:, BEFORE_HEADS.index(f"{source}_{head}")].astype(np.float64)
        for head in ("first", "more")
    )
    return np.clip(survivals(model.curves[source], first, more, DEPTHS), 0.0, 1.0)


def judge(came: Array, predicted: Array) -> dict[str, Any]:
    """How good probabilities were; the AUC is None where all outcomes are equal."""
    # scikit-learn's quantile bins differ in size where predictions are equal.
    bins = np.array_split(np.argsort(predicted, kind="stable"), min(BINS, len(came)))
    errors = [len(each) * abs(predicted[each].mean() - came[each].mean()) for each in bins]
    bounded = np.clip(predicted, _CERTAIN, 1 - _CERTAIN)
    varied = 0 < came.sum() < len(came)
    return {
        "positions": len(came),
        "came": _rounded(came.mean()),
        "ece": _rounded(sum(errors) / len(came)),
        "auc": _rounded(roc_auc_score(came, predicted)) if varied else None,
        "log_loss": _rounded(log_loss(came, bounded, labels=[0, 1])),
    }


def _rounded(value: float) -> float:
    return round(float(value), 6)

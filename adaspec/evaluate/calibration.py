"""How well calibrated a model's survival curves are, in the states that its policy visits.

Networks and curves are judged by themselves, as they predict before drafting: without planner
settings, recalibration or evidence. A policy that reads the drafted tokens is also judged token by
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

from adaspec.cost.engine import SYNC
from adaspec.cost.model import CostModel
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.recorder import Recorder, new_recorder
from adaspec.predict.evidence import EXPECTED
from adaspec.predict.model import (
    ACCEPTED_NEXT,
    NEURAL_FIRST,
    NEURAL_MORE,
    NGRAM_FIRST,
    NGRAM_MORE,
    Model,
)
from adaspec.predict.network import predict
from adaspec.predict.survival import fill_survivals
from adaspec.replay.learned import run_learned
from adaspec.replay.orders import draw_order, pools_among
from adaspec.replay.recording import Recording

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

DEPTHS = 4
"""The survival probabilities S(1) to S(4) are judged."""
BINS = 15
SOURCES = ("ngram", "neural")
_HEADS = {"ngram": (NGRAM_FIRST, NGRAM_MORE), "neural": (NEURAL_FIRST, NEURAL_MORE)}
_CERTAIN = 1e-6
"""Probabilities are kept this far from 0 and 1: one certain miss would outweigh all the rest."""
_ORDERS = 0xCA11B


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy, the requests to judge it by, and its model without token tables."""

    policy: LearnedPolicy
    members: Bools
    without_tables: Model


def visits_of(
    recording: Recording,
    judged: Judged,
    concurrency: int,
    cost: CostModel,
    seed: int,
    engine: str = SYNC,
) -> Recorder:
    """Every decision of one closed loop over the judged policy's requests."""
    rng = np.random.default_rng([seed, _ORDERS, concurrency])
    order = draw_order(pools_among(recording, judged.members), concurrency, rng)
    policy = judged.policy
    decisions = int(recording.columns.length[order].sum())
    drafted = decisions * policy.neural_cap if policy.model.reads_evidence else 0
    recorder = new_recorder(concurrency, decisions, 0, drafted)
    run_learned(
        recording,
        policy,
        order,
        concurrency,
        cost,
        policy.cap,
        recorder=recorder,
        engine=engine,
    )
    filled = recorder.filled[0]
    states, tokens = slice(0, int(filled["decisions"])), slice(0, int(filled["drafted"]))
    return recorder._replace(
        at=recorder.at[states],
        x=recorder.x[states],
        held=recorder.held[states],
        evidence_at=recorder.evidence_at[tokens],
        evidence_depth=recorder.evidence_depth[tokens],
        evidence_x=recorder.evidence_x[tokens],
    )


def calibration_of(
    recording: Recording,
    judged: Sequence[Judged],
    cost: CostModel,
    concurrency: Sequence[int],
    seed: int,
    engine: str = SYNC,
) -> dict[str, Any]:
    """The calibration document: ECE, AUC, log-loss and bins per source and depth.

    The states of all loads and policies are judged together. `without_tables` has the AUC and
    log-loss, in the same states, of models grown without the token tables' columns. `drafted` has
    the predictions for single tokens after they were seen, and under `before` those from before;
    it is empty if no policy reads drafted tokens.
    """
    states: dict[str, list[tuple[Array, Array, Array]]] = {name: [] for name in SOURCES}
    tokens: list[tuple[Array, Array, Array]] = []
    for judged_policy in judged:
        for load in concurrency:
            visits = visits_of(recording, judged_policy, load, cost, seed, engine)
            for source in SOURCES:
                usable, accepted = _outcomes(recording, visits, source)
                x = visits.x[usable]
                outcomes = accepted[usable, None] >= np.arange(1, DEPTHS + 1)
                predicted = survivals(judged_policy.policy.model, x, source)
                bare = survivals(judged_policy.without_tables, x, source)
                states[source].append((outcomes.astype(np.float64), predicted, bare))
            if judged_policy.policy.model.reads_evidence:
                tokens.append(_drafted(recording, visits, judged_policy.policy.model))
    return {
        "concurrency": list(concurrency),
        "bins": BINS,
        "sources": {
            source: _judge_depths(*map(np.concatenate, zip(*parts, strict=True)))
            for source, parts in states.items()
            if any(len(outcomes) for outcomes, _, _ in parts)
        },
        "drafted": _judge_drafted(*map(np.concatenate, zip(*tokens, strict=True)))
        if tokens
        else [],
    }


def _judge_depths(outcomes: Array, predicted: Array, bare: Array) -> list[dict[str, Any]]:
    return [
        {"survival": depth + 1}
        | judge(outcomes[:, depth], predicted[:, depth])
        | {"without_tables": sharpness(outcomes[:, depth], bare[:, depth])}
        for depth in range(DEPTHS)
    ]


def _drafted(recording: Recording, visits: Recorder, model: Model) -> tuple[Array, Array, Array]:
    """For each drafted token its depth, whether it was right, and (predicted before, after).

    "Before" and "after" are the predictions without and with the drafted token itself. Tokens
    behind a wrong one are left out.
    """
    accepted = recording.columns.neural[visits.evidence_at]
    judged = (accepted >= visits.evidence_depth - 1) & (visits.evidence_depth <= DEPTHS)
    x, depth = visits.evidence_x[judged], visits.evidence_depth[judged]
    before = x[:, EXPECTED].astype(np.float64)
    after = predict(model.networks["evidence"], x)[:, ACCEPTED_NEXT]
    right = accepted[judged] >= depth
    predicted = np.stack([before, after], axis=1)
    return depth.astype(np.float64), right.astype(np.float64), predicted


def _judge_drafted(depth: Array, right: Array, predicted: Array) -> list[dict[str, Any]]:
    entries = []
    for token in range(1, DEPTHS + 1):
        members = depth == token
        if members.any():
            outcomes, (before, after) = right[members], predicted[members].T
            figures = judge(outcomes, after) | {"before": sharpness(outcomes, before)}
            entries.append({"token": token} | figures)
    return entries


def survivals(model: Model, x: NDArray[np.float32], source: str) -> Array:
    """S(1) .. S(DEPTHS) of a source by networks and curves, one row per row of features."""
    heads = predict(model.networks["before"], x)
    first, more = (np.ascontiguousarray(heads[:, head]) for head in _HEADS[source])
    out = np.empty((len(x), DEPTHS + 1))
    fill_survivals(first, more, model.curves[source], out)
    return np.clip(out[:, 1:], 0.0, 1.0)


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


def _outcomes(
    recording: Recording, visits: Recorder, source: str
) -> tuple[Bools, NDArray[np.int16]]:
    """Whether a source could draft in each state, and how many of its tokens were right there."""
    columns = recording.columns
    if source == "ngram":
        return columns.match[visits.at] > 0, columns.run[visits.at]
    return visits.held & (columns.neural[visits.at] >= 0), columns.neural[visits.at]


def _rounded(value: float) -> float:
    return round(float(value), 6)

"""How far a model's survival curves can be believed, in the states that its policy visits.

Judged as before drafting, by the forests and curves alone: no planner knob, no trust, no evidence.
Where the policy listens to drafts, also token by token, once each was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

from adaspec.cost.model import CostModel
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.recorder import new_recorder
from adaspec.predict.evidence import EXPECTED
from adaspec.predict.forest import predict
from adaspec.predict.model import (
    ACCEPTED_NEXT,
    NEURAL_FIRST,
    NEURAL_MORE,
    NGRAM_FIRST,
    NGRAM_MORE,
    Model,
)
from adaspec.predict.survival import fill_survivals
from adaspec.replay.learned import run_learned
from adaspec.replay.orders import draw_order, pools_among
from adaspec.replay.recorded import Film
from adaspec.replay.tape import Tape

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

DEPTHS = 4
"""S(1) to S(4) are judged."""
BINS = 15
SOURCES = ("ngram", "neural")
_HEADS = {"ngram": (NGRAM_FIRST, NGRAM_MORE), "neural": (NEURAL_FIRST, NEURAL_MORE)}
_SURE = 1e-6
"""A probability nearer to 0 or 1 is judged as if it were this near."""
_DIGITS = 6
_ORDERS = 0xCA11B


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy, the requests to judge it by, and its model without token tables."""

    policy: LearnedPolicy
    members: Bools
    without_tables: Model


@dataclass(frozen=True, slots=True)
class Visits:
    """States in which a policy decided."""

    at: NDArray[np.int64]
    """Flat position."""
    x: NDArray[np.float32]
    held: Bools
    """Whether the request held the neural drafter."""
    drafted_at: NDArray[np.int64]
    """Flat position of each decision in which a token was drafted, its depth, what it showed."""
    depth: NDArray[np.int32]
    shown: NDArray[np.float32]


def visits_of(
    tape: Tape, film: Film, judged: Judged, concurrency: int, cost: CostModel, seed: int
) -> Visits:
    """Every decision of one closed loop over the marked requests."""
    rng = np.random.default_rng([seed, _ORDERS, concurrency])
    order = draw_order(pools_among(tape, judged.members), concurrency, rng)
    policy = judged.policy
    decisions = int(tape.columns.length[order].sum())
    drafted = decisions * policy.neural_cap if policy.model.reads_evidence else 0
    recorder = new_recorder(concurrency, decisions, 0, drafted)
    run_learned(tape, film, policy, order, concurrency, cost, policy.cap, recorder=recorder)
    filled = recorder.filled[0]
    states, tokens = slice(0, int(filled["decisions"])), slice(0, int(filled["drafted"]))
    return Visits(
        at=recorder.at[states].copy(),
        x=recorder.x[states].copy(),
        held=recorder.held[states].copy(),
        drafted_at=recorder.evidence_at[tokens].copy(),
        depth=recorder.evidence_depth[tokens].copy(),
        shown=recorder.evidence_x[tokens].copy(),
    )


def calibration_of(
    tape: Tape,
    film: Film,
    judged: Sequence[Judged],
    cost: CostModel,
    concurrency: Sequence[int],
    seed: int,
) -> dict[str, Any]:
    """The calibration document: per source and depth ECE, AUC, log-loss, and its bins.

    The states of all loads and policies are judged together. `without_tables` has the AUC and
    log-loss in the same states of models that were grown on the same examples, but for the token
    tables' columns. `drafted` is of single tokens once they were seen, with `before` they were;
    empty where no policy listens.
    """
    predicted: dict[str, list[Array]] = {name: [] for name in SOURCES}
    without_tables: dict[str, list[Array]] = {name: [] for name in SOURCES}
    outcomes: dict[str, list[Array]] = {name: [] for name in SOURCES}
    tokens: list[tuple[Array, Array, Array]] = [(np.empty(0), np.empty(0), np.empty((0, 2)))]
    for each in judged:
        for load in concurrency:
            visits = visits_of(tape, film, each, load, cost, seed)
            for source in SOURCES:
                usable, accepted = _outcomes(tape, visits, source)
                x = visits.x[usable]
                predicted[source].append(survivals(each.policy.model, x, source))
                without_tables[source].append(survivals(each.without_tables, x, source))
                levels = np.arange(1, DEPTHS + 1)
                outcomes[source].append((accepted[usable, None] >= levels).astype(np.float64))
            if each.policy.model.reads_evidence:
                tokens.append(_drafted(tape, visits, each.policy.model))
    return {
        "concurrency": list(concurrency),
        "bins": BINS,
        "sources": {
            source: _judge_depths(*(np.concatenate(each[source]) for each in states))
            for states in [(outcomes, predicted, without_tables)]
            for source in SOURCES
            if sum(map(len, outcomes[source]))
        },
        "drafted": _judge_drafted(*(np.concatenate(each) for each in zip(*tokens, strict=True))),
    }


def _judge_depths(outcomes: Array, predicted: Array, without_tables: Array) -> list[dict[str, Any]]:
    return [
        {"survival": j + 1}
        | judge(outcomes[:, j], predicted[:, j])
        | {"without_tables": sharpness(outcomes[:, j], without_tables[:, j])}
        for j in range(DEPTHS)
    ]


def _drafted(tape: Tape, visits: Visits, model: Model) -> tuple[Array, Array, Array]:
    """Of tokens before which all were right: depth, whether right, predicted before and after.

    The last two stand side by side: a row has the probabilities before the token was seen, and
    once it was.
    """
    accepted = tape.columns.neural[visits.drafted_at]
    judged = (accepted >= visits.depth - 1) & (visits.depth <= DEPTHS)
    x, depth = visits.shown[judged], visits.depth[judged]
    after = predict(model.forests["evidence"], x)[:, ACCEPTED_NEXT]
    right = accepted[judged] >= depth
    predicted = np.stack([x[:, EXPECTED].astype(np.float64), after], axis=1)
    return depth.astype(np.float64), right.astype(np.float64), predicted


def _judge_drafted(depth: Array, right: Array, predicted: Array) -> list[dict[str, Any]]:
    judged = []
    for token in range(1, DEPTHS + 1):
        mine = depth == token
        if mine.any():
            outcomes, (before, after) = right[mine], predicted[mine].T
            figures = judge(outcomes, after) | {"before": sharpness(outcomes, before)}
            judged.append({"token": token} | figures)
    return judged


def survivals(model: Model, x: NDArray[np.float32], source: str) -> Array:
    """S(1) .. S(DEPTHS) of a source, a row per row of features, as forests and curves say."""
    heads = predict(model.forests["before"], x)
    first, more = (np.ascontiguousarray(heads[:, at]) for at in _HEADS[source])
    out = np.empty((len(x), DEPTHS + 1))
    fill_survivals(first, more, model.curves[source], out)
    return np.clip(out[:, 1:], 0.0, 1.0)


def judge(outcomes: Array, predicted: Array) -> dict[str, Any]:
    """How good probabilities were: numbers rounded, None where there is but one outcome."""
    bins = reliability(outcomes, predicted)
    return {
        "states": len(outcomes),
        "came": _rounded(outcomes.mean()),
        "ece": _rounded(expected_calibration_error(bins)),
        **sharpness(outcomes, predicted),
        "curve": [[_rounded(mean), _rounded(share), count] for mean, share, count in bins],
    }


def reliability(outcomes: Array, predicted: Array) -> list[tuple[float, float, int]]:
    """(mean predicted, share that came true, states) of `BINS` bins, of equally many states each.

    Ascending. scikit-learn's quantile bins differ in size where predictions are equal.
    """
    order = np.argsort(predicted, kind="stable")
    parts = np.array_split(order, min(BINS, len(order)))
    return [
        (float(predicted[part].mean()), float(outcomes[part].mean()), len(part)) for part in parts
    ]


def expected_calibration_error(bins: Sequence[tuple[float, float, int]]) -> float:
    """sum over bins of share of states * abs(mean predicted - share that came true)."""
    total = sum(count for _, _, count in bins)
    return sum(count * abs(mean - share) for mean, share, count in bins) / total


def sharpness(outcomes: Array, predicted: Array) -> dict[str, float | None]:
    """AUC, or None where there is but one outcome, and log-loss."""
    both = 0 < outcomes.sum() < len(outcomes)
    # Nothing is certain: one miss would outweigh all else.
    bounded = np.clip(predicted, _SURE, 1 - _SURE)
    return {
        "auc": _rounded(roc_auc_score(outcomes, predicted)) if both else None,
        "log_loss": _rounded(log_loss(outcomes, bounded, labels=[0, 1])),
    }


def _outcomes(tape: Tape, visits: Visits, source: str) -> tuple[Bools, NDArray[np.int16]]:
    """The states in which a source could draft, and how many of its tokens were right in each."""
    columns = tape.columns
    if source == "ngram":
        return columns.match[visits.at] > 0, columns.run[visits.at]
    return visits.held & (columns.neural[visits.at] >= 0), columns.neural[visits.at]


def _rounded(value: float) -> float:
    return round(float(value), _DIGITS)

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
from scipy.stats import rankdata

from adaspec.cost.model import CostModel
from adaspec.policy.learned import LearnedPolicy
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
from adaspec.replay.film import Film
from adaspec.replay.learned import run_learned
from adaspec.replay.orders import draw_order, pools_among
from adaspec.replay.record import new_record
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
    record = new_record(decisions, 0, drafted)
    run_learned(tape, film, policy, order, concurrency, cost, policy.cap, record=record)
    seen, heard = slice(0, int(record.filled[0])), slice(0, int(record.filled[2]))
    return Visits(
        at=record.at[seen].copy(),
        x=record.x[seen].copy(),
        held=record.held[seen].copy(),
        drafted_at=record.evidence_at[heard].copy(),
        depth=record.evidence_depth[heard].copy(),
        shown=record.evidence_x[heard].copy(),
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
    said: dict[str, list[Array]] = {name: [] for name in SOURCES}
    bare: dict[str, list[Array]] = {name: [] for name in SOURCES}
    came: dict[str, list[Array]] = {name: [] for name in SOURCES}
    tokens: list[tuple[Array, Array, Array]] = [(np.empty(0), np.empty(0), np.empty((0, 2)))]
    for each in judged:
        for load in concurrency:
            seen = visits_of(tape, film, each, load, cost, seed)
            for source in SOURCES:
                usable, accepted = _outcomes(tape, seen, source)
                x = seen.x[usable]
                said[source].append(survivals(each.policy.model, x, source))
                bare[source].append(survivals(each.without_tables, x, source))
                levels = np.arange(1, DEPTHS + 1)
                came[source].append((accepted[usable, None] >= levels).astype(np.float64))
            if each.policy.model.reads_evidence:
                tokens.append(_drafted(tape, seen, each.policy.model))
    return {
        "concurrency": list(concurrency),
        "bins": BINS,
        "sources": {
            source: [
                {"survival": j + 1}
                | judge(outcomes[:, j], expected[:, j])
                | {"without_tables": _sharpness(outcomes[:, j], other[:, j])}
                for j in range(DEPTHS)
            ]
            for source in SOURCES
            for outcomes, expected, other in [
                (
                    np.concatenate(came[source]),
                    np.concatenate(said[source]),
                    np.concatenate(bare[source]),
                )
            ]
            if len(outcomes)
        },
        "drafted": _judge_drafted(*(np.concatenate(each) for each in zip(*tokens, strict=True))),
    }


def _drafted(tape: Tape, seen: Visits, model: Model) -> tuple[Array, Array, Array]:
    """Of tokens whose forerunners were all right: depth, whether right too, said before and after.

    The last two stand side by side: a row has what was thought before the token was seen, and once
    it was.
    """
    accepted = tape.columns.neural[seen.drafted_at]
    asked = (accepted >= seen.depth - 1) & (seen.depth <= DEPTHS)
    x, depth = seen.shown[asked], seen.depth[asked]
    after = predict(model.forests["evidence"], x)[:, ACCEPTED_NEXT]
    right = accepted[asked] >= depth
    said = np.stack([x[:, EXPECTED].astype(np.float64), after], axis=1)
    return depth.astype(np.float64), right.astype(np.float64), said


def _judge_drafted(depth: Array, right: Array, said: Array) -> list[dict[str, Any]]:
    found = []
    for token in range(1, DEPTHS + 1):
        mine = depth == token
        if mine.any():
            came, (before, after) = right[mine], said[mine].T
            found.append(
                {"token": token} | judge(came, after) | {"before": _sharpness(came, before)}
            )
    return found


def survivals(model: Model, x: NDArray[np.float32], source: str) -> Array:
    """S(1) .. S(DEPTHS) of a source, a row per row of features, as forests and curves say."""
    heads = predict(model.forests["before"], x)
    first, more = (np.ascontiguousarray(heads[:, at]) for at in _HEADS[source])
    out = np.empty((len(x), DEPTHS + 1))
    fill_survivals(first, more, model.curves[source], out)
    return np.clip(out[:, 1:], 0.0, 1.0)


def judge(came: Array, said: Array) -> dict[str, Any]:
    """How well probabilities were said: numbers rounded, None where there is but one outcome."""
    bins = reliability(came, said)
    return {
        "states": len(came),
        "came": _rounded(came.mean()),
        "ece": _rounded(expected_calibration_error(bins)),
        **_sharpness(came, said),
        "curve": [[_rounded(low), _rounded(high), count] for low, high, count in bins],
    }


def reliability(came: Array, said: Array) -> list[tuple[float, float, int]]:
    """(mean said, share that came, states) of `BINS` bins with equally many states, ascending."""
    order = np.argsort(said, kind="stable")
    parts = np.array_split(order, min(BINS, len(order)))
    return [(float(said[part].mean()), float(came[part].mean()), len(part)) for part in parts]


def expected_calibration_error(bins: Sequence[tuple[float, float, int]]) -> float:
    """sum over bins of share of states * abs(said - came)."""
    total = sum(count for _, _, count in bins)
    return sum(count * abs(said - came) for said, came, count in bins) / total


def area_under_curve(came: Array, said: Array) -> float | None:
    """P(a state where it came was said to be likelier than one where not), ties half."""
    hits = float(came.sum())
    misses = len(came) - hits
    if not hits or not misses:
        return None
    ranks = rankdata(said)
    return float((ranks[came > 0].sum() - hits * (hits + 1) / 2) / (hits * misses))


def log_loss(came: Array, said: Array) -> float:
    """Mean of -log of the probability that was said of what came."""
    sure = np.clip(said, _SURE, 1 - _SURE)
    return float(-np.mean(np.where(came > 0, np.log(sure), np.log1p(-sure))))


def _sharpness(came: Array, said: Array) -> dict[str, float | None]:
    auc = area_under_curve(came, said)
    return {
        "auc": None if auc is None else _rounded(auc),
        "log_loss": _rounded(log_loss(came, said)),
    }


def _outcomes(tape: Tape, seen: Visits, source: str) -> tuple[Bools, NDArray[np.int16]]:
    """The states in which a source could draft, and how many of its tokens were right in each."""
    columns = tape.columns
    if source == "ngram":
        return columns.match[seen.at] > 0, columns.run[seen.at]
    return seen.held & (columns.neural[seen.at] >= 0), columns.neural[seen.at]


def _rounded(value: float) -> float:
    return round(float(value), _DIGITS)

"""A cost model from measured step times.

A step's time is fitted as a line over tokens that may bend upwards or downwards at `BENDS`, with a
jump outside the graphs, and a line over everything else. So three bad steps in a hundred change
nothing: no size has a time of its own that one outlier could spoil. Its relative errors count,
those that are far off count less (Huber's weights), and those that are impossibly far not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.load import FitQuality
from adaspec.cost.model import TERMS, CostModel
from adaspec.errors import CostError

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

BENDS = (8, 64, 192)
"""Tokens at which a step may begin to cost more or less per token."""
MIN_KINDS = 10
"""The number of different steps that a fit needs, with a few held out."""
HELD_OUT_SHARE = 0.2
MIN_OWN_SHARE = 1e-2
"""A term can be told apart if at least this share of its column is outside the earlier ones."""
_ROUNDS, _USUAL_DEVIATIONS, _IMPOSSIBLE_DEVIATIONS = 20, 2.0, 10.0
"""Rounds of re-weighting; steps within so many usual deviations count in full, and in the later
rounds those beyond the last number do not count."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One timed engine step; `forwards` counts all forwards that the neural drafter ran."""

    rows: int
    tokens: int
    context_tokens: int
    forwards: int
    step_s: float


def fit_cost(
    steps: Sequence[MeasuredStep], name: str, captured_sizes: Sequence[int] = ()
) -> tuple[CostModel, FitQuality]:
    """The non-negative terms of least relative error, as a table, and a report of their errors.

    The host's overhead is part of the table. The report's errors are those of steps held out of a
    first fit, all repeats of a kind (rows, tokens, context, forwards) together; the model is fitted
    to all steps. A term that the steps do not tell apart from the others stays 0 and is reported,
    because its value would be invented.
    """
    sizes = tuple(captured_sizes)
    facts = [(step.rows, step.tokens, step.context_tokens, step.forwards) for step in steps]
    kinds, kind = np.unique(np.array(facts).reshape(-1, 4), axis=0, return_inverse=True)
    if len(kinds) < MIN_KINDS:
        raise CostError(
            f"{len(kinds)} different steps were measured, a fit needs {MIN_KINDS}: measure more"
        )
    rows, tokens, context, forwards = np.array(facts, np.float64).T
    outside = tokens > sizes[-1] if sizes else np.zeros(len(steps), np.bool_)
    ladder = np.array([*sizes, np.inf])
    # Inside the graphs a step runs at the next captured size.
    ran_at = np.where(outside | (not sizes), tokens, ladder[np.searchsorted(ladder, tokens)])
    bends = [bend for bend in BENDS if ran_at.min() < bend < ran_at.max()]
    # What each term multiplies in each step, the earlier ones first to take a common share.
    terms = _line(ran_at, bends) | {
        "context_s": context,
        "forward_s": forwards,
        "forward_per_row_s": forwards * rows,
        "forward_context_s": forwards * context,
        "jump_s": outside.astype(np.float64),
        "outside_graphs_s": outside * (forwards > 0.0),
    }
    step_s = np.array([step.step_s for step in steps])
    held_out = _held_out(kind.reshape(-1), len(kinds))
    tried = _fit(terms, step_s, ~held_out)[0]
    predicted = sum(tried[term] * column for term, column in terms.items())
    error = np.abs(predicted / step_s - 1.0)[held_out]
    values, open_terms = _fit(terms, step_s, np.ones(len(steps), np.bool_))
    return _model(name, values, bends, sizes, int(ran_at.max())), FitQuality(
        points=len(steps),
        held_out_points=int(held_out.sum()),
        mean_error=float(error.mean()),
        median_error=float(np.median(error)),
        p95_error=float(np.quantile(error, 0.95)),
        not_identified=open_terms,
    )


def _line(tokens: Array, bends: Sequence[int]) -> dict[str, Array]:
    """What the terms of a line multiply, which may bend at these tokens."""
    ends = zip((0, *bends), (*bends, np.inf), strict=True)
    slopes = {f"token_s_from_{low}": np.clip(tokens - low, 0, high - low) for low, high in ends}
    return {"fixed_s": np.ones(len(tokens)), **slopes}


def _fit(
    terms: dict[str, Array], step_s: Array, fitted: Bools
) -> tuple[dict[str, float], dict[str, str]]:
    """Each term's value, and the terms left open, with the reason."""
    names = tuple(terms)
    columns, step_s = np.column_stack(list(terms.values()))[fitted], step_s[fitted]
    reasons = _not_told_apart(names, columns / step_s[:, None])
    used = [index for index, name in enumerate(names) if name not in reasons]
    weights, scale_s = np.ones(len(step_s)), step_s
    for done in range(_ROUNDS):
        # Divided by what a step takes, squared errors are relative.
        rows, target = columns[:, used] / scale_s[:, None], step_s / scale_s
        values = _non_negative(rows * weights[:, None], target * weights)
        off = np.abs(rows @ values - target)
        usual = max(1.4826 * float(np.median(off)), 1e-3)
        weights = np.sqrt(1.0 / np.maximum(1.0, off / (_USUAL_DEVIATIONS * usual)))
        if done >= _ROUNDS // 2:
            weights[off > _IMPOSSIBLE_DEVIATIONS * usual] = 0.0
        # By its own time, a step that seems far too fast would count for many.
        fitted_s = columns[:, used] @ values
        scale_s = np.where(step_s < fitted_s / 2, fitted_s, step_s)
    found = {names[at]: float(value) for at, value in zip(used, values, strict=True)}
    return {name: found.get(name, 0.0) for name in names}, reasons


def _model(
    name: str, values: dict[str, float], bends: Sequence[int], sizes: tuple[int, ...], most: int
) -> CostModel:
    """The table over captured sizes and beyond, or over the bends where there are none."""
    largest = sizes[-1] if sizes else 0
    ends = (largest + 1, max(most, 2 * largest)) if sizes else (1, *bends, max(most, 2))
    tokens = (*sizes, *ends)
    line = _line(np.array(tokens, np.float64), bends)
    seconds = np.sum([values[term] * column for term, column in line.items()], axis=0)
    seconds[len(sizes) :] += values["jump_s"] if sizes else 0.0
    beside: dict[str, Any] = {term: values[term] for term in TERMS if term in values}
    return CostModel(name, tokens, tuple(seconds.tolist()), largest, **beside)


def _held_out(kind: NDArray[np.int64], kinds: int) -> Bools:
    """Whether to hold each step out of the fit: all steps of some kinds, drawn at random."""
    count = min(max(1, round(HELD_OUT_SHARE * kinds)), kinds - MIN_KINDS // 2)
    chosen = np.random.default_rng(0).choice(kinds, size=count, replace=False)
    return np.isin(kind, chosen)


def _not_told_apart(names: Sequence[str], rows: Array) -> dict[str, str]:
    """Term -> reason, for terms whose column is zero or in the span of earlier columns."""
    reasons: dict[str, str] = {}
    lengths = np.linalg.norm(rows, axis=0)
    columns = rows / np.where(lengths > 0.0, lengths, 1.0)
    used: list[int] = []
    for index, name in enumerate(names):
        column, earlier = columns[:, index], columns[:, used]
        remainder = column - earlier @ np.linalg.lstsq(earlier, column)[0]
        if lengths[index] == 0.0:
            reasons[name] = "what it multiplies is 0 in every point"
        elif np.linalg.norm(remainder) < MIN_OWN_SHARE:
            those = ", ".join(names[each] for each in used)
            reasons[name] = f"the points vary it only along with {those}, which took its share"
        else:
            used.append(index)
    return reasons


def _non_negative(rows: Array, wanted: Array) -> Array:
    """Non-negative least squares, with the columns scaled to the same length first."""
    from scipy.optimize import nnls  # slow to load

    scale = np.linalg.norm(rows, axis=0)
    return np.asarray(nnls(rows / scale, wanted)[0] / scale)

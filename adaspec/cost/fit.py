"""Fitting a cost model to measured step times."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.load import FitReport, check_cost
from adaspec.cost.model import CostModel, padded
from adaspec.errors import CostError

Array = NDArray[np.float64]

TERMS = ("fixed_s", "per_token_s", "per_kv_s", "draft_fixed_s", "draft_per_kv_s")
"""The fitted constants. If no point tells two of them apart, the earlier takes the share of both.
`overhead_s` is not among them, because no measurement tells it from `fixed_s`."""

MIN_KINDS = 10
"""The number of different steps that a fit of five constants needs, with a few held out."""

HELD_OUT_SHARE = 0.2
"""The share of the kinds of step that is held out of a fit."""

MIN_OWN_SHARE = 1e-3
"""A term can be told apart if at least this share of its column is outside the earlier ones."""

MAX_ERROR_SHARE = 0.5
"""A constant whose standard error alone is this share of a typical step is not identified."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One timed engine step; `forwards` counts all forwards that the neural drafter ran."""

    tokens: int
    context_tokens: int
    forwards: int
    step_s: float


def fit_cost(
    steps: Sequence[MeasuredStep], known: CostModel, seed: int = 0, floors: Sequence[int] = ()
) -> tuple[CostModel, FitReport]:
    """The non-negative constants of least squared relative error, and a report of their errors.

    `known` has the model's name and what is known from elsewhere; without an overhead in it, the
    overhead is part of `fixed_s`. The report is about steps held out of the fit; repeats of one
    kind (tokens, context, forwards) are held out together. A constant that the steps do not tell
    apart from the others stays 0 and is reported, because its value would be invented. Each of
    `floors` is tried as the only captured size, as if smaller steps were padded to it: if a step
    mostly waits for weights, a few tokens take as long as some more. A floor is used only if it
    explains the fitted steps better.
    """
    measured = _table(steps, known.overhead_s)
    held_out = _held_out(measured, seed)
    candidates = [
        known,
        *(dataclasses.replace(known, captured_sizes=(floor,)) for floor in floors),
    ]
    fits = [_fit(measured, candidate, held_out, seed) for candidate in candidates]
    cost, report, _ = min(fits, key=lambda fit: fit[2])
    return cost, report


def _fit(
    measured: Array, blank: CostModel, held_out: NDArray[np.bool_], seed: int
) -> tuple[CostModel, FitReport, float]:
    """The fitted cost model, its report, and its mean squared error on the fitted steps."""
    overhead_s = blank.overhead_s
    terms = _columns(measured, blank)
    step_s = measured[:, 3]
    seen = ~held_out

    # Each row is divided by its step time, so that every target is 1 (less the known overhead) and
    # the squared errors are relative.
    rows = terms[seen] / step_s[seen, None]
    target = 1.0 - overhead_s / step_s[seen]
    open_terms = _not_told_apart(rows)
    while True:
        used = [index for index, term in enumerate(TERMS) if term not in open_terms]
        values = _non_negative(rows[:, used], target)
        errors = _standard_errors(rows[:, used], target, values)
        vague = _vaguest(rows[:, used], errors, values)
        if vague is None or len(used) == 1:
            break
        term = TERMS[used[vague]]
        open_terms[term] = "the points do not tell it from noise; its share is in the other terms"

    fitted = {TERMS[index]: float(value) for index, value in zip(used, values, strict=True)}
    constants: dict[str, Any] = {term: fitted.get(term, 0.0) for term in TERMS}
    cost = dataclasses.replace(blank, **constants)
    check_cost(cost, f"fitted cost model '{blank.name}'")
    predicted = terms @ np.array([constants[term] for term in TERMS]) + overhead_s
    relative = predicted / step_s - 1.0
    error = np.abs(relative[held_out])
    report = FitReport(
        points=len(measured),
        held_out_points=int(held_out.sum()),
        mean_error=float(error.mean()),
        median_error=float(np.median(error)),
        p95_error=float(np.quantile(error, 0.95)),
        standard_errors_s={
            TERMS[index]: float(standard_error)
            for index, standard_error in zip(used, errors, strict=True)
            if np.isfinite(standard_error)
        },
        not_identified=open_terms,
        at_zero=[term for term, value in fitted.items() if value == 0.0],
        seed=seed,
    )
    return cost, report, float(np.square(relative[seen]).mean())


def _table(steps: Sequence[MeasuredStep], overhead_s: float) -> Array:
    """The steps as rows, after a check of each."""
    for index, step in enumerate(steps):
        if step.tokens < 1 or step.context_tokens < 0 or step.forwards < 0:
            raise CostError(
                f"step {index}: tokens={step.tokens}, context_tokens={step.context_tokens},"
                f" forwards={step.forwards} must be at least 1, 0, 0"
            )
        if not np.isfinite(step.step_s) or step.step_s <= overhead_s:
            raise CostError(
                f"step {index}: step_s={step.step_s} must be over overhead_s={overhead_s}"
            )
    kinds = {(step.tokens, step.context_tokens, step.forwards) for step in steps}
    if len(kinds) < MIN_KINDS:
        raise CostError(
            f"{len(kinds)} different steps were measured, a fit needs at least {MIN_KINDS}:"
            " measure more batch sizes, contexts and draft lengths"
        )
    return np.array(
        [(step.tokens, step.context_tokens, step.forwards, step.step_s) for step in steps],
        dtype=np.float64,
    )


def _columns(measured: Array, blank: CostModel) -> Array:
    """The factor of each constant in each step, with a column per term."""
    tokens, context_tokens, forwards = measured[:, 0], measured[:, 1], measured[:, 2]
    costs = blank.constants()
    verified = np.array([padded(costs, int(count)) for count in tokens])
    return np.column_stack(
        [np.ones(len(measured)), verified, context_tokens, forwards, forwards * context_tokens]
    )


def _held_out(measured: Array, seed: int) -> NDArray[np.bool_]:
    """Whether to hold each row out of the fit: all steps of some kinds, drawn with the seed."""
    _, kind = np.unique(measured[:, :3], axis=0, return_inverse=True)
    kinds = int(kind.max()) + 1
    count = min(max(1, round(HELD_OUT_SHARE * kinds)), kinds - len(TERMS))
    chosen = np.random.default_rng(seed).choice(kinds, size=count, replace=False)
    return np.isin(kind.reshape(-1), chosen)


def _not_told_apart(rows: Array) -> dict[str, str]:
    """Term -> reason, for terms whose column is zero or in the span of earlier columns."""
    reasons: dict[str, str] = {}
    basis: list[Array] = []
    for index, term in enumerate(TERMS):
        column = rows[:, index]
        length = float(np.linalg.norm(column))
        if length == 0.0:
            reasons[term] = "what it multiplies is 0 in every point"
            continue
        remainder = column / length
        for direction in basis:
            remainder = remainder - (remainder @ direction) * direction
        remainder_length = float(np.linalg.norm(remainder))
        if remainder_length < MIN_OWN_SHARE:
            earlier = ", ".join(name for name in TERMS[:index] if name not in reasons)
            reasons[term] = f"the points vary it only along with {earlier}, which took its share"
            continue
        basis.append(remainder / remainder_length)
    return reasons


def _non_negative(rows: Array, wanted: Array) -> Array:
    """Non-negative least squares, with the columns scaled to the same length first."""
    from scipy.optimize import nnls  # slow to load

    scale = np.linalg.norm(rows, axis=0)
    return np.asarray(nnls(rows / scale, wanted)[0] / scale)


def _standard_errors(rows: Array, wanted: Array, values: Array) -> Array:
    """The standard error of each value above 0, as in plain least squares on those; or infinity."""
    errors = np.full(len(values), np.inf)
    free = np.flatnonzero(values > 0.0)
    spare = len(rows) - len(free)
    if len(free) == 0 or spare <= 0:
        return errors
    residual = wanted - rows @ values
    variance = float(residual @ residual) / spare
    scale = np.linalg.norm(rows[:, free], axis=0)
    scaled = rows[:, free] / scale
    spread = np.diag(np.linalg.pinv(scaled.T @ scaled))
    errors[free] = np.sqrt(variance * np.maximum(spread, 0.0)) / scale
    return errors


def _vaguest(rows: Array, errors: Array, values: Array) -> int | None:
    """The last term whose standard error is a large share of a typical step, if any."""
    typical = np.sqrt(np.mean(rows**2, axis=0))
    for index in range(len(values) - 1, 0, -1):
        if values[index] > 0.0 and errors[index] * typical[index] > MAX_ERROR_SHARE:
            return index
    return None

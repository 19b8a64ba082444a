"""How far evidence may move a belief."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.errors import PolicyError
from adaspec.predict.evidence_factors import (
    BINS,
    POINTS,
    factor_bin,
    factors_from,
    fit_factors,
)


def test_evidence_moves_a_belief_as_far_as_it_tells() -> None:
    beliefs = np.random.default_rng(0).uniform(0.2, 0.9, 4000)
    nothing = fit_factors(beliefs, beliefs).factors
    assert np.abs(nothing[:, POINTS // 2] - 1).max() < 0.03
    # What is left is the width of a bin.
    assert np.abs(nothing - 1).max() < 0.35
    after = (np.random.default_rng(1).random(5000) < 0.6).astype(np.float64)
    yes_or_no = fit_factors(np.full(5000, 0.6), after).factors
    np.testing.assert_allclose(yes_or_no[-1], [0, 0, 1 / 0.6, 1 / 0.6, 1 / 0.6], atol=0.1)


def test_factors_keep_the_mean_of_calibrated_beliefs() -> None:
    rng = np.random.default_rng(2)
    before = rng.uniform(0.1, 0.9, 20000)
    after = rng.beta(4 * before, 4 * (1 - before))
    factors = fit_factors(before, after)
    assert len(factors.edges) == BINS - 1
    assert np.abs(factors.factors.mean(1) - 1).max() < 0.05
    assert (np.diff(factors.factors, axis=1) >= 0).all()


def test_few_examples_and_beliefs_of_nothing_give_no_outlook() -> None:
    few = fit_factors(np.full(10, 0.5), np.full(10, 0.7))
    none = fit_factors(np.zeros(1000), np.full(1000, 0.7))
    for factors in (few, none):
        assert (factors.factors == 1).all()
        assert factor_bin(0.3, factors) == 0


@pytest.mark.parametrize(
    "edges, factors",
    [
        (np.array([0.5, 0.4]), np.ones((3, POINTS))),
        (np.array([np.nan]), np.ones((2, POINTS))),
        (np.array([0.5]), np.ones((1, POINTS))),
        (np.array([0.5]), np.full((2, POINTS), -0.1)),
        (np.array([0.5], np.float32), np.ones((2, POINTS))),
    ],
)
def test_an_unsound_outlook_is_refused(edges: np.ndarray, factors: np.ndarray) -> None:
    with pytest.raises(PolicyError, match="outlook of evidence"):
        factors_from({"outlook.edges": edges, "outlook.factors": factors})

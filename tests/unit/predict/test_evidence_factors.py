"""How far evidence may move a belief."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.errors import PolicyError
from adaspec.predict.evidence_factors import (
    BINS,
    POINTS,
    EvidenceFactors,
    factor_arrays,
    factor_bin,
    factors_from,
    fit_factors,
    no_factors,
)


def test_evidence_that_tells_nothing_moves_nothing() -> None:
    beliefs = np.random.default_rng(0).uniform(0.2, 0.9, 4000)
    factors = fit_factors(beliefs, beliefs)
    middles = factors.factors[:, POINTS // 2]
    assert np.abs(middles - 1).max() < 0.03
    # What is left is the width of a bin.
    assert np.abs(factors.factors - 1).max() < 0.35


def test_evidence_that_tells_all_splits_a_belief_into_yes_and_no() -> None:
    rng = np.random.default_rng(1)
    before = np.full(5000, 0.6)
    after = (rng.random(5000) < 0.6).astype(np.float64)
    factors = fit_factors(before, after).factors
    assert len(factors) >= 1
    np.testing.assert_allclose(factors[-1], [0, 0, 1 / 0.6, 1 / 0.6, 1 / 0.6], atol=0.1)


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


def test_a_belief_falls_into_the_bin_whose_edge_it_has_reached() -> None:
    factors = EvidenceFactors(np.array([0.2, 0.5]), np.ones((3, POINTS)))
    assert [factor_bin(b, factors) for b in (0.0, 0.2, 0.49, 0.5, 1.0)] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "edges, factors",
    [
        (np.array([0.5, 0.4]), np.ones((3, POINTS))),
        (np.array([np.nan]), np.ones((2, POINTS))),
        (np.array([0.5]), np.ones((1, POINTS))),
        (np.array([0.5]), np.ones((2, POINTS + 1))),
        (np.array([0.5]), np.full((2, POINTS), -0.1)),
        (np.array([0.5]), np.full((2, POINTS), np.inf)),
        (np.array([0.5], np.float32), np.ones((2, POINTS))),
    ],
)
def test_an_unsound_outlook_is_refused(edges: np.ndarray, factors: np.ndarray) -> None:
    with pytest.raises(PolicyError, match="outlook of evidence"):
        factors_from({"outlook.edges": edges, "outlook.factors": factors})


def test_an_outlook_survives_its_arrays() -> None:
    fitted = fit_factors(*np.random.default_rng(3).uniform(0.1, 0.9, (2, 2000)))
    for factors in (fitted, no_factors()):
        back = factors_from(factor_arrays(factors))
        np.testing.assert_array_equal(back.edges, factors.edges)
        np.testing.assert_array_equal(back.factors, factors.factors)

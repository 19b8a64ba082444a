"""Calibration: the measures against their definitions."""

import numpy as np
import pytest

from adaspec.evaluate.calibration import (
    BINS,
    expected_calibration_error,
    reliability,
    sharpness,
)


@pytest.fixture
def drawn():
    rng = np.random.default_rng(3)
    predicted = rng.random(6000)
    return (rng.random(6000) < predicted).astype(float), predicted


def test_right_predictions_are_calibrated(drawn):
    outcomes, predicted = drawn
    assert expected_calibration_error(reliability(outcomes, predicted)) < 0.03
    assert expected_calibration_error(reliability(outcomes, predicted**2)) > 0.1


def test_bins_hold_equally_many_states_and_ascend(drawn):
    outcomes, predicted = drawn
    bins = reliability(outcomes, predicted)
    assert len(bins) == BINS
    assert {count for _, _, count in bins} == {400}
    assert [low for low, _, _ in bins] == sorted(low for low, _, _ in bins)
    assert len(reliability(outcomes[:4], predicted[:4])) == 4


def test_the_area_counts_pairs_and_halves_ties():
    rng = np.random.default_rng(1)
    outcomes, predicted = rng.integers(0, 2, 80).astype(float), rng.integers(0, 6, 80) / 6
    pairs = [
        (predicted[i] > predicted[j]) + 0.5 * (predicted[i] == predicted[j])
        for i in np.flatnonzero(outcomes)
        for j in np.flatnonzero(outcomes == 0)
    ]
    assert sharpness(outcomes, predicted)["auc"] == pytest.approx(np.mean(pairs), abs=1e-6)
    assert sharpness(np.ones(5), rng.random(5))["auc"] is None


def test_log_loss_survives_certainties():
    losses = [
        sharpness(np.array([1.0, 0.0]), np.array(predicted))["log_loss"]
        for predicted in ((0.5, 0.5), (0.0, 1.0))
    ]
    assert losses == pytest.approx([np.log(2), -np.log(1e-6)], abs=1e-6)

"""Calibration: the measures against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.evaluate.calibration import (
    BINS,
    expected_calibration_error,
    judge,
    reliability,
    sharpness,
)


@pytest.fixture
def drawn():
    rng = np.random.default_rng(3)
    said = rng.random(6000)
    return (rng.random(6000) < said).astype(float), said


def test_what_is_said_rightly_is_calibrated(drawn):
    came, said = drawn
    assert expected_calibration_error(reliability(came, said)) < 0.03
    assert expected_calibration_error(reliability(came, said**2)) > 0.1


def test_a_constant_is_off_by_how_much_it_is_off():
    came = np.array([1.0, 0.0, 0.0, 0.0] * 15)
    assert expected_calibration_error(reliability(came, np.full(60, 0.75))) == pytest.approx(0.5)


def test_bins_hold_equally_many_states_and_ascend(drawn):
    came, said = drawn
    bins = reliability(came, said)
    assert len(bins) == BINS
    assert {count for _, _, count in bins} == {400}
    assert [low for low, _, _ in bins] == sorted(low for low, _, _ in bins)
    assert len(reliability(came[:4], said[:4])) == 4


def test_the_area_counts_pairs_and_halves_ties():
    rng = np.random.default_rng(1)
    came, said = rng.integers(0, 2, 80).astype(float), rng.integers(0, 6, 80) / 6
    pairs = [
        (said[i] > said[j]) + 0.5 * (said[i] == said[j])
        for i in np.flatnonzero(came)
        for j in np.flatnonzero(came == 0)
    ]
    assert sharpness(came, said)["auc"] == pytest.approx(np.mean(pairs), abs=1e-6)
    assert sharpness(np.ones(5), rng.random(5))["auc"] is None


def test_log_loss_survives_certainties():
    came = np.array([1.0, 0.0])
    halves, wrong = sharpness(came, np.array([0.5, 0.5])), sharpness(came, np.array([0.0, 1.0]))
    assert halves["log_loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert wrong["log_loss"] == pytest.approx(-np.log(1e-6), abs=1e-6)


def test_what_is_judged_is_plain_numbers(drawn):
    found = judge(*drawn)
    assert found["states"] == 6000
    assert 0.8 < found["auc"] < 0.87
    assert sum(count for _, _, count in found["curve"]) == 6000
    assert judge(np.ones(3), np.ones(3))["auc"] is None

"""Calibration: the figures against their definitions."""

import numpy as np
import pytest

from adaspec.train.recipe import BINS, judge


def test_figures_are_those_of_their_definitions():
    rng = np.random.default_rng(3)
    predicted = rng.random(600).round(1)  # with ties
    came = (rng.random(600) < predicted).astype(float)
    found = judge(came, predicted)
    by_size = np.argsort(predicted, kind="stable").reshape(BINS, -1)
    gaps = abs(predicted[by_size].mean(1) - came[by_size].mean(1))
    assert found["ece"] == pytest.approx(gaps.mean(), abs=1e-6)
    above = predicted[came == 1][:, None] - predicted[came == 0]
    assert found["auc"] == pytest.approx(np.mean((above > 0) + 0.5 * (above == 0)), abs=1e-6)
    assert (found["positions"], found["came"]) == (600, pytest.approx(came.mean(), abs=1e-6))
    assert judge(came, predicted**4)["ece"] > 2 * found["ece"]


def test_equal_outcomes_have_no_area_and_certain_misses_a_finite_loss():
    assert judge(np.ones(5), np.linspace(0.1, 0.9, 5))["auc"] is None
    losses = [judge(np.array([1.0, 0.0]), np.array(p))["log_loss"] for p in ((0.5, 0.5), (0, 1))]
    assert losses == pytest.approx([np.log(2), -np.log(1e-6)], abs=1e-6)

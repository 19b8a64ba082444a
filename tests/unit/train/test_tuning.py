"""How knobs are compared: by what they bring in a typical fold, at all loads together."""

import numpy as np
import pytest

from adaspec.train.training import typical_gain

BEFORE = np.log([[300.0, 9000.0], [310.0, 9100.0], [290.0, 8900.0]])
"""Throughputs of three folds at two loads."""


def test_what_gains_as_much_in_every_fold_gains_that_at_every_load():
    assert typical_gain(BEFORE + np.log(1.01), BEFORE) == pytest.approx(2 * np.log(1.01))


def test_one_fold_that_ends_luckily_at_a_high_load_decides_nothing():
    lucky = BEFORE - 0.002
    lucky[1, 1] += 0.1
    assert (lucky - BEFORE).sum() > 0
    assert typical_gain(lucky, BEFORE) == pytest.approx(-0.004)


def test_loads_weigh_the_same():
    tried = BEFORE + [0.003, -0.002]
    assert typical_gain(tried, BEFORE) == pytest.approx(0.001)

"""A network predicts by its definition, the same wherever a row stands."""

import numpy as np
import pytest
from random_models import random_network

from adaspec.errors import PolicyError
from adaspec.predict.features import BEFORE_FEATURES
from adaspec.predict.model import BEFORE_HEADS
from adaspec.predict.network import PROBABILITY, network_from, predict

FEATURES, HEADS = len(BEFORE_FEATURES), len(BEFORE_HEADS)


def rows_of(random, count):
    """Features of every size and sign, zero and missing ones included."""
    x = random.normal(0, 1, (count, FEATURES)) * 10.0 ** random.integers(-4, 6, (count, FEATURES))
    x[random.random(x.shape) < 0.1] = 0.0
    x[random.random(x.shape) < 0.2] = np.nan
    return x.astype(np.float32)


def predict_by_definition(network, x):
    """The formula of the module's docstring, in float64."""
    x = x.astype(np.float64)
    missing, given = np.isnan(x), x[:, network.source]
    rise = np.clip((given[:, None, :] - network.low) * network.slope, 0, 1).sum(1)
    inputs = np.where(np.isnan(given), 0.0, (rise - network.shift) * network.scale)
    hidden = np.concatenate([inputs, missing[:, network.flagged]], axis=1)
    for weight, bias in ((network.weight_1, network.bias_1), (network.weight_2, network.bias_2)):
        total = hidden @ weight.astype(np.float64) + bias
        hidden = total / (1 + np.exp(-total))
    out = hidden @ network.weight_3.astype(np.float64) + network.bias_3
    return np.where(network.link == PROBABILITY, 1 / (1 + np.exp(-out)), out)


@pytest.mark.parametrize("width", [1, 3, 10, 64])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 1300])
def test_a_network_predicts_by_its_definition(width, rows):
    random = np.random.default_rng([width, rows])
    network, x = random_network("before", rows, width), rows_of(random, rows)
    again = network_from("before", network.arrays(), FEATURES, HEADS)
    stored, arrays = network.arrays(), again.arrays()
    assert all(np.array_equal(stored[name], arrays[name]) for name in stored)
    np.testing.assert_allclose(
        predict(network, x), predict_by_definition(network, x), rtol=2e-5, atol=2e-5
    )


def test_a_network_too_large_to_be_computed_is_refused():
    large = random_network("before", 11, 600).arrays()
    with pytest.raises(PolicyError, match="600 hidden units: at most 4096 and 1 to 512 can be"):
        network_from("before", large, FEATURES, HEADS)

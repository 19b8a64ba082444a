"""A network predicts by its definition, the same wherever a row stands."""

import numpy as np
import pytest
from random_models import random_model, random_network

from adaspec.errors import PolicyError
from adaspec.predict.features import BEFORE_FEATURES
from adaspec.predict.model import BEFORE_HEADS, model_from
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


def test_a_row_is_predicted_alike_wherever_it_stands_and_whatever_is_beside_it():
    random = np.random.default_rng(4)
    network, x = random_network("before", 4), rows_of(random, 50)
    together = predict(network, x)
    for row in range(50):
        alone = predict(network, x[row : row + 1])[0]
        np.testing.assert_allclose(alone, together[row], rtol=2e-7)
    order = random.permutation(50)
    np.testing.assert_allclose(predict(network, x[order]), together[order], rtol=2e-7)


def test_a_damaged_network_is_refused_in_one_line_or_predicts():
    random = np.random.default_rng(10)
    sound = 0
    for _ in range(600):
        arrays = random_network("before", int(random.integers(8))).arrays()
        arrays = {name: array.copy() for name, array in arrays.items()}
        name = str(random.choice(list(arrays)))
        array = arrays[name]
        match int(random.integers(0, 6)):
            case 0:
                raw = bytearray(array.tobytes())
                raw[random.integers(len(raw))] ^= 1 << int(random.integers(8))
                arrays[name] = np.frombuffer(raw, array.dtype).reshape(array.shape)
            case 1:
                arrays[name] = array[: random.integers(0, len(array) + 1)]
            case 2:
                kinds = [np.float64, np.int64, np.object_, ">i4", "U3"]
                arrays[name] = array.astype(kinds[random.integers(len(kinds))])
            case 3:
                arrays[name] = array[None]
            case 4:
                array.flat[random.integers(array.size)] = random.integers(-3, 40)
            case 5 if array.dtype == np.float32:
                array.flat[random.integers(array.size)] = random.choice([np.nan, np.inf, 1e30])
        try:
            network = network_from("before", arrays, FEATURES, HEADS)
        except PolicyError as error:
            assert str(error).startswith("network 'before': ")
            assert "\n" not in str(error)
            continue
        sound += 1
        with np.errstate(all="ignore"):
            assert predict(network, rows_of(random, 3)).shape == (3, HEADS)
    assert 0 < sound < 300
    large = random_network("before", 11, 600).arrays()
    with pytest.raises(PolicyError, match="600 hidden units: at most 4096 and 1 to 512 can be"):
        network_from("before", large, FEATURES, HEADS)


def test_a_model_that_lacks_any_array_or_has_one_too_many_is_refused():
    model = random_model(5, evidence=True)
    arrays, tables = model.network_arrays(), model.table_arrays()
    assert model_from(arrays, tables).network_arrays().keys() == arrays.keys()
    for name in arrays:
        with pytest.raises(PolicyError):
            model_from({key: arrays[key] for key in arrays if key != name}, tables)
    for name in ("curve-other.edges", "ear.heads", "loose", "before.more"):
        with pytest.raises(PolicyError):
            model_from(arrays | {name: np.zeros(1)}, tables)

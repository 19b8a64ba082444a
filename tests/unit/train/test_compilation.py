"""What compiles, by which names, and what is refused."""

import lightgbm
import numpy as np
import pytest

from adaspec.errors import PolicyError
from adaspec.predict.forest import predict
from adaspec.train import compilation
from adaspec.train.compilation import compile_forest

NAMES = ["length", "kind", "recent"]


def values_of():
    random = np.random.default_rng(0)
    values = random.normal(size=(300, 3)).astype(np.float32)
    values[:, 1] = random.integers(0, 9, 300)
    return values


def boosted(rounds=3):
    values = values_of()
    label = values[:, 0] + (values[:, 1] % 2) + values[:, 2] > 0.5
    parameters = {"objective": "binary", "num_threads": 1, "verbose": -1}
    data = lightgbm.Dataset(values, label.astype(float), feature_name=NAMES, params=parameters)
    return lightgbm.train(parameters, data, rounds)


def test_heads_share_features_by_name_in_any_order():
    values = values_of()
    booster = boosted()
    order = ["recent", "unused", "kind", "length"]
    forest = compile_forest({"one": booster, "two": boosted(5)}, order)
    assert forest.heads == ("one", "two")
    again = np.stack([values[:, 2], values[:, 0] * 0, values[:, 1], values[:, 0]], 1)
    np.testing.assert_allclose(predict(forest, again)[:, 0], booster.predict(values), rtol=1e-12)


def test_limits_are_named(monkeypatch):
    monkeypatch.setattr(compilation, "MOST_COLUMNS", 1)
    with pytest.raises(PolicyError, match="different kinds of splits: at most 1"):
        compile_forest({"head": boosted()}, NAMES)
    monkeypatch.setattr(compilation, "MOST_SLOTS", 9)
    with pytest.raises(PolicyError, match=r"head 'head' tree 0: .* leaves: at most 5 compile"):
        compile_forest({"head": boosted()}, NAMES)

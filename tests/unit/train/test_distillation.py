"""A network learns what it is shown, by the right slopes, and the same way every time."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.predict.network import NUMBER, PROBABILITY, predict
from adaspec.train.distillation import Distilling, distil

LINK = np.array([PROBABILITY, NUMBER], np.int32)


def examples(count, seed=0):
    """Features, one of them missing at times, and two smooth functions of them."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 2, (count, 4)).astype(np.float32)
    x[random.random(count) < 0.3, 1] = np.nan
    z = np.nan_to_num(x.astype(np.float64))
    first = 1 / (1 + np.exp(-z[:, 0] + z[:, 1]))
    return x, np.column_stack([first, np.log1p(np.abs(z[:, 2])) + np.isnan(x[:, 1])])


def splits_evenly(x):
    """As if trees had split every feature as often everywhere it occurs."""
    marks = [np.nanquantile(column, np.linspace(0.02, 0.98, 40)) for column in x.T]
    return [np.column_stack([each, np.ones(40)]) for each in marks]


def fit(x, targets, weight, **settings):
    return distil(x, targets, weight, LINK, splits_evenly(x), Distilling(**settings))


def error_of(network, x, targets):
    return np.sqrt(np.mean((predict(network, x) - targets) ** 2, axis=0))


@pytest.mark.parametrize(("count", "passes", "left"), [(20_000, 20, 0.1), (2_000, 1, 0.2)])
def test_a_network_learns_to_predict_its_targets(count, passes, left):
    x, targets = examples(count)
    unseen = examples(2_000, seed=1)
    network = fit(x, targets, np.ones(len(x)), width=24, passes=passes)
    assert (error_of(network, *unseen) < left * targets.std(0)).all()


@pytest.mark.parametrize("count", [1, 2, 33, 500])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(count):
    x, targets = examples(count)
    one, again, other = (
        fit(x, targets, np.ones(count), width=8, passes=2, seed=seed) for seed in (3, 3, 4)
    )
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one.weight_1, other.weight_1)
    assert np.isfinite(predict(one, x)).all()


def test_examples_without_weight_teach_nothing():
    x, targets = examples(4_000)
    weight = np.where(np.arange(4_000) % 2, 1.0, 0.0)
    wrong = np.where(weight[:, None] > 0, targets, 0.5)
    network = fit(x, wrong, weight, width=16, passes=40)
    assert (error_of(network, x, targets) < 0.15 * targets.std(0)).all()


def test_a_feature_on_which_no_tree_splits_is_never_looked_at():
    x, targets = examples(300)
    splits = splits_evenly(x)
    splits[3] = splits[3][:0]
    network = distil(
        x, targets, np.ones(300), LINK, splits, Distilling(width=8, passes=1, least_steps=1)
    )
    assert 3 not in network.source
    shown = x.copy()
    shown[:, 3] = np.nan
    assert np.array_equal(predict(network, x), predict(network, shown))

"""A network learns what it is shown, by the right slopes, and the same way every time."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.predict.network import NUMBER, PROBABILITY, predict
from adaspec.train import distillation
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


def test_a_network_learns_to_predict_its_targets():
    x, targets = examples(20_000)
    unseen = examples(2_000, seed=1)
    network = fit(x, targets, np.ones(len(x)), width=24, passes=20)
    assert (error_of(network, *unseen) < 0.1 * targets.std(0)).all()


def test_few_examples_are_gone_through_until_they_are_learned():
    x, targets = examples(2_000)
    unseen = examples(2_000, seed=1)
    once = fit(x, targets, np.ones(len(x)), width=24, passes=1, least_steps=1)
    network = fit(x, targets, np.ones(len(x)), width=24, passes=1)
    assert (error_of(once, *unseen) > 0.4 * targets.std(0)).all()
    assert (error_of(network, *unseen) < 0.2 * targets.std(0)).all()


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    x, targets = examples(500)
    one, again, other = (
        fit(x, targets, np.ones(500), width=8, passes=2, seed=seed) for seed in (3, 3, 4)
    )
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one.weight_1, other.weight_1)


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


def test_a_feature_on_which_more_depends_has_more_columns_laid_where_it_changes():
    steps = np.array([[1.0, 0.1], [2.0, 0.1], [30.0, 0.7]])
    source, low, slope = distillation._columns([steps, steps * [1, 0.1], *[steps[:0]] * 8])
    assert np.bincount(source).tolist() == [22, 2]
    behind = low + 1 / np.where(slope > 0, slope, 1)
    assert (low < behind).all()
    # Seven tenths of the first feature's change is a step at 30.
    of_first = behind[:, source == 0]
    assert np.mean(of_first > 29.9) == pytest.approx(0.8, abs=0.03)
    assert of_first.max() == pytest.approx(30.0)


@pytest.mark.parametrize("count", [1, 2, 33])
def test_very_few_examples_are_enough_to_fit_something(count):
    x, targets = examples(count)
    network = fit(x, targets, np.ones(count), width=4, passes=2)
    assert np.isfinite(predict(network, x)).all()


def loss_of(network, x, targets, weight, scale):
    """The weighted mean of cross-entropy and half the squared error, in float64 where it counts."""
    said = predict(network, x)
    p, t = said[:, 0], targets[:, 0]
    entropy = -(t * np.log(p) + (1 - t) * np.log1p(-p))
    squares = 0.5 * (said[:, 1] - targets[:, 1]) ** 2
    return float((weight * (scale[0] * entropy + scale[1] * squares)).mean())


def test_slopes_are_those_of_the_loss_by_small_steps():
    x, targets = examples(64)
    x = np.nan_to_num(x)
    random = np.random.default_rng(2)
    weight, scale = random.uniform(0.5, 1.5, 64), np.array([1.0, 0.7], np.float32)
    parameters, network = distillation._begin(x, targets, weight, LINK, splits_evenly(x), 6, random)
    slopes = np.zeros_like(parameters)
    distillation._fill_slopes(
        network,
        distillation._views(slopes, network),
        slopes,
        x,
        targets.astype(np.float32),
        weight.astype(np.float32),
        scale,
        np.arange(64),
        *distillation._working_memory(network, 64),
    )
    for at in random.permutation(len(parameters))[:40]:
        kept, around = parameters[at], []
        for step in (0.02, -0.02):
            parameters[at] = kept + step
            around.append(loss_of(network, x, targets, weight, scale))
        parameters[at] = kept
        assert slopes[at] == pytest.approx((around[0] - around[1]) / 0.04, rel=0.02, abs=2e-4)

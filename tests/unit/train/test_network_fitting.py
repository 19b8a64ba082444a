"""A network says what the trees say, also of features that never occurred together."""

from __future__ import annotations

import lightgbm
import numpy as np
import pytest

from adaspec.predict.features import EVIDENCE_FEATURES
from adaspec.predict.model import HEADS
from adaspec.predict.network import NUMBER, PROBABILITY, predict
from adaspec.train.heads import HeadMaker, Settings, constant
from adaspec.train.network import Fitting, distilled, fit_network, one_torch_thread

LINK = np.array([PROBABILITY, NUMBER], np.int32)


@pytest.fixture(autouse=True)
def as_in_training():
    with one_torch_thread():
        yield


def examples(count, seed=0):
    """Features, one of them missing at times, and two smooth functions of them."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 2, (count, 4)).astype(np.float32)
    x[random.random(count) < 0.3, 1] = np.nan
    z = np.nan_to_num(x.astype(np.float64))
    first = 1 / (1 + np.exp(-z[:, 0] + z[:, 1]))
    return x, np.column_stack([first, np.log1p(np.abs(z[:, 2])) + np.isnan(x[:, 1])])


def splits_evenly(x, but=()):
    """As if trees had split every other feature as often everywhere it occurs."""
    marks = [np.nanquantile(column, np.linspace(0.02, 0.98, 40)) for column in x.T]
    splits = [np.column_stack([each, np.ones(40)]) for each in marks]
    return [each[:0] if feature in but else each for feature, each in enumerate(splits)]


@pytest.mark.parametrize(("count", "left"), [(20_000, 0.1), (2_000, 0.2)])
def test_a_network_learns_to_predict_its_targets(count, left):
    x, targets = examples(count)
    unseen, expected = examples(2_000, seed=1)
    network = fit_network(x, targets, LINK, splits_evenly(x), Fitting(width=24))
    error = np.sqrt(np.mean((predict(network, unseen) - expected) ** 2, axis=0))
    assert (error < left * targets.std(0)).all()


@pytest.mark.parametrize("count", [1, 2, 33, 500])
def test_the_same_seed_gives_the_same_network_and_never_looks_where_no_tree_splits(count):
    x, targets = examples(count)
    one, again, other = (
        fit_network(
            x,
            targets,
            LINK,
            splits_evenly(x, but=[3]),
            Fitting(width=8, steps=50, seed=seed),
        )
        for seed in (3, 3, 4)
    )
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one.weight_1, other.weight_1)
    shown = x.copy()
    shown[:, 3] = np.nan
    said = predict(one, x)
    assert np.isfinite(said).all()
    assert np.array_equal(said, predict(one, shown))


def rows(count: int, seed: int):
    """Some features count, some are shares; where the fourth is large, so is the fifth."""
    random = np.random.default_rng(seed)
    x = random.random((count, len(EVIDENCE_FEATURES))).astype(np.float32)
    x[:, 3] = np.where(random.random(count) < 0.01, 50.0, x[:, 3])
    x[:, 4] = np.where(x[:, 3] > 10, 0.7 + 0.3 * x[:, 4], x[:, 4])
    x[random.random(count) < 0.2, 2] = np.nan
    return x


def grown(x) -> dict[str, lightgbm.Booster]:
    """Trees for one head, by outcomes; the other heads are constant."""
    chance = np.where(x[:, 3] > 10, 0.1, 0.3 + 0.6 * x[:, 0])
    outcome = np.random.default_rng(1).random(len(x)) < chance
    first = HeadMaker("evidence", Settings(threads=1, rounds=30)).share(x, outcome)
    heads = HEADS["evidence"]
    return {heads[0]: first} | {head: constant(0.25, EVIDENCE_FEATURES) for head in heads[1:]}


def test_a_network_says_what_the_trees_say_of_unseen_features_and_of_rare_ones_apart():
    x, unseen = rows(30_000, 0), rows(3_000, 2)
    boosters = grown(x)
    network = distilled("evidence", boosters, x, Fitting(width=24), 1)
    said, trees = predict(network, unseen), boosters[HEADS["evidence"][0]]
    taught = trees.predict(unseen)
    assert np.sqrt(np.mean((said[:, 0] - taught) ** 2)) < 0.15 * np.std(taught)
    np.testing.assert_allclose(said[:, 1:], 0.25, atol=0.01)
    apart = rows(2_000, 3)
    apart[:, 3], apart[:, 4] = 50.0, 0.2  # never seen together
    rare = trees.predict(apart).mean()
    assert rare < 0.4 < trees.predict(x).mean()
    assert predict(network, apart)[:, 0].mean() == pytest.approx(rare, abs=0.05)


def test_trees_that_know_nothing_give_a_constant_network():
    heads = {head: constant(0.25, EVIDENCE_FEATURES) for head in HEADS["evidence"]}
    for x in (rows(100, 0), rows(0, 0)):
        network = distilled("evidence", heads, x, Fitting(), 1)
        np.testing.assert_allclose(predict(network, rows(5, 1)), 0.25)

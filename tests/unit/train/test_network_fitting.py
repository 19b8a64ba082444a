import numpy as np
import pytest

from adaspec.predict.features import BEFORE_FEATURES
from adaspec.predict.model import BEFORE_HEADS
from adaspec.predict.network import predict
from adaspec.train.heads import HeadMaker, Settings, constant
from adaspec.train.network import distilled, one_torch_thread


@pytest.fixture(autouse=True)
def as_in_training():
    with one_torch_thread():
        yield


def rows(count, seed):
    """Features, some missing, one always the same; where the fourth is large, so is the fifth."""
    random = np.random.default_rng(seed)
    x = random.random((count, len(BEFORE_FEATURES))).astype(np.float32)
    x[:, 3] = np.where(random.random(count) < 0.01, 50.0, x[:, 3])
    x[:, 4] = np.where(x[:, 3] > 10, 0.7 + 0.3 * x[:, 4], x[:, 4])
    x[:, 5] = 0.5
    x[random.random(count) < 0.2, 2] = np.nan
    return x


def grown(x):
    """Trees for a share and for a number, by outcomes; the other heads are constant."""
    chance = np.where(x[:, 3] > 10, 0.1, 0.3 + 0.6 * x[:, 0])
    outcome = np.random.default_rng(1).random(len(x)) < chance
    maker = HeadMaker("before", Settings(threads=1, rounds=30))
    more = maker.head(x, np.log1p(9 * x[:, 1]) + np.isnan(x[:, 2]), "regression")
    found = {head: constant(0.25, BEFORE_FEATURES) for head in BEFORE_HEADS}
    return found | {"ngram_first": maker.share(x, outcome), "ngram_more": more}


def test_a_network_says_what_the_trees_say_of_unseen_features_and_of_rare_ones_apart():
    x, unseen = rows(30_000, 0), rows(3_000, 2)
    boosters = grown(x)
    network = distilled("before", boosters, x, Settings(width=32))
    said = predict(network, unseen)
    for head, trees in enumerate(boosters.values()):
        taught = trees.predict(unseen)
        error = np.sqrt(np.mean((said[:, head] - taught) ** 2))
        assert error < 0.15 * np.std(taught) + 0.005, head
    apart = rows(2_000, 3)
    apart[:, 3], apart[:, 4] = 50.0, 0.2  # never seen together
    trees = boosters["ngram_first"]
    rare = trees.predict(apart).mean()
    assert rare < 0.4 < trees.predict(x).mean()
    assert predict(network, apart)[:, 0].mean() == pytest.approx(rare, abs=0.05)


def test_a_network_never_looks_where_no_tree_splits():
    x = rows(500, 0)
    one = distilled("before", grown(x), x, Settings(width=8, steps=50))
    shown = x.copy()
    shown[:, 5] = np.nan
    said = predict(one, x)
    assert np.isfinite(said).all()
    assert np.array_equal(said, predict(one, shown))


def test_trees_that_know_nothing_give_a_constant_network():
    heads = {head: constant(0.25, BEFORE_FEATURES) for head in BEFORE_HEADS}
    for x in (rows(100, 0), rows(0, 0)):
        network = distilled("before", heads, x, Settings())
        np.testing.assert_allclose(predict(network, rows(5, 1)), 0.25)

"""A network says what the trees say, also of features that never occurred together."""

from __future__ import annotations

import lightgbm
import numpy as np

from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.model import HEADS
from adaspec.predict.network import predict
from adaspec.train.distillation import Distilling
from adaspec.train.examples import Sample, sample
from adaspec.train.heads import Settings, boost, constant
from adaspec.train.teacher import distilled, splits_of

SETTINGS = Settings(threads=1, rounds=30)
QUICK = Distilling(width=24, passes=20)
FEATURES = len(EVIDENCE)


def rows(count: int, seed: int):
    """Some features count, some are shares; where the fourth is large, so is the fifth."""
    random = np.random.default_rng(seed)
    x = random.random((count, FEATURES)).astype(np.float32)
    x[:, 3] = np.where(random.random(count) < 0.01, 50.0, x[:, 3])
    x[:, 4] = np.where(x[:, 3] > 10, 0.7 + 0.3 * x[:, 4], x[:, 4])
    x[random.random(count) < 0.2, 2] = np.nan
    return x


def chance(x):
    return np.where(x[:, 3] > 10, 0.1, 0.3 + 0.6 * x[:, 0])


def grown(x) -> dict[str, lightgbm.Booster]:
    """Trees for one head, by outcomes; the other heads are constant."""
    outcome = (np.random.default_rng(1).random(len(x)) < chance(x)).astype(float)
    first = boost(x, outcome, np.ones(len(x)), "binary", EVIDENCE, SETTINGS)
    heads = HEADS["evidence"]
    return {heads[0]: first} | {head: constant(0.25, EVIDENCE) for head in heads[1:]}


def seen(x) -> Sample:
    return sample(np.arange(len(x)), x)


def test_a_network_says_of_unseen_features_what_the_trees_say():
    x, unseen = rows(30_000, 0), rows(3_000, 2)
    boosters = grown(x)
    network = distilled("evidence", boosters, seen(x), QUICK, 1)
    said = predict(network, unseen)
    taught = boosters[HEADS["evidence"][0]].predict(unseen)
    assert np.sqrt(np.mean((said[:, 0] - taught) ** 2)) < 0.15 * np.std(taught)
    np.testing.assert_allclose(said[:, 1:], 0.25, atol=0.01)


def test_what_a_rare_value_does_is_not_laid_on_what_goes_with_it():
    x = rows(30_000, 0)
    boosters = grown(x)
    network = distilled("evidence", boosters, seen(x), QUICK, 1)
    apart = rows(2_000, 3)
    apart[:, 3], apart[:, 4] = 50.0, 0.2  # never seen together
    taught = boosters[HEADS["evidence"][0]].predict(apart)
    assert taught.mean() < 0.4 < boosters[HEADS["evidence"][0]].predict(x).mean()
    np.testing.assert_allclose(predict(network, apart)[:, 0].mean(), taught.mean(), atol=0.05)


def test_splits_are_those_of_the_trees_and_their_changes_add_up_to_one_per_head():
    x = rows(4_000, 0)
    boosters = grown(x)
    splits = splits_of(boosters, EVIDENCE)
    count = sum(
        tree["num_leaves"] - 1
        for booster in boosters.values()
        for tree in booster.dump_model()["tree_info"]
    )
    assert 0 < sum(len(each) for each in splits) <= count
    assert np.isclose(sum(each[:, 1].sum() for each in splits), 1.0)
    for each in splits:
        assert (np.diff(each[:, 0]) >= 0).all()
    assert ((splits[3][:, 0] > 0.9) & (splits[3][:, 0] < 50)).any()


def test_trees_that_know_nothing_give_a_constant_network():
    heads = {head: constant(0.25, EVIDENCE) for head in HEADS["evidence"]}
    for x in (rows(100, 0), rows(0, 0)):
        network = distilled("evidence", heads, seen(x), QUICK, 1)
        np.testing.assert_allclose(predict(network, rows(5, 1)), 0.25)


def test_a_network_is_the_same_however_many_threads_predict():
    x = rows(2_000, 0)
    boosters = grown(x)
    one, two = (distilled("evidence", boosters, seen(x), QUICK, threads) for threads in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))

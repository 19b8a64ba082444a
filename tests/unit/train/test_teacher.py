"""A network says what the trees say, also of features that never occurred together."""

from __future__ import annotations

import lightgbm
import numpy as np
import pytest

from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.model import HEADS
from adaspec.predict.network import predict
from adaspec.train.distillation import Distilling
from adaspec.train.examples import Sample, sample
from adaspec.train.heads import Settings, boost, constant
from adaspec.train.teacher import distilled

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


def test_a_network_says_what_the_trees_say_of_unseen_features_and_of_rare_ones_apart():
    x, unseen = rows(30_000, 0), rows(3_000, 2)
    boosters = grown(x)
    network = distilled("evidence", boosters, seen(x), QUICK, 1)
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
    heads = {head: constant(0.25, EVIDENCE) for head in HEADS["evidence"]}
    for x in (rows(100, 0), rows(0, 0)):
        network = distilled("evidence", heads, seen(x), QUICK, 1)
        np.testing.assert_allclose(predict(network, rows(5, 1)), 0.25)

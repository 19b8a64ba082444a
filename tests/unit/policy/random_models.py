"""Models that know nothing and say something different everywhere: to drive every branch."""

from functools import lru_cache

import numpy as np

from adaspec.policy.protocol import LearnedPolicy
from adaspec.predict.model import (
    FEATURE_NAMES,
    HEADS,
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    LONGEST_SPLICE,
    PROBABILITIES,
    Model,
)
from adaspec.predict.network import INTERVALS, NUMBER, PROBABILITY, BinnedCurves, Network
from adaspec.predict.tables import no_tables

NO_TABLES = no_tables()


@lru_cache(maxsize=64)
def random_network(group, seed, width=12):
    """A network of random weights: probabilities between 0.02 and 0.98, mostly, and few tokens."""
    rng = np.random.default_rng([seed, len(group)])
    features, heads = len(FEATURE_NAMES[group]), HEADS[group]
    columns = features + 5
    flagged = np.flatnonzero(rng.random(features) < 0.5).astype(np.int32)

    def normal(*shape, spread=1.0):
        return rng.normal(0.0, spread / np.sqrt(shape[0]), shape).astype(np.float32)

    return Network(
        source=rng.permutation(np.arange(columns) % features).astype(np.int32),
        low=rng.uniform(-3.0, 8.0, (INTERVALS, columns)).astype(np.float32),
        slope=rng.uniform(0.2, 3.0, (INTERVALS, columns)).astype(np.float32),
        shift=rng.uniform(0.0, 1.5, columns).astype(np.float32),
        scale=rng.uniform(0.5, 2.0, columns).astype(np.float32),
        flagged=flagged,
        weight_1=normal(columns + len(flagged), width, spread=2.0),
        bias_1=normal(width),
        weight_2=normal(width, width, spread=2.0),
        bias_2=normal(width),
        weight_3=normal(width, len(heads), spread=3.0),
        bias_3=np.full(len(heads), 0.5, np.float32),
        link=np.array([PROBABILITY if h in PROBABILITIES else NUMBER for h in heads], np.int32),
    )


def random_curves(rng, longest):
    edges = np.unique(rng.uniform(0, 2.5, rng.integers(0, 5)))
    shapes = np.minimum.accumulate(rng.uniform(0.3, 1, (len(edges) + 1, longest + 1)), axis=1)
    shapes = np.cumprod(shapes ** rng.uniform(0.02, 0.6), axis=1)
    shapes[:, :2] = 1.0
    return BinnedCurves(edges, np.minimum.accumulate(shapes, axis=1))


def random_model(seed, tables=NO_TABLES, *, evidence):
    rng = np.random.default_rng([seed, 1])
    groups = ("before", "splice", "evidence") if evidence else ("before", "splice")
    return Model(
        networks={group: random_network(group, seed % 8) for group in groups},
        curves={
            "ngram": random_curves(rng, int(rng.integers(1, LONGEST_NGRAM + 4))),
            "neural": random_curves(rng, int(rng.integers(1, LONGEST_NEURAL + 2))),
            "splice": random_curves(rng, int(rng.integers(1, LONGEST_SPLICE + 2))),
        },
        tables=tables,
    )


def random_policy(seed, evidence, cap=12, neural_cap=4):
    model = random_model(seed, evidence=evidence)
    return LearnedPolicy("random", model, cap, neural_cap)

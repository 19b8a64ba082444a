"""Models that know nothing and say something different everywhere: to drive every branch."""

from __future__ import annotations

from functools import lru_cache

import lightgbm
import numpy as np

from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import KNOBS, LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE
from adaspec.predict.evidence_factors import POINTS, EvidenceFactors, no_factors
from adaspec.predict.forest import Forest
from adaspec.predict.model import FEATURE_NAMES, HEADS, Model
from adaspec.predict.survival import Curves
from adaspec.predict.tables import Tables
from adaspec.train.compilation import compile_forest

REGRESSIONS = {"ngram_more", "neural_more", "splice_more", "splice_gain"}
FRACTIONS = {"ngram_hit_rate", "neural_hit_rate", "expected", "survival_so_far", "neural_survival"}


@lru_cache(maxsize=64)
def random_forest(group: str, seed: int) -> Forest:
    """Boosters fitted to noise over features of every size, missing ones included."""
    rng = np.random.default_rng([seed, len(group)])
    names = FEATURE_NAMES[group]
    x = rng.integers(0, 9, (400, len(names))).astype(np.float32)
    for column, name in enumerate(names):
        if name in FRACTIONS or "after" in name or name.startswith("ngram_"):
            x[:, column] = rng.random(400)
        elif name in ("logprob", "margin", "least_logprob", "least_margin"):
            x[:, column] = -rng.exponential(1.0, 400)
    x[rng.random(x.shape) < 0.1] = np.nan
    boosters = {}
    for head in HEADS[group]:
        smooth = head in REGRESSIONS
        y = np.log1p(rng.integers(0, 12, 400)) if smooth else (rng.random(400) < 0.6).astype(float)
        boosters[head] = lightgbm.train(
            {
                "objective": "regression" if smooth else "binary",
                "num_leaves": 6,
                "learning_rate": 0.4,
                "min_child_samples": 5,
                "verbose": -1,
                "num_threads": 1,
                "seed": seed,
            },
            lightgbm.Dataset(x, y, feature_name=list(names)),
            4,
        )
    return compile_forest(boosters, names)


def random_curves(rng: np.random.Generator, longest: int) -> Curves:
    edges = np.unique(rng.uniform(0, 2.5, rng.integers(0, 5)))
    shapes = np.minimum.accumulate(rng.uniform(0.3, 1, (len(edges) + 1, longest + 1)), axis=1)
    shapes = np.cumprod(shapes ** rng.uniform(0.02, 0.6), axis=1)
    shapes[:, :2] = 1.0
    return Curves(edges, np.minimum.accumulate(shapes, axis=1))


def random_model(seed: int, tables: Tables, *, evidence: bool) -> Model:
    rng = np.random.default_rng([seed, 1])
    groups = ("before", "splice", "evidence") if evidence else ("before", "splice")
    return Model(
        forests={group: random_forest(group, seed % 8) for group in groups},
        curves={
            "ngram": random_curves(rng, int(rng.integers(1, LONGEST_NGRAM + 4))),
            "neural": random_curves(rng, int(rng.integers(1, LONGEST_NEURAL + 2))),
            "splice": random_curves(rng, int(rng.integers(1, LONGEST_SPLICE + 2))),
        },
        tables=tables,
        factors=random_outlook(rng) if evidence else no_factors(),
    )


def random_outlook(rng: np.random.Generator) -> EvidenceFactors:
    edges = np.unique(rng.uniform(0, 1, rng.integers(0, 5)))
    factors = np.sort(rng.uniform(0, 2, (len(edges) + 1, POINTS)), axis=1)
    return EvidenceFactors(edges, factors)


def random_knobs(rng: np.random.Generator) -> dict[str, float]:
    """Some knobs off their defaults."""
    ranges = {
        "ngram_exponent": (0.3, 2.0),
        "neural_exponent": (0.3, 2.0),
        "splice_weight": (0.0, 1.5),
        "splice_tokens": (0.0, 6.0),
        "pace_steps": (1.0, 30.0),
        "prior_speedup": (0.3, 4.0),
        "prior_steps": (0.0, 20.0),
        "recalibrate": (0.0, 1.0),
    }
    assert set(ranges) == set(KNOBS)
    named = [name for name in ranges if rng.random() < 0.6]
    return {
        name: float(rng.integers(0, 2)) if name == "recalibrate" else rng.uniform(*ranges[name])
        for name in named
    }


def random_policy(
    rng: np.random.Generator, tables: Tables, *, evidence: bool, cap: int, neural_cap: int
) -> LearnedPolicy:
    model = random_model(int(rng.integers(1 << 30)), tables, evidence=evidence)
    return LearnedPolicy("random", model, random_knobs(rng), cap, neural_cap)

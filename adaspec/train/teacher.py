"""What trees teach a network: their predictions, where they split, and for which features.

Trees say something sensible of features that never occurred together. Half of what a network is
shown are such features: rows of examples in which some values are exchanged for others that occur,
rare ones as often as common ones. A network that saw the examples alone would take what happens to
go with a rare value for its effect (as in C. Bucila et al., Model Compression, 2006).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from adaspec.predict.model import FEATURE_NAMES, PROBABILITIES
from adaspec.predict.network import NUMBER, PROBABILITY, Network, constant_network
from adaspec.train.distillation import Distilling, distil
from adaspec.train.examples import Sample

Array = NDArray[np.float64]
Floats = NDArray[np.float32]

EXCHANGED = 0.15
"""The share of values that are exchanged."""
_NO_THRESHOLD = 1e30
"""A split beyond this only tells missing values from others, which networks see by themselves."""


def distilled(
    group: str,
    boosters: Mapping[str, lightgbm.Booster],
    sample: Sample,
    settings: Distilling,
    threads: int,
) -> Network:
    """The network that predicts what a group's boosters predict for features like a sample's."""
    names = FEATURE_NAMES[group]
    splits = splits_of(boosters, names)
    if not len(sample.x) or not any(each[:, 1].any() for each in splits):
        anything = np.zeros((1, len(names)), np.float32)
        return constant_network(_predictions(boosters, anything, names, threads)[0].tolist())
    rng = np.random.default_rng([settings.seed, 0xC4A6])
    x = np.concatenate([sample.x, _with_exchanged_values(sample.x, rng)])
    targets = _predictions(boosters, x, names, threads)
    link = [PROBABILITY if head in PROBABILITIES else NUMBER for head in boosters]
    weight = np.concatenate([sample.weight, sample.weight])
    if group != "before":
        # These see fewer features, and run after every forward of the drafter.
        settings = replace(settings, width=settings.width // 2)
    return distil(x, targets, weight, np.array(link, np.int32), splits, settings)


def _with_exchanged_values(x: Floats, rng: np.random.Generator) -> Floats:
    """The rows, some values of which are others of the same feature, each of those as likely."""
    changed = x.copy()
    for i in range(x.shape[1]):
        values = np.unique(x[:, i])
        chosen = rng.random(len(x)) < EXCHANGED
        changed[chosen, i] = values[rng.integers(len(values), size=int(chosen.sum()))]
    return changed


def _predictions(
    boosters: Mapping[str, lightgbm.Booster], x: Floats, names: Sequence[str], threads: int
) -> Array:
    """What each booster predicts, as columns; boosters may take some of the features only."""
    columns = []
    for booster in boosters.values():
        places = [names.index(name) for name in booster.feature_name()]
        columns.append(booster.predict(x[:, places], num_threads=threads))
    return np.column_stack(columns).astype(np.float64)


def splits_of(boosters: Mapping[str, lightgbm.Booster], names: Sequence[str]) -> list[Array]:
    """By feature, the (threshold, change) of every split on it, by ascending thresholds.

    The change is the difference between the two branches' values, as a share of the sum of all
    changes in the head's trees.
    """
    found: list[list[tuple[float, float]]] = [[] for _ in names]
    for booster in boosters.values():
        model = booster.dump_model()
        nodes = [tree["tree_structure"] for tree in model["tree_info"]]
        splits = []
        while nodes:
            node = nodes.pop()
            if "split_feature" not in node:
                continue
            left, right = node["left_child"], node["right_child"]
            nodes += left, right
            if abs(node["threshold"]) < _NO_THRESHOLD:
                feature = names.index(model["feature_names"][node["split_feature"]])
                change = abs(_value(left) - _value(right))
                splits.append((feature, float(node["threshold"]), change))
        total = sum(change for _, _, change in splits) or 1.0
        for feature, threshold, change in splits:
            found[feature].append((threshold, change / total))
    return [np.array(sorted(each), np.float64).reshape(-1, 2) for each in found]


def _value(node: dict[str, Any]) -> float:
    return float(node["internal_value" if "split_feature" in node else "leaf_value"])

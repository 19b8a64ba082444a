"""LightGBM's boosters as one forest of flat arrays."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adaspec.errors import PolicyError, nearest
from adaspec.predict.forest import EXP, IDENTITY, SIGMOID, Forest

if TYPE_CHECKING:
    import lightgbm

_LINKS = {
    "binary": SIGMOID,
    "cross_entropy": SIGMOID,
    "regression": IDENTITY,
    "regression_l1": IDENTITY,
    "huber": IDENTITY,
    "fair": IDENTITY,
    "quantile": IDENTITY,
    "mape": IDENTITY,
    "poisson": EXP,
    "gamma": EXP,
    "tweedie": EXP,
}
"""What LightGBM does to the sum of leaves, by objective."""

_MISSING = {"None": (0, 0), "NaN": (1, 0), "Zero": (1, 1)}
"""Whether a NaN and a zero take a split's default branch; a NaN that does not counts as zero."""

_FLOAT32_MAX = float(np.finfo(np.float32).max)

MOST_LEAVES = 32_767
MOST_COLUMNS = 65_535
MOST_CATEGORY = 1_000_000

_Column = tuple[int, int, int, tuple[int, ...]]
"""A feature, the sides of its NaN and zero, and the words of a categorical split's set."""


def compile_forest(heads: Mapping[str, lightgbm.Booster], feature_names: Sequence[str]) -> Forest:
    """The forest that predicts what each booster predicts for float32 rows of these features.

    What cannot be compiled exactly raises a `PolicyError` that names it.
    """
    columns: dict[_Column, int] = {}
    trees: list[int] = [0]
    slots: list[int] = [0]
    slot_columns: list[int] = []
    numbers: list[float] = []
    constants, links, scales = [], [], []
    for head, booster in heads.items():
        model = booster.dump_model()
        where = f"head '{head}'"
        link, scale = _link(model, where)
        places = _places(model, feature_names, where)
        constant = 0.0
        for tree in model["tree_info"]:
            at = f"{where} tree {tree['tree_index']}"
            if "split_feature" not in tree["tree_structure"]:
                constant += _leaf(tree["tree_structure"], at)
                continue
            for column, number in _flatten(tree["tree_structure"], places, at):
                slot_columns.append(-1 if column is None else columns.setdefault(column, len(columns)))
                numbers.append(number)
            slots.append(len(numbers))
        trees.append(len(slots) - 1)
        constants.append(constant)
        links.append(link)
        scales.append(scale)
    if len(columns) > MOST_COLUMNS:
        raise PolicyError(
            f"{len(columns)} different uses of features (their missing values and sets of"
            f" categories): {MOST_COLUMNS} at most can be compiled"
        )
    words = [column[3] for column in columns]
    return Forest(
        features=tuple(feature_names),
        heads=tuple(heads),
        head_trees=np.array(trees, np.int64),
        head_constant=np.array(constants, np.float64),
        head_scale=np.array(scales, np.float64),
        head_link=np.array(links, np.int8),
        tree_slots=np.array(slots, np.int64),
        slot_column=np.array(slot_columns, np.int32),
        slot_number=np.array(numbers, np.float64),
        column_feature=np.array([column[0] for column in columns], np.int32),
        column_nan=np.array([column[1] for column in columns], np.int8),
        column_zero=np.array([column[2] for column in columns], np.int8),
        column_words=np.array([0, *itertools.accumulate(map(len, words))], np.int32),
        words=np.array(list(itertools.chain(*words)), np.uint32),
    )


def _link(model: dict[str, Any], where: str) -> tuple[int, float]:
    """What turns the sum of leaves into the prediction, and the factor before it."""
    objective, *options = str(model.get("objective", "")).split()
    if model["num_tree_per_iteration"] != 1 or model["num_class"] != 1:
        raise PolicyError(f"{where}: objective '{objective}' has {model['num_class']} classes: "
                          "one value per row can be compiled")
    if model.get("average_output"):
        raise PolicyError(f"{where}: it averages its trees (boosting=rf): only sums can be compiled")
    if objective not in _LINKS:
        raise PolicyError(f"{where}: objective '{objective}' cannot be compiled")
    scale = 1.0
    for option in options:
        name, _, value = option.partition(":")
        if name == "sigmoid": scale = float(value)
    return _LINKS[objective], scale


def _places(model, feature_names, where):
    known = {name: place for place, name in enumerate(feature_names)}
    places = []
    for name in model["feature_names"]:
        if name not in known:
            raise PolicyError(f"{where}: feature '{name}' is unknown{nearest(name, known)}")
        places.append(known[name])
    return places


def _leaf(node, where):
    if "leaf_coeff" in node:
        raise PolicyError(f"{where}: a linear tree (linear_tree=true) cannot be compiled")
    return float(node["leaf_value"])


def _flatten(root, places, where):
    """Column (None: a leaf) and number of each node, level by level."""
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        if "split_feature" in node:
            yield _split(node, places, where)
            waiting.append(node["left_child"])
            waiting.append(node["right_child"])
        else:
            yield None, _leaf(node, where)


def _split(node, places, where):
    feature = places[node["split_feature"]]
    if node["decision_type"] == "==":
        cats = [int(c) for c in str(node["threshold"]).split("||")]
        words = [0] * (max(cats) // 32 + 1)
        for c in cats:
            words[c // 32] |= 1 << (c % 32)
        return (feature, 0, 0, tuple(words)), 0.0
    if node["decision_type"] != "<=" or node["missing_type"] not in _MISSING:
        raise PolicyError(f"{where}: decision {node['decision_type']}")
    side = -1 if node["default_left"] else 1
    nan, zero = (side * takes for takes in _MISSING[node["missing_type"]])
    return (feature, nan, zero, ()), _at_most(float(node["threshold"]))


def _at_most(threshold: float) -> float:
    """The largest float32 that is no more than the threshold."""
    if threshold > _FLOAT32_MAX:
        return _FLOAT32_MAX
    if threshold < -_FLOAT32_MAX:
        return -np.inf
    rounded = np.float32(threshold)
    if rounded > threshold:
        rounded = np.nextafter(rounded, np.float32(-np.inf))
    return float(rounded)

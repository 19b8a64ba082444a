"""Compiles LightGBM's boosters to one forest of flat arrays."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adaspec.errors import PolicyError, nearest
from adaspec.predict.forest import EXP, IDENTITY, SIGMOID, Forest
from adaspec.predict.soundness import FLOAT32_MAX, MOST_COLUMNS, MOST_SLOTS

if TYPE_CHECKING:
    import lightgbm

LINKS = {
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
"""Function that LightGBM applies to the sum of leaves, by objective."""

MISSING = {"None": (0, 0), "NaN": (1, 0), "Zero": (1, 1)}
"""Whether NaN, and zero, take a split's default branch; a NaN that does not counts as zero."""

MAX_CATEGORY = 1_000_000
"""The largest category; a set of categories takes one bit for each up to its largest."""

DUMPED_INFINITY = 1e300
"""Value that `dump_model` writes for an infinite threshold."""

_Node = dict[str, Any]
_Column = tuple[int, int, int, tuple[int, ...]]
"""A feature, the sides to which NaN and zero go, and the bits of a set of categories."""


def compile_forest(heads: Mapping[str, lightgbm.Booster], feature_names: Sequence[str]) -> Forest:
    """The forest that predicts what each booster predicts for float32 rows of these features.

    Features are matched by name, so a booster may use only some of them, in any order. A booster
    that cannot be compiled exactly raises a `PolicyError` that names the reason.
    """
    columns: dict[_Column | None, int] = {None: -1}
    trees, slots = [0], [0]
    slot_column: list[int] = []
    slot_number: list[float] = []
    constants, links, scales = [], [], []
    for head, booster in heads.items():
        model = booster.dump_model()
        where = f"head '{head}'"
        link, scale = _link(model, where)
        places = _places(model, feature_names, where)
        constant = 0.0
        for tree in model["tree_info"]:
            root, label = tree["tree_structure"], f"{where} tree {tree['tree_index']}"
            if "split_feature" not in root:
                constant += _leaf(root, label)
                continue
            for column, number in _level_order(root, places, label):
                slot_column.append(columns.setdefault(column, len(columns) - 1))
                slot_number.append(number)
            slots.append(len(slot_number))
            if slots[-1] - slots[-2] > MOST_SLOTS:
                raise PolicyError(
                    f"{label}: {tree['num_leaves']} leaves: at most {MOST_SLOTS // 2 + 1} compile"
                )
        trees.append(len(slots) - 1)
        constants.append(constant)
        links.append(link)
        scales.append(scale)
    used = [column for column in columns if column is not None]
    if len(used) > MOST_COLUMNS:
        raise PolicyError(
            f"{len(used)} different sets of categories and features: at most {MOST_COLUMNS} compile"
        )
    words = [column[3] for column in used]
    return Forest(
        features=tuple(feature_names),
        heads=tuple(heads),
        head_trees=np.array(trees, np.int64),
        head_constant=np.array(constants, np.float64),
        head_scale=np.array(scales, np.float64),
        head_link=np.array(links, np.int8),
        tree_slots=np.array(slots, np.int64),
        slot_column=np.array(slot_column, np.int32),
        slot_number=np.array(slot_number, np.float64),
        column_feature=np.array([column[0] for column in used], np.int32),
        column_nan=np.array([column[1] for column in used], np.int8),
        column_zero=np.array([column[2] for column in used], np.int8),
        column_words=np.array([0, *itertools.accumulate(map(len, words))], np.int32),
        words=np.array(list(itertools.chain(*words)), np.uint32),
    )


def _link(model: dict[str, Any], where: str) -> tuple[int, float]:
    """The function that turns the sum of leaves into the prediction, and the factor before it."""
    # A booster trained on a custom function stores no objective and predicts the sum.
    objective, *options = str(model.get("objective", "regression")).split() or ["regression"]
    if model["num_class"] != 1 or model["num_tree_per_iteration"] != 1:
        raise PolicyError(
            f"{where}: objective '{objective}' predicts {model['num_class']} values per row:"
            " only one compiles"
        )
    if model["average_output"]:
        raise PolicyError(f"{where}: boosting 'rf' averages its trees: only sums compile")
    if model["pandas_categorical"]:
        raise PolicyError(f"{where}: pandas' categories do not compile: train on their codes")
    if objective not in LINKS:
        raise PolicyError(
            f"{where}: objective '{objective}' does not compile: use one of {', '.join(LINKS)}"
        )
    scale = 1.0
    for option in options:
        name, _, value = option.partition(":")
        if name == "sqrt":
            raise PolicyError(f"{where}: reg_sqrt does not compile: take the root of the labels")
        if name == "sigmoid":
            scale = float(value)
    return LINKS[objective], scale


def _places(model: dict[str, Any], feature_names: Sequence[str], where: str) -> list[int]:
    """The index of each of the booster's features in `feature_names`."""
    known = {name: place for place, name in enumerate(feature_names)}
    for name in model["feature_names"]:
        if name not in known:
            raise PolicyError(f"{where}: feature '{name}' is unknown{nearest(name, known)}")
    return [known[name] for name in model["feature_names"]]


def _level_order(
    root: _Node, places: list[int], where: str
) -> Iterator[tuple[_Column | None, float]]:
    """Column (None for a leaf) and number of every node, level by level."""
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        if "split_feature" in node:
            yield _split(node, places[node["split_feature"]], where)
            waiting += node["left_child"], node["right_child"]
        else:
            yield None, _leaf(node, where)


def _leaf(node: _Node, where: str) -> float:
    if "leaf_coeff" in node:
        raise PolicyError(f"{where}: linear_tree does not compile: leaves must be constants")
    return float(node["leaf_value"])


def _split(node: _Node, feature: int, where: str) -> tuple[_Column, float]:
    decision, missing = node["decision_type"], node["missing_type"]
    if decision == "==":
        # Missing, negative and unseen values are not in the set, so they go right.
        return (feature, 0, 0, _set_words(node["threshold"], where)), 0.0
    if decision != "<=":
        raise PolicyError(f"{where}: decision '{decision}' does not compile: only <= and == do")
    if missing not in MISSING:
        raise PolicyError(f"{where}: missing_type '{missing}' does not compile")
    side = -1 if node["default_left"] else 1
    nan, zero = (side * takes for takes in MISSING[missing])
    return (feature, nan, zero, ()), _float32_at_most(float(node["threshold"]))


def _set_words(threshold: str, where: str) -> tuple[int, ...]:
    """The categories of a threshold such as `1||7||30` as bits."""
    categories = [int(category) for category in str(threshold).split("||")]
    largest = max(categories)
    if largest > MAX_CATEGORY:
        raise PolicyError(f"{where}: category {largest}: at most {MAX_CATEGORY} compiles")
    words = [0] * (largest // 32 + 1)
    for category in categories:
        words[category // 32] |= 1 << (category % 32)
    return tuple(words)


def _float32_at_most(threshold: float) -> float:
    """The largest float32 up to the threshold; `<=` decides alike for every float32."""
    if abs(threshold) >= DUMPED_INFINITY:
        return float(np.copysign(np.inf, threshold))
    if abs(threshold) > FLOAT32_MAX:
        return FLOAT32_MAX if threshold > 0 else -np.inf
    rounded = np.float32(threshold)
    # Compared as Python floats, as NumPy would compare in float32, where the two are equal.
    if float(rounded) > threshold:
        rounded = np.nextafter(rounded, np.float32(-np.inf))
    return float(rounded)

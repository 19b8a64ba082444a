"""Compiles LightGBM's boosters, as training grows them, to one forest of flat arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adaspec.errors import PolicyError
from adaspec.predict.forest import IDENTITY, SIGMOID, Forest
from adaspec.predict.soundness import FLOAT32_MAX, MOST_COLUMNS, MOST_SLOTS

if TYPE_CHECKING:
    import lightgbm

LINKS = {"binary": SIGMOID, "regression": IDENTITY}
"""Function that LightGBM applies to the sum of leaves, by objective."""

TAKES_DEFAULT = {"None": 0, "NaN": 1}
"""Whether NaN takes a split's default branch, by `missing_type`; else it counts as zero."""

DUMPED_INFINITY = 1e300
"""Value that `dump_model` writes for an infinite threshold."""

_Node = dict[str, Any]
_Column = tuple[int, int]
"""A feature, and the side to which NaN goes."""


def compile_forest(heads: Mapping[str, lightgbm.Booster], feature_names: Sequence[str]) -> Forest:
    """The forest that predicts what each booster predicts for float32 rows of these features.

    Features are matched by name, so a booster may use only some of them, in any order. Only sums of
    trees with numerical splits and constant leaves compile, for the objectives of `LINKS`.
    """
    columns: dict[_Column | None, int] = {None: -1}
    trees, slots = [0], [0]
    slot_column: list[int] = []
    slot_number: list[float] = []
    constants, links = [], []
    for head, booster in heads.items():
        model = booster.dump_model()
        places = [feature_names.index(name) for name in model["feature_names"]]
        constant = 0.0
        for tree in model["tree_info"]:
            root = tree["tree_structure"]
            if "split_feature" not in root:
                constant += float(root["leaf_value"])
                continue
            for column, number in _level_order(root, places):
                slot_column.append(columns.setdefault(column, len(columns) - 1))
                slot_number.append(number)
            slots.append(len(slot_number))
            if slots[-1] - slots[-2] > MOST_SLOTS:
                raise PolicyError(
                    f"head '{head}' tree {tree['tree_index']}: {tree['num_leaves']} leaves: "
                    f"at most {MOST_SLOTS // 2 + 1} compile"
                )
        trees.append(len(slots) - 1)
        constants.append(constant)
        links.append(LINKS[model["objective"].split()[0]])
    used = [column for column in columns if column is not None]
    if len(used) > MOST_COLUMNS:
        raise PolicyError(f"{len(used)} different kinds of splits: at most {MOST_COLUMNS} compile")
    return Forest(
        features=tuple(feature_names),
        heads=tuple(heads),
        head_trees=np.array(trees, np.int64),
        head_constant=np.array(constants, np.float64),
        head_scale=np.ones(len(heads), np.float64),
        head_link=np.array(links, np.int8),
        tree_slots=np.array(slots, np.int64),
        slot_column=np.array(slot_column, np.int32),
        slot_number=np.array(slot_number, np.float64),
        column_feature=np.array([feature for feature, _ in used], np.int32),
        column_nan=np.array([side for _, side in used], np.int8),
        column_zero=np.zeros(len(used), np.int8),
        column_words=np.zeros(len(used) + 1, np.int32),
        words=np.empty(0, np.uint32),
    )


def _level_order(root: _Node, places: list[int]) -> Iterator[tuple[_Column | None, float]]:
    """Column (None for a leaf) and number of every node, level by level."""
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        if "split_feature" in node:
            side = -1 if node["default_left"] else 1
            nan = side * TAKES_DEFAULT[node["missing_type"]]
            yield (places[node["split_feature"]], nan), _float32_at_most(float(node["threshold"]))
            waiting += node["left_child"], node["right_child"]
        else:
            yield None, float(node["leaf_value"])


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

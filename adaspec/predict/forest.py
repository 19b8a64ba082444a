"""Forests of decision trees as flat arrays: checked once, then walked by compiled code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError
from adaspec.predict.kernels import EXP, IDENTITY, SIGMOID, Scratch, Trees, predict_rows
from adaspec.predict.lanes import LANES
from adaspec.predict.layout import lay_out
from adaspec.predict.soundness import DTYPES, NAMES, check_forest, names_and_arrays

__all__ = ["EXP", "IDENTITY", "SIGMOID", "Forest", "Scratch", "predict", "predict_rows"]


@dataclasses.dataclass(frozen=True, eq=False)
class Forest:
    """The trees of several heads over the same features; unsound arrays raise a `PolicyError`.

    A tree is a list of its nodes ("slots"), level by level. The branches of the k-th split are the
    slots 2k + 1 and 2k + 2 of the tree, so no array can make a walk leave its tree or go in
    circles. A split sends a row left if its column is at most `slot_number`; at a leaf
    (`slot_column` -1) `slot_number` is the leaf's value. A column is a feature whose missing values
    are replaced (`column_nan` and `column_zero`: -1 goes left at every split, 1 goes right, 0
    counts as zero). A column with words is 0 for the categories whose bits are set in them, and 1
    for all else.
    """

    features: tuple[str, ...]
    heads: tuple[str, ...]
    head_trees: NDArray[np.int64]
    head_constant: NDArray[np.float64]
    head_scale: NDArray[np.float64]
    head_link: NDArray[np.int8]
    tree_slots: NDArray[np.int64]
    slot_column: NDArray[np.int32]
    slot_number: NDArray[np.float64]
    column_feature: NDArray[np.int32]
    column_nan: NDArray[np.int8]
    column_zero: NDArray[np.int8]
    column_words: NDArray[np.int32]
    words: NDArray[np.uint32]
    trees: Trees = dataclasses.field(init=False, repr=False)
    """The same forest in the layout for `predict_rows`."""

    def __post_init__(self) -> None:
        check_forest(self)
        object.__setattr__(self, "trees", lay_out(self))

    def scratch(self) -> Scratch:
        """The working memory that one thread needs to call `predict_rows`."""
        keys = max(1, len(self.column_feature)) * LANES
        return Scratch(np.zeros(keys, np.int32), np.zeros(LANES))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All fields by name, for `np.savez`."""
        names = {name: np.array(getattr(self, name), np.str_) for name in NAMES}
        return names | {name: getattr(self, name) for name in DTYPES}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Forest:
        """The forest in the arrays of `to_arrays`; unsound arrays raise a `PolicyError`."""
        return cls(**names_and_arrays(arrays))


def predict(forest: Forest, features: NDArray[np.float32]) -> NDArray[np.float64]:
    """The predictions of all heads (columns, in order) for every row of features."""
    if features.ndim != 2 or features.shape[1] != len(forest.features):
        raise PolicyError(
            f"features of shape {features.shape}: the forest takes {len(forest.features)} per row"
        )
    values = np.ascontiguousarray(features, np.float32)
    out = np.empty((len(values), len(forest.heads)))
    predict_rows(forest.trees, values, len(values), forest.scratch(), out)
    return out

"""Check that the kernels can walk a forest's arrays without checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError, nearest

if TYPE_CHECKING:
    from adaspec.predict.forest import Forest

MOST_SLOTS = 65_535
"""The most slots of a tree, as the distance from a split to its branches has 16 bits."""

MOST_COLUMNS = 65_536
"""The most columns of a forest, as their numbers have 16 bits."""

MOST_WORDS = 2**20
"""The most words of a set of categories."""

FLOAT32_MAX = float(np.finfo(np.float32).max)

DTYPES = {
    "head_trees": np.int64,
    "head_constant": np.float64,
    "head_scale": np.float64,
    "head_link": np.int8,
    "tree_slots": np.int64,
    "slot_column": np.int32,
    "slot_number": np.float64,
    "column_feature": np.int32,
    "column_nan": np.int8,
    "column_zero": np.int8,
    "column_words": np.int32,
    "words": np.uint32,
}
"""The arrays of a stored forest, beside the names of its features and heads -> their types."""

NAMES = ("features", "heads")


def names_and_arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """A forest's fields from its stored arrays, which must be complete, with names as strings."""
    known = (*NAMES, *DTYPES)
    for name in arrays:
        if name not in known:
            raise PolicyError(f"forest: unknown array {name!r}{nearest(name, known)}")
    fields: dict[str, Any] = {}
    for name in known:
        if name not in arrays:
            raise PolicyError(f"forest: array '{name}' is missing: train the policy again")
        fields[name] = arrays[name]
    for name in NAMES:
        fields[name] = _texts(name, fields[name])
    return fields


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Stored names as strings."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "U" or value.ndim != 1:
        raise PolicyError(f"forest: {name} must be one row of strings")
    if value.dtype.itemsize:
        # This comes before any string is made, because NumPy crashes on an invalid code point.
        points = np.ascontiguousarray(value).view(value.dtype.byteorder.replace("|", "=") + "u4")
        if np.any((points > 0x10FFFF) | ((points >= 0xD800) & (points < 0xE000))):
            raise PolicyError(f"forest: {name} holds something that is no text")
    return tuple(value.tolist())


def check_forest(forest: Forest) -> None:
    """Raise a `PolicyError` for the first error that could lead a walk astray."""
    for name in NAMES:
        names = getattr(forest, name)
        if not names or len(set(names)) < len(names):
            raise PolicyError(f"forest: {name} must be one or more different names")
    for name, dtype in DTYPES.items():
        array = getattr(forest, name)
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
            kind = getattr(array, "dtype", type(array).__name__)
            shape = getattr(array, "shape", "")
            raise PolicyError(
                f"forest: {name} is {kind}{shape}: it must be one row of {np.dtype(dtype)}"
            )
    _check_heads(forest)
    _check_columns(forest)
    _check_trees(forest)


def _check_heads(forest: Forest) -> None:
    heads = len(forest.heads)
    _offsets("head_trees", forest.head_trees, heads, len(forest.tree_slots) - 1)
    for name in ("head_constant", "head_scale", "head_link"):
        _length(name, getattr(forest, name), heads)
    _within("head_link", forest.head_link, 0, 2)
    for name in ("head_constant", "head_scale"):
        _finite(name, getattr(forest, name))


def _check_columns(forest: Forest) -> None:
    columns = len(forest.column_feature)
    if columns > MOST_COLUMNS:
        raise PolicyError(f"forest: {columns} columns: at most {MOST_COLUMNS} can be used")
    _within("column_feature", forest.column_feature, 0, len(forest.features) - 1)
    for name in ("column_nan", "column_zero"):
        _length(name, getattr(forest, name), columns)
        _within(name, getattr(forest, name), -1, 1)
    _offsets("column_words", forest.column_words, columns, len(forest.words))
    most = int(np.diff(forest.column_words).max(initial=0))
    if most > MOST_WORDS:
        raise PolicyError(f"forest: a set of {most} words: at most {MOST_WORDS} can be used")


def _check_trees(forest: Forest) -> None:
    slots = len(forest.slot_column)
    _offsets("tree_slots", forest.tree_slots, max(len(forest.tree_slots) - 1, 0), slots)
    sizes = np.diff(forest.tree_slots)
    wrong = np.flatnonzero((sizes % 2 == 0) | (sizes > MOST_SLOTS))
    if len(wrong):
        raise PolicyError(
            f"forest: tree {wrong[0]} has {sizes[wrong[0]]} slots:"
            f" a tree has an odd number, {MOST_SLOTS} at most"
        )
    _length("slot_number", forest.slot_number, slots)
    _within("slot_column", forest.slot_column, -1, len(forest.column_feature) - 1)
    split = forest.slot_column >= 0
    _check_numbers(forest.slot_number, split)
    # The k-th split's branches are slots 2k + 1 and 2k + 2. So if there are as many splits as the
    # slots need, each before its branches, they make one tree: each slot is reached in one way.
    before = np.concatenate([[0], np.cumsum(split)])
    starts = forest.tree_slots[:-1]
    if np.any(before[forest.tree_slots[1:]] - before[starts] != sizes // 2):
        raise PolicyError("forest: a tree's splits and leaves do not add up")
    rank = before[:-1] - np.repeat(before[starts], sizes)
    place = np.arange(slots) - np.repeat(starts, sizes)
    if np.any(split & (place > 2 * rank)):
        raise PolicyError("forest: a split stands behind its own branches")


def _check_numbers(numbers: NDArray[np.float64], split: NDArray[np.bool_]) -> None:
    _finite("slot_number", numbers[~split])
    thresholds = numbers[split]
    fits = (np.abs(thresholds) <= FLOAT32_MAX) | np.isinf(thresholds)
    exact = np.where(fits, thresholds, 0.0)
    if not np.all(fits & (exact.astype(np.float32) == exact)):
        raise PolicyError("forest: slot_number holds a threshold that is no float32")


def _length(name: str, array: NDArray[Any], length: int) -> None:
    if len(array) != length:
        raise PolicyError(f"forest: {name} has {len(array)} entries: it must have {length}")


def _within(name: str, array: NDArray[Any], low: int, high: int) -> None:
    wrong = np.flatnonzero((array < low) | (array > high))
    if len(wrong):
        raise PolicyError(
            f"forest: {name}[{wrong[0]}]={array[wrong[0]]} is not within {low} .. {high}"
        )


def _finite(name: str, array: NDArray[Any]) -> None:
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise PolicyError(f"forest: {name} holds {array[wrong[0]]}: it must be finite")


def _offsets(name: str, array: NDArray[Any], parts: int, end: int) -> None:
    """Check that the offsets describe parts that fill 0 .. end, one after another."""
    _length(name, array, parts + 1)
    _within(name, array, 0, end)
    if array[0] != 0 or array[-1] != end or np.any(array[1:] < array[:-1]):
        raise PolicyError(f"forest: {name} must rise from 0 to {end}")

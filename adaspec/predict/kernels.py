"""Walk a forest's trees for a batch of rows, in compiled code without allocation.

Features first become int32 keys in the order of the floats, one per column. A column decides what
a feature's missing value counts as, or whether a category is in a split's set, so that a split is
one comparison of whole numbers. Several rows run all splits of a tree in vector lanes: each split
that sends a row right removes the leaves on its left, and the first remaining leaf is the row's.
Single rows walk WALKS trees side by side, with a fixed number of steps each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled, inlined
from adaspec.predict.lanes import FEW_LANES, LANES, add_few_leaves, add_leaves

Longs = NDArray[np.int64]
Words = NDArray[np.int32]
Array = NDArray[np.float64]

WALKS = 8
"""The number of trees that are walked side by side for one row."""

FEWEST_LANES = 3
"""With fewer rows than this, walking them one by one is quicker than the lanes."""

IDENTITY, SIGMOID, EXP = range(3)
"""How a head's sum becomes its prediction."""

NOT_A_NUMBER = 0x7F800000
"""A float32 whose bits without sign are above these is NaN."""

NEXT_TO_ZERO = int(np.float32(1e-35).view(np.int32))
"""A float32 whose bits without sign are at most these counts as zero, as in LightGBM."""


class Trees(NamedTuple):
    """A sound forest in the layout for the kernels."""

    column_feature: Words
    column_words: Words  # begin and end of a categorical column's set; equal for a number
    column_nan: Words  # the key of NaN
    column_zero: Words  # the key of zero
    words: NDArray[np.uint32]
    head_constant: Array
    head_scale: Array
    head_link: NDArray[np.int8]
    # These are for the lanes, and empty if a tree has too many leaves.
    head_trees: Longs
    tree_splits: Longs
    tree_leaves: Longs
    split_key: Words
    split_column: Words
    split_mask: NDArray[np.uint32]
    leaf: Array
    # These are for walks, with WALKS trees per group and one int64 per slot: the key, 16 bits of
    # column and 16 bits of distance.
    head_groups: Longs
    group_steps: Longs
    group_root: NDArray[np.uintp]
    slot: Longs
    slot_value: Array


class Scratch(NamedTuple):
    """The working memory of one thread."""

    keys: Words
    sums: Array


@compiled
def _key_columns(
    trees: Trees,
    bits: NDArray[np.int32],
    features: NDArray[np.float32],
    row: int,
    rows: int,
    lanes: int,
    block: Words,
) -> None:
    """Write all columns' keys for rows row .. row + lanes - 1; past `rows`, the last row's."""
    for column in range(len(trees.column_feature)):
        feature = trees.column_feature[column]
        offset = column * lanes
        begin, end = trees.column_words[column], trees.column_words[column + 1]
        if begin == end:
            if_nan, if_zero = trees.column_nan[column], trees.column_zero[column]
            for lane in range(lanes):
                value = bits[min(row + lane, rows - 1), feature]
                size = value & 0x7FFFFFFF
                key = value ^ ((value >> 31) & 0x7FFFFFFF)
                key = if_zero if size <= NEXT_TO_ZERO else key
                block[offset + lane] = if_nan if size > NOT_A_NUMBER else key
        else:
            most = 32 * (end - begin)
            for lane in range(lanes):
                number = features[min(row + lane, rows - 1), feature]
                outside = 1
                # Only a number within the set may be converted to an integer, and no NaN.
                if number > -1 and number < most:
                    category = int(number)
                    word = trees.words[begin + (category >> 5)]
                    outside = 1 - ((word >> np.uint32(category & 31)) & 1)
                block[offset + lane] = outside


@inlined
def _step(node: int, keys: Words, at: int) -> int:
    """The slot after `at`, whose int64 is `node`; a leaf stays where it is."""
    right = keys[np.uintp((node >> 16) & 0xFFFF)] > (node >> 32)
    return at + np.uintp(node & 0xFFFF) + np.uintp(right)  # type: ignore[return-value]


@compiled
def _walk(trees: Trees, head: int, keys: Words) -> float:
    """The sum of one head's trees for one row."""
    total = 0.0
    slot, value, root = trees.slot, trees.slot_value, trees.group_root
    for group in range(trees.head_groups[head], trees.head_groups[head + 1]):
        first = group * WALKS
        a, b, c, d = root[first], root[first + 1], root[first + 2], root[first + 3]
        e, f, g, h = root[first + 4], root[first + 5], root[first + 6], root[first + 7]
        for _ in range(trees.group_steps[group]):
            a = _step(slot[a], keys, a)
            b = _step(slot[b], keys, b)
            c = _step(slot[c], keys, c)
            d = _step(slot[d], keys, d)
            e = _step(slot[e], keys, e)
            f = _step(slot[f], keys, f)
            g = _step(slot[g], keys, g)
            h = _step(slot[h], keys, h)
        total += (value[a] + value[b]) + (value[c] + value[d])
        total += (value[e] + value[f]) + (value[g] + value[h])
    return total


@compiled
def _add_block(trees: Trees, head: int, lanes: int, scratch: Scratch) -> None:
    """Add the leaves of one head's trees to each lane's sum."""
    keys, columns = trees.split_key.ctypes.data, trees.split_column.ctypes.data
    masks, leaves = trees.split_mask.ctypes.data, trees.leaf.ctypes.data
    rows, out = scratch.keys.ctypes.data, scratch.sums.ctypes.data
    for tree in range(trees.head_trees[head], trees.head_trees[head + 1]):
        first = trees.tree_splits[tree]
        splits = trees.tree_splits[tree + 1] - first
        key, column, mask = keys + 4 * first, columns + 4 * first, masks + 4 * first
        leaf = leaves + 8 * trees.tree_leaves[tree]
        if lanes == LANES:
            add_leaves(key, column, mask, splits, rows, leaf, out)
        else:
            add_few_leaves(key, column, mask, splits, rows, leaf, out)


@compiled
def _finish(trees: Trees, head: int, total: float) -> float:
    """A head's prediction from its sum of leaves."""
    score = total + trees.head_constant[head]
    if trees.head_link[head] == SIGMOID:
        return 1.0 / (1.0 + np.exp(-trees.head_scale[head] * score))
    if trees.head_link[head] == EXP:
        return np.exp(score)
    return score


@compiled
def predict_rows(
    trees: Trees, features: NDArray[np.float32], rows: int, scratch: Scratch, out: Array
) -> None:
    """Write all heads' predictions for the first `rows` rows to `out`, without allocation.

    `features` and `out` are contiguous, with a row per request and a column per feature or head,
    and have at least `rows` rows; the function does not check this. Each thread needs a scratch.
    """
    bits = features.view(np.int32)
    heads = len(trees.head_link)
    row = 0
    if len(trees.tree_splits) > 0:
        while rows - row >= FEWEST_LANES:
            lanes = LANES if rows - row > FEW_LANES else FEW_LANES
            _key_columns(trees, bits, features, row, rows, lanes, scratch.keys)
            for head in range(heads):
                scratch.sums[:lanes] = 0.0
                _add_block(trees, head, lanes, scratch)
                for lane in range(min(lanes, rows - row)):
                    out[row + lane, head] = _finish(trees, head, scratch.sums[lane])
            row += lanes
    while row < rows:
        _key_columns(trees, bits, features, row, rows, 1, scratch.keys)
        for head in range(heads):
            out[row, head] = _finish(trees, head, _walk(trees, head, scratch.keys))
        row += 1

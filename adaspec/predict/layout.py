"""Convert a stored forest to the arrays that the kernels walk."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adaspec.predict.kernels import WALKS, Trees

if TYPE_CHECKING:
    from adaspec.predict.forest import Forest

MOST_LANE_LEAVES = 32
"""The most leaves of a tree that fit the lanes' bit masks; with more, rows are walked alone."""

LOWEST_KEY, HIGHEST_KEY = -(2**31), 2**31 - 1
"""The keys that go left and right at every threshold; no key exceeds the highest."""

Longs = NDArray[np.int64]


def key_of(values: NDArray[np.float32]) -> NDArray[np.int32]:
    """Whole numbers in the order of the floats, with one number for both zeros."""
    bits = (values + np.float32(0)).view(np.int32)
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def ranks(forest: Forest) -> Longs:
    """How many splits of its tree come before each slot."""
    split = forest.slot_column >= 0
    before: Longs = np.cumsum(split) - split
    starts = forest.tree_slots[:-1]
    return before - np.repeat(before[starts], np.diff(forest.tree_slots))


def lay_out(forest: Forest) -> Trees:
    """The kernels' arrays for a sound forest; they share no memory with it."""
    roots = forest.tree_slots[:-1]
    split = forest.slot_column >= 0
    left = np.repeat(roots, np.diff(forest.tree_slots)) + 2 * ranks(forest) + 1
    levels, depth = _levels(roots, split, left)
    keys = key_of(np.where(split, forest.slot_number, 0).astype(np.float32)).astype(np.int64)
    slot = np.full(len(split) + 1, HIGHEST_KEY << 32)
    split_slots = np.flatnonzero(split)
    slot[split_slots] = (
        (keys[split_slots] << 32)
        | (forest.slot_column[split_slots].astype(np.int64) << 16)
        | (left[split_slots] - split_slots)
    )
    head_groups, group_steps, group_root = _groups(forest.head_trees, roots, depth, len(split))
    splits = np.diff(forest.tree_slots) // 2
    fits = len(splits) > 0 and int(splits.max()) < MOST_LANE_LEAVES
    masks, leaf = _masks(forest, levels, left) if fits else (np.zeros(0, np.uint32), np.zeros(0))
    return Trees(
        column_feature=forest.column_feature.copy(),
        column_words=forest.column_words.copy(),
        column_nan=_missing_keys(forest.column_nan),
        column_zero=_missing_keys(forest.column_zero),
        words=forest.words.copy(),
        head_constant=forest.head_constant.copy(),
        head_scale=forest.head_scale.copy(),
        head_link=forest.head_link.copy(),
        head_trees=forest.head_trees.copy(),
        tree_splits=_offsets(splits) if fits else np.zeros(0, np.int64),
        tree_leaves=_offsets(splits + 1),
        split_key=keys[split_slots].astype(np.int32),
        split_column=forest.slot_column[split_slots].astype(np.int32),
        split_mask=masks,
        leaf=leaf,
        head_groups=head_groups,
        group_steps=group_steps,
        group_root=group_root.astype(np.uintp),
        slot=slot,
        slot_value=np.append(np.where(split, 0.0, forest.slot_number), 0.0),
    )


def _offsets(counts: Longs) -> Longs:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _missing_keys(sides: NDArray[np.int8]) -> NDArray[np.int32]:
    """The key of a column's missing value: the lowest (-1), that of zero (0) or the highest (1)."""
    return np.array([0, HIGHEST_KEY, LOWEST_KEY], np.int32)[sides]


def _levels(
    roots: Longs, split: NDArray[np.bool_], left: Longs
) -> tuple[list[Longs], NDArray[np.int64]]:
    """The splits of all trees, level by level, and each tree's depth."""
    levels: list[Longs] = []
    depth = np.zeros(len(roots), np.int64)
    tree, slots = np.arange(len(roots)), roots
    while True:
        inner = split[slots]
        tree, slots = tree[inner], slots[inner]
        if not len(slots):
            return levels, depth
        levels.append(slots)
        depth[tree] = len(levels)
        tree, slots = np.repeat(tree, 2), np.stack([left[slots], left[slots] + 1], 1).ravel()


def _masks(
    forest: Forest, levels: list[Longs], left: Longs
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Per split, the leaves that are not on its left, as bits; and all leaves, left to right."""
    split = forest.slot_column >= 0
    count = np.where(split, 0, 1)
    first = np.zeros(len(split), np.int64)
    for slots in reversed(levels):
        count[slots] = count[left[slots]] + count[left[slots] + 1]
    for slots in levels:
        first[left[slots]] = first[slots]
        first[left[slots] + 1] = first[slots] + count[left[slots]]
    split_slots = np.flatnonzero(split)
    left_leaves = ((1 << count[left[split_slots]]) - 1) << first[split_slots]
    leaves = np.flatnonzero(~split)
    tree = np.repeat(np.arange(len(forest.tree_slots) - 1), np.diff(forest.tree_slots))[leaves]
    values = forest.slot_number[leaves[np.lexsort((first[leaves], tree))]]
    return (~left_leaves & 0xFFFFFFFF).astype(np.uint32), values


def _groups(
    head_trees: Longs, roots: Longs, depth: Longs, nothing: int
) -> tuple[Longs, Longs, Longs]:
    """WALKS roots per group, with trees of similar depth together, padded with slot `nothing`."""
    counts, steps, filled = [], [], []
    for begin, end in itertools.pairwise(head_trees.tolist()):
        order = begin + np.argsort(depth[begin:end], kind="stable")
        spare = -len(order) % WALKS
        group = np.concatenate([roots[order], np.full(spare, nothing)]).reshape(-1, WALKS)
        deep = np.concatenate([depth[order], np.zeros(spare, np.int64)]).reshape(-1, WALKS)
        counts.append(len(group))
        steps.append(deep.max(1, initial=0))
        filled.append(group.ravel())
    return (
        _offsets(np.array(counts, np.int64)),
        np.concatenate([np.zeros(0, np.int64), *steps]),
        np.concatenate([np.zeros(0, np.int64), *filled]),
    )

"""A stored forest's predictions by following its definition, one row and one node at a time."""

import math

import numpy as np

from adaspec.predict.forest import EXP, SIGMOID


def _goes_left(forest, column, threshold, row):
    value = float(row[forest.column_feature[column]])
    begin, end = forest.column_words[column : column + 2].tolist()
    if begin < end:
        if not -1 < value < 32 * (end - begin):
            return threshold >= 1
        category = int(value)
        inside = int(forest.words[begin + category // 32]) >> (category % 32) & 1
        return (0 if inside else 1) <= threshold
    if math.isnan(value):
        side = int(forest.column_nan[column])
    elif abs(value) <= float(np.float32(1e-35)):
        side = int(forest.column_zero[column])
        value = 0.0
    else:
        return value <= threshold
    return side < 0 or (side == 0 and threshold >= 0)


def _leaf(forest, tree, row):
    """The value of the leaf that the row falls into; an IndexError if it leaves the tree."""
    start, end = forest.tree_slots[tree : tree + 2].tolist()
    columns, numbers = forest.slot_column[start:end].tolist(), forest.slot_number[start:end]
    splits = [slot for slot, column in enumerate(columns) if column >= 0]
    slot = 0
    for _ in range(len(columns)):
        if columns[slot] < 0:
            return float(numbers[slot])
        left = _goes_left(forest, columns[slot], float(numbers[slot]), row)
        slot = 2 * splits.index(slot) + (1 if left else 2)
    raise AssertionError("a walk without end")


def predict(forest, rows):
    out = np.zeros((len(rows), len(forest.heads)))
    for place, row in enumerate(rows):
        for head in range(len(forest.heads)):
            first, last = forest.head_trees[head : head + 2].tolist()
            total = sum(_leaf(forest, tree, row) for tree in range(first, last))
            with np.errstate(over="ignore", invalid="ignore"):
                score = np.float64(total) + forest.head_constant[head]
                if forest.head_link[head] == SIGMOID:
                    score = 1 / (1 + np.exp(-forest.head_scale[head] * score))
                elif forest.head_link[head] == EXP:
                    score = np.exp(score)
            out[place, head] = score
    return out

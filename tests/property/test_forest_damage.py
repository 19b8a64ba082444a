"""A stored forest, damaged in any way, is refused in one line or predicts by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from naive_forest import predict as predict_naively

from adaspec.errors import PolicyError
from adaspec.predict.forest import Forest, predict

HEADS = ("first", "second", "third")
DAMAGES = 1500


def _tree(random, splits):
    """Columns of a random tree's slots, level by level."""
    columns = np.full(2 * splits + 1, -1)
    for rank in range(splits):
        before = columns[: 2 * rank + 1]
        columns[random.choice(np.arange(rank, 2 * rank + 1)[before[rank:] < 0])] = 0
        # Splits are numbered by place, so an earlier place shifts those behind it: still sound.
    return np.where(columns == 0, random.integers(0, 7, len(columns)), -1)


def random_forest(random, most_splits):
    """A sound forest of three heads with numbers, missing values and sets of categories."""
    trees = [_tree(random, random.integers(0, most_splits + 1)) for _ in range(12)]
    columns = np.concatenate(trees)
    split = columns >= 0
    numbers = random.normal(size=len(columns))
    numbers[split] = numbers[split].astype(np.float32)
    numbers[split & (columns >= 5)] = 0
    return Forest(
        features=("a", "b", "c", "d"),
        heads=HEADS,
        head_trees=np.array([0, 5, 5, 12]),
        head_constant=random.normal(size=3),
        head_scale=np.array([1.0, 1.0, 0.5]),
        head_link=np.array([0, 2, 1], np.int8),
        tree_slots=np.concatenate([[0], np.cumsum([len(tree) for tree in trees])]),
        slot_column=columns.astype(np.int32),
        slot_number=numbers,
        column_feature=np.array([0, 0, 1, 2, 2, 3, 3], np.int32),
        column_nan=np.array([-1, 1, 0, 1, -1, 0, 0], np.int8),
        column_zero=np.array([0, 0, 0, 1, -1, 0, 0], np.int8),
        column_words=np.array([0, 0, 0, 0, 0, 0, 1, 3], np.int32),
        words=random.integers(0, 2**32, 3).astype(np.uint32),
    )


def rows_of(random, rows, width=4):
    """Rows with missing, extreme and categorical values."""
    values = random.normal(size=(rows, width)).astype(np.float32)
    values[:, -1] = random.integers(-3, 80, rows)
    odd = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-40, 3e38, 3e9, -0.5, 7.9], np.float32)
    chosen = random.random(values.shape) < 0.3
    values[chosen] = random.choice(odd, chosen.sum())
    return values


def _damaged(random, arrays):
    """The arrays with one to three things wrong with them."""
    arrays = {name: array.copy() for name, array in arrays.items()}
    for _ in range(random.integers(1, 4)):
        name = str(random.choice(sorted(arrays)))
        array = arrays[name]
        match int(random.integers(0, 12)):
            case 0 if array.nbytes and array.dtype != object:
                raw = bytearray(array.tobytes())
                raw[random.integers(len(raw))] ^= 1 << int(random.integers(8))
                arrays[name] = np.frombuffer(raw, array.dtype)
            case 1 | 2 | 3 if array.size and array.dtype.kind in "iu":
                limits = np.iinfo(array.dtype)
                near = int(array.flat[random.integers(array.size)]) + int(random.integers(-2, 3))
                choices = [limits.min, limits.max, 0, -1, len(array), near]
                value = choices[random.integers(len(choices))]
                array.flat[random.integers(array.size)] = np.clip(value, limits.min, limits.max)
            case 4 if array.size and array.dtype.kind == "f":
                odd = random.choice([np.nan, np.inf, -np.inf, 1e30])
                array.flat[random.integers(array.size)] = odd
            case 5:
                arrays[name] = array[: random.integers(0, len(array) + 1)]
            case 6:
                kinds = [np.float32, np.int16, np.object_, ">i8", "U3", np.uint64]
                arrays[name] = np.arange(len(array)).astype(kinds[random.integers(len(kinds))])
            case 7 if array.ndim == 1:
                arrays[name] = np.stack([array, array]) if random.random() < 0.5 else array[:, None]
            case _ if array.ndim == 1:
                random.shuffle(array)
    if random.random() < 0.05:
        arrays.pop(str(random.choice(sorted(arrays))))
    return arrays


@pytest.mark.parametrize("most_splits", [6, 50])
def test_a_damaged_forest_is_refused_or_predicts_by_its_definition(most_splits):
    random = np.random.default_rng(3)
    sound = 0
    for _ in range(DAMAGES // 2):
        arrays = _damaged(random, random_forest(random, most_splits).to_arrays())
        try:
            forest = Forest.from_arrays(arrays)
        except PolicyError as error:
            assert str(error).startswith("forest: ")
            assert "\n" not in str(error)
            continue
        sound += 1
        rows = rows_of(random, 5, len(forest.features))
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(
                predict(forest, rows), predict_naively(forest, rows), rtol=1e-9, atol=1e-9
            )
    assert 0 < sound < DAMAGES // 4


@pytest.mark.parametrize("most_splits", [0, 1, 6, 31, 32, 100])
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 16, 17, 40])
def test_a_random_forest_predicts_by_its_definition(most_splits, rows):
    random = np.random.default_rng([most_splits, rows])
    forest = random_forest(random, most_splits)
    values = rows_of(random, rows)
    np.testing.assert_allclose(
        predict(forest, values), predict_naively(forest, values), rtol=1e-12, atol=1e-12
    )

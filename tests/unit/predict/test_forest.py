"""A forest's arrays, their round trip and what it refuses."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from adaspec.errors import PolicyError
from adaspec.predict.forest import IDENTITY, SIGMOID, Forest, predict, predict_rows


def stump(**changes):
    """One split at 0.5 (left 1, right 2; a NaN goes right) and a head that is a constant."""
    fields = {
        "features": ("length", "recent"),
        "heads": ("neural", "ngram"),
        "head_trees": np.array([0, 1, 1]),
        "head_constant": np.array([10.0, 0.0]),
        "head_scale": np.ones(2),
        "head_link": np.array([IDENTITY, SIGMOID], np.int8),
        "tree_slots": np.array([0, 3]),
        "slot_column": np.array([0, -1, -1], np.int32),
        "slot_number": np.array([0.5, 1.0, 2.0]),
        "column_feature": np.array([1], np.int32),
        "column_nan": np.array([1], np.int8),
        "column_zero": np.array([0], np.int8),
        "column_words": np.array([0, 0], np.int32),
        "words": np.zeros(0, np.uint32),
    }
    return Forest(**fields | changes)


def rows(*recent):
    return np.array([[99, value] for value in recent], np.float32)


@pytest.mark.parametrize("copies", [1, 5, 40])
def test_each_head_predicts_for_each_row(copies):
    got = predict(stump(), rows(0.5, np.nextafter(np.float32(0.5), 1), np.nan).repeat(copies, 0))
    assert got.shape == (3 * copies, 2)
    assert got[:, 0].tolist() == [*[11] * copies, *[12] * 2 * copies]
    assert np.all(got[:, 1] == 0.5)


def test_it_survives_a_file(tmp_path):
    forest = stump()
    np.savez(tmp_path / "forest.npz", **forest.to_arrays())
    with np.load(tmp_path / "forest.npz", allow_pickle=False) as arrays:
        again = Forest.from_arrays(arrays)
    assert (again.features, again.heads) == (forest.features, forest.heads)
    for name, array in forest.to_arrays().items():
        assert np.array_equal(again.to_arrays()[name], array)
        assert again.to_arrays()[name].dtype == array.dtype
    assert np.array_equal(predict(again, rows(0, 1)), predict(forest, rows(0, 1)))


def test_compiled_code_predicts_the_rows_it_names_and_no_more():
    @njit
    def ask(trees, features, scratch, out):
        predict_rows(trees, features, 2, scratch, out)

    forest = stump()
    out = np.full((3, 2), -1.0)
    ask(forest.trees, rows(0, 1, 1), forest.scratch(), out)
    assert out.tolist() == [[11, 0.5], [12, 0.5], [-1, -1]]


def test_changing_its_arrays_later_changes_no_prediction():
    forest = stump()
    for field in dataclasses.fields(forest):
        if isinstance(array := getattr(forest, field.name), np.ndarray) and len(array):
            array[:] = 99
    assert predict(forest, rows(0)).tolist() == [[11, 0.5]]


@pytest.mark.parametrize("shape", [(2,), (1, 3), (1, 1), (1, 2, 1)])
def test_features_of_another_width_are_refused(shape):
    with pytest.raises(PolicyError, match="the forest takes 2 per row"):
        predict(stump(), np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": ("a", "a")}, "features must be one or more different names"),
        ({"heads": ()}, "heads must be one or more different names"),
        ({"head_trees": np.array([0, 2, 1])}, r"head_trees\[1\]=2 is not within 0 .. 1"),
        ({"head_trees": np.array([0, 1])}, "head_trees has 2 entries: it must have 3"),
        ({"head_trees": np.array([0, 0, 0])}, "head_trees must rise from 0 to 1"),
        ({"head_constant": np.array([0, np.nan])}, "head_constant holds nan"),
        ({"head_link": np.array([0, 3], np.int8)}, r"head_link\[1\]=3 is not within 0 .. 2"),
        ({"head_link": np.array([0, 1])}, "head_link is int64.* must be one row of int8"),
        ({"tree_slots": np.array([0, 2, 3])}, "head_trees must rise from 0 to 2"),
        ({"tree_slots": np.zeros(0, np.int64)}, "head_trees"),
        ({"slot_column": np.array([0, 0, -1], np.int32)}, "do not add up"),
        ({"slot_column": np.array([-1, 0, -1], np.int32)}, "stands behind its own branches"),
        ({"slot_column": np.array([1, -1, -1], np.int32)}, r"slot_column\[0\]=1 is not within"),
        ({"slot_column": np.array([0, -2, -1], np.int32)}, r"slot_column\[1\]=-2 is not within"),
        ({"slot_number": np.array([0.1, 1, 2])}, "a threshold that is no float32"),
        ({"slot_number": np.array([np.nan, 1, 2])}, "a threshold that is no float32"),
        ({"slot_number": np.array([0.5, 1, np.inf])}, "slot_number holds inf"),
        (
            {"column_feature": np.array([2], np.int32)},
            r"column_feature\[0\]=2 is not within",
        ),
        ({"column_nan": np.array([2], np.int8)}, r"column_nan\[0\]=2 is not within -1 .. 1"),
        ({"column_words": np.array([0, 1], np.int32)}, r"column_words\[1\]=1 is not within"),
    ],
)
def test_what_a_walk_could_go_astray_by_is_refused(changes, words):
    with pytest.raises(PolicyError, match=words):
        stump(**changes)


def test_an_even_number_of_slots_is_no_tree():
    with pytest.raises(PolicyError, match="tree 0 has 2 slots"):
        stump(
            tree_slots=np.array([0, 2]),
            slot_column=np.array([0, -1], np.int32),
            slot_number=np.array([0.5, 1.0]),
        )


def test_missing_and_unknown_arrays_are_named():
    arrays = stump().to_arrays()
    words = arrays.pop("words")
    with pytest.raises(PolicyError, match="array 'words' is missing"):
        Forest.from_arrays(arrays)
    with pytest.raises(PolicyError, match="unknown array 'wurds'; did you mean 'words'"):
        Forest.from_arrays(arrays | {"wurds": words})


def test_names_that_are_no_text_are_refused():
    broken = np.array([0x7FFFFFFF, 65], np.uint32).view("U1")
    with pytest.raises(PolicyError, match="heads holds something that is no text"):
        Forest.from_arrays(stump().to_arrays() | {"heads": broken})


def test_a_server_loads_it_without_lightgbm():
    code = "import sys, adaspec.predict.forest; print('lightgbm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

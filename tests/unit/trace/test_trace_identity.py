import numpy as np
import pytest

from adaspec.trace.identity import request_hash


def test_the_hash_of_a_request_is_this_one_for_ever():
    # Manifests of policies hold such hashes: another one would make seen requests unseen.
    assert request_hash([1, 2, 3], [4, 5]) == "230d54b3e8b99bd7"


def test_the_hash_depends_on_tokens_and_not_on_how_they_are_held():
    digits = request_hash([1, 2, 3], [4, 5])
    for dtype in (np.int16, np.int32, np.int64, np.uint16, np.dtype(">i4")):
        assert request_hash(np.array([1, 2, 3], dtype), np.array([4, 5], dtype)) == digits
    assert request_hash(np.array([1, 9, 2, 9, 3, 9])[::2], (4, 5)) == digits


def test_where_the_prompt_ends_matters():
    assert (
        len({request_hash([1, 2], [3]), request_hash([1], [2, 3]), request_hash([], [1, 2, 3])})
        == 3
    )


def test_tokens_that_are_no_whole_numbers_are_refused():
    with pytest.raises(TypeError):
        request_hash([1.5], [2])

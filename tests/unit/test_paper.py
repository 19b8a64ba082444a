"""The scripts of the papers' tables against what was published, and against counts by hand."""

import math
import sys

import numpy as np
import pytest
from checkout import CHECKOUT, need

need("eval")
sys.path.append(str(CHECKOUT / "eval" / "paper"))

from acceptance import along, overlaps, rank_correlation  # noqa: E402
from formulas import expected_speedup, memory  # noqa: E402


def test_a_free_drafter_gives_the_published_speedups():
    # Table 1 of Leviathan et al., arXiv 2211.17192.
    published = {(0.6, 2): 1.96, (0.7, 3): 2.53, (0.8, 5): 3.69, (0.9, 2): 2.71, (0.9, 10): 6.86}
    for (alpha, k), speedup in published.items():
        assert expected_speedup(alpha, 0.0, k) == pytest.approx(speedup, abs=0.005)
    assert expected_speedup(1.0, 0.25, 4) == 5 / 2


def test_a_model_takes_the_published_memory():
    alone, eagle, *_ = memory("llama-3.1-8b")
    assert alone.weights / 2**30 == pytest.approx(14.96, abs=0.005)
    assert eagle.kv_per_token / alone.kv_per_token == pytest.approx(33 / 32)


def test_an_ngram_counts_as_often_as_it_is_in_the_prompt():
    prompt, output = np.array([7, 7, 8], np.int32), np.array([7, 7, 7, 8], np.int32)
    # 7 twice and 8 once; 7 7 once, 7 8 once; 7 7 8.
    assert overlaps(prompt, output) == [3 / 4, 2 / 3, 1 / 2, 0]


def test_overlap_is_correlated_by_ranks():
    # The ranks are 1 2 3 and 1 3 2: 1 - 6 (0 + 1 + 1) / (3 (9 - 1)).
    found = rank_correlation(np.array([0.1, 0.2, 0.9]), np.array([0.0, 9.0, 2.0]))
    assert found == pytest.approx(0.5)
    assert math.isnan(rank_correlation(np.full(3, 0.5), np.array([1.0, 2.0, 3.0])))


def test_acceptance_is_given_along_short_middle_and_long_outputs():
    counts = [np.array([-1, *[2, 0] * 10]), np.array([-1, 2, 1]), np.arange(10, -1, -1)]
    found = {name: (least, most, mean) for name, least, most, mean in along(counts)}
    np.testing.assert_array_equal(found["short"][2], [2, *[np.nan] * 4, 1, *[np.nan] * 4])
    np.testing.assert_array_equal(found["middle"][2], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    assert found["long"][:2] == (21, 21)
    np.testing.assert_array_equal(found["long"][2], [1.0] * 10)

"""A batch's drafts are kept to a budget by shortening the longest."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaspec.policy.step import Cut, shorten_longest

LENGTHS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6)


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 60))
def test_the_longest_drafts_give_way_first(lengths, most):
    neural, ngram = np.array(lengths, np.int32).T.copy()
    cut = Cut(neural.copy(), ngram.copy(), np.zeros_like(neural))
    shorten_longest(cut, most)
    before, after = neural + ngram, cut.neural_len + cut.ngram_len
    assert after.sum() == min(before.sum(), most)
    assert (cut.neural_len <= neural).all()
    assert (cut.ngram_len >= 0).all()
    # What is copied stands behind whole neural drafts alone.
    assert (cut.neural_len == neural)[cut.ngram_len > 0].all()
    shortened = after < before
    if shortened.any():
        assert after.max() - after[shortened].min() <= 1

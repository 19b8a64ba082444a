from __future__ import annotations

import numpy as np

from adaspec.bench.lookup import make_contexts
from adaspec.draft.index import match_positions


def test_contexts_are_the_same_for_the_same_seed_and_all_different() -> None:
    contexts = make_contexts(10, 300, seed=4)
    assert np.array_equal(contexts, make_contexts(10, 300, seed=4))
    assert len({context.tobytes() for context in contexts}) == 10


def test_contexts_match_themselves_about_as_often_as_recorded_text() -> None:
    lengths = match_positions([], make_contexts(1, 20_000, seed=0)[0]).length
    assert 0.75 < (lengths >= 1).mean() < 0.92
    assert 0.1 < (lengths >= 10).mean() < 0.4

"""How predictions are recalibrated: slowly by few drafts, whatever their length, and by many."""

from __future__ import annotations

import numpy as np
import pytest
from test_choose import MODEL

from adaspec.policy.planner.learning import factor_of, update_record
from adaspec.policy.planner.state import NEURAL, NGRAM, State, new_state


@pytest.fixture
def state() -> State:
    made = new_state([MODEL], 4)
    made.record["factor"] = 1.0
    return made


def test_one_long_draft_that_fails_does_not_end_copying_and_many_halve_it(state: State) -> None:
    update_record(state, NGRAM, 6.0, 0.0, 1)
    assert factor_of(state, NGRAM) > 0.8
    assert factor_of(state, NEURAL) == 1.0
    rng = np.random.default_rng(0)
    for _ in range(300):
        update_record(state, NGRAM, 4.0, float(rng.choice([0.0, 4.0])), 2)
    assert factor_of(state, NGRAM) == pytest.approx(0.52, abs=0.06)


def test_a_source_that_brings_more_than_was_expected_gains_little(state: State) -> None:
    for _ in range(200):
        update_record(state, NEURAL, 1.0, 2.0, 2)
    assert factor_of(state, NEURAL) == pytest.approx(1.15)


def test_a_source_that_rests_for_days_is_taken_at_its_word_again(state: State) -> None:
    update_record(state, NGRAM, 60.0, 0.0, 40)
    assert factor_of(state, NGRAM) < 0.5
    # What is left of its record fades below the least number that there is.
    state.record["expected"] *= 1e-290
    state.record["drafts"] *= 1e-290
    for _ in range(90_000):
        update_record(state, NGRAM, 0.0, 0.0, 0)
    assert state.record["expected"][NGRAM] < 1e-300
    assert factor_of(state, NGRAM) == 1.0

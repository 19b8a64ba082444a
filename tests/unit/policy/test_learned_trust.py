"""How far a source is trusted: slowly moved by few drafts, whatever their length, and by many."""

from __future__ import annotations

import numpy as np
import pytest
from test_learned_guard import optimist

from adaspec.policy.desk import NEURAL, NGRAM, USED, Desk, knob_row, new_desk
from adaspec.policy.trust import trust_in, weigh_record


@pytest.fixture
def desk() -> Desk:
    made = new_desk([optimist(evidence=False).model], 4)
    made.trust[:, USED] = 1.0
    return made


KNOBS = knob_row({})


def test_one_long_draft_that_fails_does_not_end_copying(desk: Desk) -> None:
    weigh_record(desk, NGRAM, 6.0, 0.0, 1)
    assert trust_in(desk, KNOBS, NGRAM) > 0.8
    for _ in range(50):
        weigh_record(desk, NGRAM, 0.0, 0.0, 0)
    assert trust_in(desk, KNOBS, NGRAM) > 0.8
    assert trust_in(desk, KNOBS, NEURAL) == 1.0


def test_many_drafts_that_bring_half_of_what_was_said_are_halved(desk: Desk) -> None:
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(300):
        weigh_record(desk, NGRAM, 4.0, float(rng.choice([0.0, 4.0])), 2)
        seen.append(trust_in(desk, KNOBS, NGRAM))
    print([round(each, 2) for each in seen[::50]])
    assert seen[0] > 0.7
    assert seen[-1] == pytest.approx(0.52, abs=0.06)


def test_a_source_that_brings_more_than_was_said_gains_little(desk: Desk) -> None:
    for _ in range(200):
        weigh_record(desk, NEURAL, 1.0, 2.0, 2)
    assert trust_in(desk, KNOBS, NEURAL) == pytest.approx(1.15)


def test_a_source_that_rests_for_days_is_trusted_anew(desk: Desk) -> None:
    weigh_record(desk, NGRAM, 60.0, 0.0, 40)
    assert trust_in(desk, KNOBS, NGRAM) < 0.5
    for _ in range(1_000_000):
        weigh_record(desk, NGRAM, 0.0, 0.0, 0)
    assert trust_in(desk, KNOBS, NGRAM) == 1.0


def test_without_recalibration_nothing_moves(desk: Desk) -> None:
    weigh_record(desk, NGRAM, 50.0, 0.0, 40)
    assert trust_in(desk, knob_row({"recalibrate": 0.0}), NGRAM) == 1.0

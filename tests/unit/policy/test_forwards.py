"""Whether the neural drafter runs: by the table, and by what its drafts are worth."""

import numpy as np

from adaspec.policy.planner.forwards import (
    count_pause,
    forwards_at,
    forwards_table,
    new_drafter,
    note_gain,
)

ROWS, TOKENS, COST = 8, 2.0, 0.25


def run(drafter, gain, steps):
    """Take in steps in which a row gains so much; how many of them ran the drafter."""
    ran = 0
    for _ in range(steps):
        if drafter["pause"][0] > 0:
            count_pause(drafter, ROWS)
            continue
        ran += 1
        note_gain(drafter, gain, COST, TOKENS, ROWS, ROWS)
    return ran


def test_forwards_between_two_loads_of_the_table_are_interpolated():
    table = forwards_table({1: 4, 16: 2, 64: 0})
    assert [forwards_at(table, load) for load in (1, 4, 16, 32, 64, 200)] == [4, 3, 2, 1, 0, 0]


def test_a_drafter_that_pays_is_never_paused_nor_is_one_in_doubt():
    for gain in (2 * COST, COST, COST - 0.03 * TOKENS):
        drafter = new_drafter()
        assert run(drafter, gain, 5000) == 5000


def test_a_drafter_that_never_pays_is_hardly_ever_run():
    drafter = new_drafter()
    early, later = run(drafter, 0.0, 4000), run(drafter, 0.0, 40_000)
    assert early / 4000 < 0.15
    assert 0 < later / 40_000 < 0.02


def test_a_drafter_that_pays_again_runs_on_after_the_next_trial_and_pauses_are_short_again():
    drafter = new_drafter()
    first = drafter["next_pause"][0]
    run(drafter, 0.0, 30_000)
    assert drafter["next_pause"][0] > first
    run(drafter, 2 * COST, 12_000)
    assert drafter["next_pause"][0] == first
    assert run(drafter, 2 * COST, 1000) == 1000


def test_a_few_bad_steps_pause_nothing():
    drafter = new_drafter()
    rng = np.random.default_rng(0)
    for gain in rng.choice([0.0, 4 * COST], 5000):  # twice what it takes on average
        note_gain(drafter, gain, COST, TOKENS, 1, 1)
    assert drafter["pause"][0] == 0


def test_a_drafter_that_few_hold_is_judged_once_they_stay_few():
    drafter, steps = new_drafter(), 0
    while drafter["pause"][0] == 0:
        note_gain(drafter, 0.1 * COST, COST, TOKENS, ROWS, 1)
        steps += 1
    assert 500 < steps < 2000  # most of them while more might have taken it

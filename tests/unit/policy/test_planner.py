"""What the planner computes.

What is drafted and verified, against exhaustive search, on curves that are given; how predictions
are corrected, slowly by few drafts, whatever their length, and by many; and whether the neural
drafter runs, by the table, and by what its drafts are worth.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_model
from random_recordings import random_cost

from adaspec.cost.model import CostModel, line, target_s
from adaspec.policy.planner.address import Pinned
from adaspec.policy.planner.budget import (
    decide_budget,
    keep_likeliest,
    new_batch_state,
    note_ranked,
    rank,
    ranked_budget,
)
from adaspec.policy.planner.choose import extended, offer, wanted
from adaspec.policy.planner.forwards import (
    MOST_BEYOND,
    count_pause,
    forwards_table,
    forwards_to_run,
    most_forwards,
    new_number,
    new_pause,
    note_gain,
    weigh_forwards,
)
from adaspec.policy.planner.learning import factor_of, update_record
from adaspec.policy.planner.state import (
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    LONGEST_SPLICE,
    NEURAL,
    NGRAM,
    State,
    new_planner,
    new_state,
)

CAP = 6
MODEL = random_model(0, evidence=False)
SEEDS = st.integers(0, 1 << 32)


def falling(rng: np.random.Generator, tokens: int, longest: int) -> np.ndarray:
    curve = np.zeros(longest + 1)
    curve[0] = 1.0
    curve[1 : tokens + 1] = np.cumprod(rng.uniform(rng.choice([0.0, 0.6]), 1, tokens))
    return curve


def filled(rng: np.random.Generator, count: int, price: float) -> tuple[Pinned, State]:
    """A planner of rows with curves of every shape, as predictions and matches leave them."""
    costs = line("any", 1.0, 0.1).constants()
    pinned = Pinned(new_planner(MODEL, costs, count, CAP, LONGEST_NEURAL, reads_drafts=True))
    planner, state = pinned.value, pinned.value.state
    planner.run["rows"], planner.batch_state.step["price"] = count, price
    state.record["factor"] = 1.0
    planner.rows.available[:] = rng.integers(0, CAP + 2, count)
    for row in range(count):
        state.neural[row] = falling(rng, LONGEST_NEURAL * int(rng.random() < 0.8), LONGEST_NEURAL)
        state.ngram[row] = falling(rng, int(planner.rows.available[row]), LONGEST_NGRAM)
        for k in range(1, LONGEST_NEURAL + 1):
            behind = min(int(rng.integers(0, 4)), max(CAP - k, 0)) * int(rng.random() < 0.5)
            state.splice[row, k] = falling(rng, behind, LONGEST_SPLICE)
    return pinned, state


def survival(state: State, row: int, neural: int, copied: int) -> np.ndarray:
    """Of each token of a draft, P(it and all before it are accepted)."""
    if not neural:
        return state.ngram[row, 1 : copied + 1]
    spliced = state.neural[row, neural] * state.splice[row, neural, 1 : copied + 1]
    return np.concatenate([state.neural[row, 1 : neural + 1], spliced])


def drafts(pinned: Pinned, row: int, count: int) -> list[tuple[int, int]]:
    """Every draft of a row: neural tokens and copied ones."""
    available = int(pinned.value.rows.available[row])
    found = [(0, copied) for copied in range(min(available, CAP) + 1)]
    for neural in range(1, min(count, CAP) + 1):
        behind = int((pinned.value.state.splice[row, neural, 1:] > 0).sum())
        found += [(neural, copied) for copied in range(min(behind, CAP - neural) + 1)]
    return found


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.integers(0, 4), st.floats(0.01, 0.9))
def test_every_row_takes_the_draft_that_is_worth_most_and_goes_on_as_far_as_its_source_does(
    seed, count, price
):
    pinned, state = filled(np.random.default_rng(seed), 3, price)
    neural, ngram = np.zeros((2, 3), np.int32)
    wanted(pinned.address, count, neural, ngram)
    for row in range(3):

        def worth(draft, row=row):
            return float((survival(state, row, *draft) - price).sum())

        best = max(worth(draft) for draft in drafts(pinned, row, count))
        assert worth((int(neural[row]), int(ngram[row]))) == pytest.approx(best, abs=1e-12)
    before = np.stack([neural, ngram], 1).copy()
    extended(pinned.address, count, neural, ngram)
    offer(pinned.address, neural, ngram)
    for row in range(3):
        if before[row].any():
            assert neural[row] == before[row, 0]
            assert ngram[row] >= before[row, 1]
        length = neural[row] + ngram[row]
        offered = state.offered[row, :length]
        np.testing.assert_allclose(offered, survival(state, row, neural[row], ngram[row]))
        assert (np.diff(offered) <= 1e-12).all()
        assert length <= CAP


def offers(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    lengths = rng.integers(0, CAP, rows).astype(np.int32)
    table = np.zeros((rows, CAP))
    for row, length in enumerate(lengths):
        table[row, :length] = np.round(np.cumprod(rng.uniform(0.4, 1, length)), 1) + 0.05
        table[row, :length] = np.minimum.accumulate(table[row, :length])
    return table, lengths


@settings(max_examples=300, deadline=None)
@given(SEEDS, st.integers(1, 3), st.floats(0.01, 5), st.integers(0, 30), st.integers(0, 19))
def test_the_likeliest_tokens_fit_a_budget_and_the_best_of_all_prefixes_fit_the_best_one(
    seed, rows, rate, reading, any_room
):
    rng = np.random.default_rng(seed)
    costs = random_cost(rng).constants()
    table, lengths = offers(rng, rows)
    batch_state = new_batch_state(rows, CAP)

    def worth(chosen) -> float:
        accepted = sum(table[row, :length].sum() for row, length in enumerate(chosen))
        return float(accepted - rate * target_s(costs, rows + reading + int(sum(chosen))))

    best = max(
        worth(chosen) for chosen in itertools.product(*(range(length + 1) for length in lengths))
    )

    def cut_to(room):
        cut = lengths.copy()
        keep_likeliest(batch_state, table, cut, room)
        assert cut.sum() == min(room, lengths.sum())
        return cut

    rank(batch_state, table, lengths)
    best_room = ranked_budget(batch_state, costs, rate, rows + reading)
    assert best_room <= lengths.sum()
    assert worth(cut_to(best_room)) == pytest.approx(best, abs=1e-9)
    cut = cut_to(any_room)
    kept = np.concatenate([table[row, : cut[row]] for row in range(rows)])
    out = np.concatenate([table[row, cut[row] : lengths[row]] for row in range(rows)])
    assert kept.min(initial=np.inf) >= out.max(initial=0.0)
    # The price is the last of them.
    price = float(batch_state.step["price"][0])
    assert price == (0.0 if not len(out) else kept.min() if any_room else out.max())


def test_a_late_budget_follows_what_rows_offered_and_fills_a_captured_size() -> None:
    sizes, seconds = (8, 16, 32, 64, 65, 66), (1.08, 1.16, 1.32, 1.64, 5.0, 5.01)
    costs = CostModel("any", sizes, seconds, largest_graph=64).constants()
    batch_state, few = new_batch_state(4, CAP), np.array([[0.9, 0.01, 0.01, 0.01, 0.01, 0.01]] * 4)
    lengths = np.full(4, CAP, np.int32)
    found = []
    for table in (few, np.full((4, CAP), 0.9)):
        for _ in range(40):
            rank(batch_state, table, lengths)
            note_ranked(batch_state, 4)
        found.append(decide_budget(batch_state, costs, 10.0, 4, 0, CAP))
    # 4 + 4 fill 8; 4 rows can draft 24 tokens at most.
    assert found == [4, 24]
    # With fewer rows there is less to verify, and prompts leave less of a captured size.
    assert decide_budget(batch_state, costs, 10.0, 2, 0, CAP) == 12
    assert decide_budget(batch_state, costs, 10.0, 4, 40, CAP) == 20


@pytest.fixture
def state() -> State:
    made = new_state(MODEL, 4)
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


ROWS, TOKENS, COST = 8, 2.0, 0.25


def run(pause, gain, steps):
    """Take in steps in which a row gains so much; how many of them ran the drafter."""
    ran = 0
    for _ in range(steps):
        if pause["left"][0] > 0:
            count_pause(pause, ROWS)
            continue
        ran += 1
        note_gain(pause, gain, COST, TOKENS, ROWS, ROWS)
    return ran


@pytest.mark.parametrize(
    ("worth", "at_first", "settled"),
    [
        ((0.3, 0.2, 0.05), 1, 2),
        ((0.3, 0.2, 0.05), 3, 2),
        ((0.05, 0.0, 0.0), 2, 1),
        (9 * (0.3,), 1, 1 + MOST_BEYOND),
        (9 * (0.3,), 8, 8),
    ],
    ids=["one more", "one fewer", "one at least", "not too many", "not beyond the cap"],
)
def test_as_many_forwards_run_as_bring_more_than_they_take(worth, at_first, settled):
    number, table = new_number(), forwards_table({1: at_first, 64: 0})
    rng, ran, worth = np.random.default_rng(0), [], np.array([*worth, *9 * [0.0]])

    def run_steps(count):
        for _ in range(count):
            ran.append(forwards_to_run(table, number, 1, 8))
            emitted = rng.choice([1.0, 9.0])  # where much is copied, a forward brings nothing
            nets = worth[ran[-1] - 1 : ran[-1] + 1] * (1.8 if emitted == 1 else 0.2) - 0.1
            weigh_forwards(number, ran[-1], most_forwards(table, 8), *nets, emitted, 1)

    run_steps(900)
    assert np.mean(np.array(ran[400:]) == settled) > 0.8
    assert forwards_to_run(table, number, 64, 8) == 0  # where the drafter does not pay at all
    worth[:2] = 1.0
    run_steps(400)
    assert ran[-1] >= 2


def test_a_drafter_that_pays_is_never_paused_nor_is_one_in_doubt():
    for gain in (2 * COST, COST, COST - 0.03 * TOKENS):
        pause = new_pause()
        assert run(pause, gain, 5000) == 5000


def test_a_drafter_that_never_pays_is_hardly_ever_run():
    pause = new_pause()
    early, later = run(pause, 0.0, 4000), run(pause, 0.0, 40_000)
    assert early / 4000 < 0.15
    assert 0 < later / 40_000 < 0.02


def test_a_drafter_that_pays_again_runs_on_after_the_next_trial_and_pauses_are_short_again():
    pause = new_pause()
    first = pause["next"][0]
    run(pause, 0.0, 30_000)
    assert pause["next"][0] > first
    run(pause, 2 * COST, 12_000)
    assert pause["next"][0] == first
    assert run(pause, 2 * COST, 1000) == 1000

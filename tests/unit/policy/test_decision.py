"""What is decided for a batch: which tokens are verified, and how often the drafter runs."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_recordings import random_cost

from adaspec.cost.model import CostModel, target_s
from adaspec.policy import budget
from adaspec.policy.budget import NEURAL, NGRAM, SPLICE, no_settings
from adaspec.policy.choice import ROW
from adaspec.policy.decision import factor_of, learn_factors, update_record

CAP = 6
SEEDS = st.integers(0, 1 << 32)


def offers(rng, rows):
    lengths = rng.integers(0, CAP, rows).astype(np.int64)
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

    def worth(chosen):
        accepted = sum(table[row, :length].sum() for row, length in enumerate(chosen))
        return float(accepted - rate * target_s(costs, rows + reading + int(sum(chosen))))

    best = max(
        worth(chosen) for chosen in itertools.product(*(range(length + 1) for length in lengths))
    )

    def cut_to(room):
        cut = lengths.copy()
        price = budget.keep_likeliest(offered, table, cut, room)
        assert cut.sum() == min(room, lengths.sum())
        return cut, price

    offered = budget.ranked(table, lengths)
    assert offered.tolist() == sorted(offered.tolist(), reverse=True)
    best_room = budget.best_budget(costs, rate, rows + reading, offered, 1.0)
    assert best_room <= lengths.sum()
    assert worth(cut_to(best_room)[0]) == pytest.approx(best, abs=1e-9)
    cut, price = cut_to(any_room)
    kept = np.concatenate([table[row, : cut[row]] for row in range(rows)])
    out = np.concatenate([table[row, cut[row] : lengths[row]] for row in range(rows)])
    assert kept.min(initial=np.inf) >= out.max(initial=0.0)
    # The price is the last of them.
    assert price == (0.0 if not len(out) else kept.min() if any_room else out.max())


def test_a_late_budget_follows_what_rows_offered_and_fills_a_captured_size():
    sizes, seconds = (8, 16, 32, 64, 65, 66), (1.08, 1.16, 1.32, 1.64, 5.0, 5.01)
    costs = CostModel("any", sizes, seconds, largest_graph=64).constants()
    state, few = budget.new_state(4, CAP), np.array([[0.9, 0.01, 0.01, 0.01, 0.01, 0.01]] * 4)
    lengths = np.full(4, CAP)
    state.step["rate"], found = 10.0, []
    for table in (few, np.full((4, CAP), 0.9)):
        for _ in range(40):
            budget.note_offered(state, budget.ranked(table, lengths), 4)
        found.append(budget.decide_budget(state, costs, 4, 0, CAP))
    # 4 + 4 fill 8; 4 rows can draft 24 tokens at most.
    assert found == [4, 24]
    # With fewer rows there is less to verify, and prompts leave less of a captured size.
    assert budget.decide_budget(state, costs, 2, 0, CAP) == 12
    assert budget.decide_budget(state, costs, 4, 40, CAP) == 20


@pytest.fixture
def state():
    return budget.new_state(4, CAP)


def test_one_long_draft_that_fails_does_not_end_copying_and_many_halve_it(state):
    update_record(state, NGRAM, 6.0, 0.0, 1)
    assert factor_of(state, NGRAM) > 0.8
    assert factor_of(state, NEURAL) == 1.0
    rng = np.random.default_rng(0)
    for _ in range(300):
        update_record(state, NGRAM, 4.0, float(rng.choice([0.0, 4.0])), 2)
    assert factor_of(state, NGRAM) == pytest.approx(0.52, abs=0.06)


def test_a_source_that_brings_more_than_was_expected_gains_little(state):
    for _ in range(200):
        update_record(state, NEURAL, 1.0, 2.0, 2)
    assert factor_of(state, NEURAL) == pytest.approx(1.15)


def test_of_a_splice_only_what_was_reached_is_learned_and_as_before_the_correction(state):
    rows, survival, chosen = np.zeros(4, ROW), np.zeros((4, CAP)), no_settings()
    rows["neural"], rows["copied"] = [2, 2, 0, 0], [2, 2, 3, 0]
    rows["accepted"] = [3, 1, 3, 0]
    survival[:2, :4], survival[2, :3] = [0.8, 0.5, 0.4, 0.2], [0.9, 0.6, 0.3]
    chosen[[NGRAM, NEURAL, SPLICE]] = 0.5, 0.8, 0.6
    learn_factors(state, rows, survival, chosen)
    found = {name: state.record[name].tolist() for name in ("expected", "accepted", "drafts")}
    assert found["expected"] == pytest.approx([1.8 / 0.5, 2.6 / 0.8, 1.2 / 0.6])
    assert found["accepted"] == [3, 3, 1]
    assert found["drafts"] == [1, 2, 1]


ROWS, TOKENS, COST = 8, 2.0, 0.25


def run(number, gain, steps):
    """Take in steps of one forward by which a row gains so much; how many of them ran it."""
    ran = 0
    for _ in range(steps):
        if number["paused"][0] > 0:
            budget.count_pause(number, ROWS)
            continue
        ran += 1
        budget.weigh_forwards(number, 1, 1, gain - COST, -COST, TOKENS, ROWS, ROWS)
    return ran


@pytest.mark.parametrize(
    ("worth", "at_first", "settled"),
    [
        ((0.3, 0.2, 0.05), 1, 2),
        ((0.3, 0.2, 0.05), 3, 2),
        ((0.15, 0.0, 0.0), 2, 1),
        (9 * (0.3,), 1, 1 + budget.MOST_BEYOND),
        (9 * (0.3,), 8, 8),
    ],
    ids=["one more", "one fewer", "only one", "not too many", "not beyond the cap"],
)
def test_as_many_forwards_run_as_bring_more_than_they_take(worth, at_first, settled):
    number, table = budget.new_number(), budget.forwards_table({1: at_first, 64: 0})
    rng, ran, worth = np.random.default_rng(0), [], np.array([*worth, *9 * [0.0]])

    def run_steps(count):
        for _ in range(count):
            ran.append(budget.forwards_to_run(table, number, 1, 8))
            emitted = rng.choice([1.0, 9.0])  # where much is copied, a forward brings nothing
            nets = worth[ran[-1] - 1 : ran[-1] + 1] * (1.8 if emitted == 1 else 0.2) - 0.1
            budget.weigh_forwards(
                number, ran[-1], budget.most_forwards(table, 8), *nets, emitted, 1, 1
            )

    run_steps(900)
    assert np.mean(np.array(ran[400:]) == settled) > 0.8
    assert (
        budget.forwards_to_run(table, number, 64, 8) == 0
    )  # where the drafter does not pay at all
    worth[:2] = 1.0
    run_steps(4000)
    assert ran[-1] >= 2


@pytest.mark.parametrize(
    ("gain", "least", "most"),
    [*((gain, 1.0, 1.0) for gain in (2 * COST, COST, COST - 0.03 * TOKENS)), (0.0, 1e-9, 0.02)],
    ids=["pays", "is in doubt", "hardly loses", "never pays"],
)
def test_a_drafter_that_never_pays_is_hardly_ever_run_and_no_other_paused(gain, least, most):
    number = budget.new_number()
    assert run(number, gain, 4000) / 4000 > (0.99 if least == 1.0 else 0.0)
    assert least <= run(number, gain, 40_000) / 40_000 <= most


def test_a_drafter_that_pays_again_runs_on_after_the_next_trial_and_pauses_are_short_again():
    number = budget.new_number()
    first = number["next"][0]
    run(number, 0.0, 30_000)
    assert number["next"][0] > first
    run(number, 2 * COST, 12_000)
    assert number["next"][0] == first
    assert run(number, 2 * COST, 1000) == 1000


def test_a_trial_waits_until_most_rows_hold_the_drafter():
    number = budget.new_number()
    for _ in range(300):
        budget.weigh_forwards(number, 1, 1, -COST, -COST, TOKENS, ROWS, ROWS // 2)
    assert number["rows"] == 0 < number["wait"]

"""What the host of a V2 engine decides from reports that come late."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from random_models import random_model
from scripted_engine import report_of

from adaspec.cost import ASYNC
from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.cost.model import StepShape, step_s
from adaspec.policy.budget import PRICE, room_of_row
from adaspec.policy.protocol import LearnedPolicy, Setup
from adaspec.vllm.events import DraftedStep, VerifiedStep
from adaspec.vllm.session.decider import BatchDecider, warm_up

CAP = 6


def decider_of(forwards=None, in_one_pass=False, longest_s=None):
    policy = LearnedPolicy("p", random_model(1, evidence=True), CAP, 4, forwards=forwards)
    setup = Setup(H100_LLAMA_3_1_8B, CAP, 4, 128, True, True, ASYNC, in_one_pass, longest_s)
    warm_up(policy, setup)
    return BatchDecider(policy, setup)


def decided_by(host, rows=4, holds=True):
    slots, prompts = np.arange(rows, dtype=np.int32), np.full(rows, 10, np.int32)
    return host.decide(DraftedStep(slots, prompts, np.full(rows, holds)), 20 * rows)


def noted(host, survival, neural, budget, trims=True, rows=4, is_limited=False, gain=(0, 0, 0)):
    """A step that the host decided, and whose report says the same of each row."""
    decided = decided_by(host, rows)
    report = report_of([survival] * rows, [neural] * rows)
    decided.report = report._replace(gain=np.tile(np.float64(gain), (rows, 1)))
    decided.budget, decided.cut_by_engine = budget, is_limited
    host.note(decided, trims)
    return decided


def learn(host, decided):
    """Of each of four rows one drafted token was verified, and accepted."""
    known, ones = np.ones(4, np.bool_), np.ones(4, np.int32)
    host.learn(VerifiedStep(decided, known, ones, ones, ones, 2 * ones))


def test_forwards_follow_the_table_and_need_someone_who_holds_the_drafter():
    host = decider_of({1: 3, 4: 0})
    assert decided_by(host, 1).forwards == 3
    assert decided_by(host, 1, holds=False).forwards == 0
    # Where the drafter does not pay, nobody enters with it or keeps it.
    assert host.holds_drafter(1)
    assert not decider_of({1: 3, 4: 0}).holds_drafter(4)


def test_a_load_that_swings_about_a_threshold_takes_the_drafter_from_nobody():
    host, held = decider_of({1: 1, 64: 1, 66: 0}), []

    def run(*loads):
        for load in loads:
            held.append(host.holds_drafter(load))
            step = DraftedStep(*np.ones((2, load), np.int32), np.ones(load, np.bool_))
            host.decide(step, 20 * load)

    run(*range(60, 70), *[60, 70] * 100, *[8] * 200, 128, *[8] * 40)
    assert all(held)
    run(*[128] * 300)
    assert not held[-1]
    run(*[60] * 300)
    assert not held[-1]
    run(*[40] * 300)
    assert held[-1]


def test_a_budget_follows_what_rows_wanted():
    host = decider_of()
    budgets = []
    for survival in ([0.9, 0, 0, 0, 0, 0], [0.95] * 6):
        for _ in range(60):
            noted(host, survival, 0, host.budget(4))
        budgets.append(host.budget(4))
    assert 0 < budgets[0] < budgets[1]


def test_a_budget_that_is_less_than_wanted_sets_no_price():
    found = {}
    for limited in (False, True):
        host = decider_of()
        for _ in range(20):
            assert noted(host, [0.95] * 6, 0, 3, is_limited=limited).verified.sum() == 3
        found[limited] = decided_by(host)
    assert found[True].settings[PRICE] == 0.0
    assert found[False].settings[PRICE] == pytest.approx(0.95)


def test_drafts_of_one_length_are_as_long_as_pays():
    host = decider_of()
    assert host.length(False) == CAP  # nothing is known yet
    for survival, expected in (([0.9, 0.8, 0, 0, 0, 0], 2), ([0.0] * 6, 0)):
        for _ in range(3000):
            decided = noted(host, survival, 0, 16, trims=False, rows=8)
        assert decided.verified.tolist() == [min(2, expected)] * 8
        assert host.length(False) == expected


def test_the_one_length_of_all_drafts_stays_within_the_bound():
    rows, found = 64, []
    plain_s = H100_LLAMA_3_1_8B.step_s(StepShape(rows, 100 * rows))
    for times in (None, 1.4, 1.25, 1.0):
        longest_s = None if times is None else times * plain_s
        host = decider_of({1: 1}, longest_s=longest_s)
        assert host.length(False) <= CAP
        for _ in range(300):
            noted(host, [0.95] * 6, 0, 8, trims=False, rows=rows)
            host.decide(decided_by(host, rows), 100 * rows)
        found.append(host.length(False))
        if times is not None and found[-1]:
            passes = host._passes(rows, 100 * rows)
            shape = StepShape(rows, 100 * rows, rows * found[-1], passes, passes > 0)
            assert step_s(host.costs, shape) <= longest_s
    assert found == sorted(found, reverse=True)
    assert found[0] == CAP and found[-1] == 0


def test_a_bound_is_heeded_by_what_steps_take_now():
    plain_s = H100_LLAMA_3_1_8B.step_s(StepShape(4, 80))
    host = decider_of({1: 2}, longest_s=3 * plain_s)
    forwards, budget = decided_by(host).forwards, host.budget(4)
    assert forwards and budget
    host.take_slowness(3.5)
    assert decided_by(host).forwards == 0
    assert host.budget(4) < budget  # a plain step takes longer by itself
    host.take_slowness(1.0)
    assert (decided_by(host).forwards, host.budget(4)) == (forwards, budget)


def test_a_row_has_room_for_its_share_of_the_budget_several_times_over():
    host = decider_of()
    for rows, budget, room in ((1, 4, 16), (32, 32, 8), (32, 50, 12), (128, 100, 8), (1, 0, 8)):
        assert room_of_row(budget, rows, 16) == room
    assert host.length(True) == CAP


@pytest.mark.parametrize(
    ("in_one_pass", "gain", "forwards"),
    [
        (False, (0, 0, 0), 0),
        (False, (2, 2, 4), 4),
        (False, (2, 0, 2), 2),
        # The last token of a pass brings nothing: it is the pass that is weighed.
        (True, (0, 2, 0), 0),
        (True, (0, 2, 2), 4),
    ],
)
def test_a_drafter_runs_as_often_as_pays_or_is_let_go(in_one_pass, gain, forwards):
    host = decider_of({1: 2}, in_one_pass=in_one_pass)
    assert not in_one_pass or (decided_by(host).forwards, host.most_forwards) == (4, 1)
    for _ in range(1200):
        decided = noted(host, [0.9, 0, 0, 0, 0, 0], 1, 8, gain=gain)
        learn(host, decided)
    assert decided.forwards == forwards
    assert forwards <= host.most_forwards or in_one_pass
    assert host.holds_drafter(4) is (forwards > 0)


def test_a_step_of_one_pass_takes_the_time_of_one_forward():
    seconds = {}
    for in_one_pass, forwards in ((True, 4), (False, 1), (False, 4)):
        host = decider_of({1: forwards}, in_one_pass)
        decided = noted(host, [0.9, 0, 0, 0, 0, 0], 1, 8)
        assert decided.forwards == forwards
        learn(host, decided)
        seconds[in_one_pass, forwards] = float(host.state.throughput["seconds"][0])
    assert seconds[True, 4] == seconds[False, 1] < seconds[False, 4]

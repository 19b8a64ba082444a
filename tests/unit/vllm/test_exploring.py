"""Plans that chance replaces: how often, by what, and what a log says of it."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from adaspec.api import evaluate_policies
from adaspec.cost.builtin import H100_LLAMA_3_1_8B as COST
from adaspec.policy.protocol import Setup
from adaspec.policy.spec import parse_policy
from adaspec.step.cut import Cut
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.vllm.exploring import EXPLORED_NEURAL, explore
from adaspec.vllm.recorder import Recorder
from adaspec.vllm.session import Session

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "replay"))
from random_recordings import random_requests
from test_recorded_rows import Listener, output, recording
from test_session import ScriptedEngine, Spy, session_of

SETUP = Setup(COST, 12, 8, 4, shows_tokens=True, shows_confidences=True)


def step_of(holds, available):
    return SimpleNamespace(
        holds_neural=np.array(holds), available=np.array(available), start=np.array(available) + 40
    )


def taken_at(number, own, holds=(True,), available=(7,), epsilon=0.2, room=None, recorded=None):
    """What rows with their `own` plans take in a step, and what is said of it."""
    rows = len(holds)
    step = step_of(holds, available)
    found = explore(
        number,
        [f"r{row}" for row in range(rows)],
        step,
        SETUP,
        epsilon,
        None if room is None else np.array(room, np.int32),
        None,
        np.zeros(rows, np.bool_) if recorded is None else np.array(recorded),
        True,
    )
    neural, ngram = np.array(own, np.int32).T
    cut = Cut(neural.copy(), ngram.copy(), np.full(rows, 3, np.int32))
    found.carry_out(cut, step, max(found.forwards, int(neural.max())))
    return list(zip(cut.neural_len.tolist(), cut.ngram_len.tolist(), strict=True)), found, cut


@pytest.mark.parametrize("own", [(0, 0), (3, 0), (2, 4), (0, 7), (EXPLORED_NEURAL, 0)])
def test_plans_are_taken_as_often_as_the_log_says(own):
    counts, said, reached, reach = Counter(), {}, np.zeros(8), {}
    steps = 20_000
    for number in range(steps):
        (plan,), found, _ = taken_at(number, [own])
        counts[plan] += 1
        said[plan] = found.propensity[0]
        reach = np.zeros(8)
        reach[: found.reach.shape[1]] = found.reach[0]
        reached[: plan[0]] += 1
    assert set(counts) == {(0, 0), (EXPLORED_NEURAL, 0), (0, 7), own}
    assert sum(said.values()) == pytest.approx(1.0)
    for plan, count in counts.items():
        assert count / steps == pytest.approx(said[plan], abs=0.011)
    np.testing.assert_allclose(reached / steps, reach, atol=0.011)


def test_nothing_is_explored_that_a_row_cannot_take():
    seen = [set(), set(), set(), set()]
    for number in range(3000):
        plans, found, cut = taken_at(
            number,
            [(0, 2), (3, 0), (0, 0), (2, 0)],
            holds=[False, True, True, True],
            available=[4, 0, 9, 9],
            room=[12, 12, 0, 2],
            recorded=[False, False, False, False],
        )
        for row, plan in enumerate(plans):
            seen[row].add(plan)
        assert ((cut.start == 3) | (found.plan == 3)).all()
    assert seen[0] == {(0, 2), (0, 0), (0, 4)}  # holds no drafter
    assert seen[1] == {(3, 0), (0, 0), (EXPLORED_NEURAL, 0)}  # has no match
    assert seen[2] == {(0, 0)}  # may not draft
    assert seen[3] == {(2, 0), (0, 0), (0, 2)}  # has room for two tokens
    assert all(taken_at(n, [(0, 0)], recorded=[True])[0] == [(0, 0)] for n in range(500))


def exploring(policy, rows, epsilon=0.2):
    session = session_of(policy, rows)
    session.serving = dataclasses.replace(session.serving, explore=epsilon, propensity=1.0)
    return session


def served(requests, session):
    listener = Listener()
    session.observers.add(listener)
    ScriptedEngine(requests, session).run()
    assert not session.breaker.counts
    return listener


@pytest.mark.parametrize("name", ["none", "fixed:neural:2", "hybrid-splice:2:8:3:1:5"])
def test_a_policy_decides_as_before_and_learns_nothing_of_plans_that_were_not_its_own(name):
    requests = random_requests(4, 6, tokens=True)
    spy = Spy(parse_policy(name))
    heard = served(requests, exploring(spy, 6))
    explored = 0
    for event, outcome in zip(heard.verifications, spy.learned, strict=True):
        own = event.step.exploration.plan == 0
        explored += int((~own).sum())
        assert not outcome.judged[~own].any()
        assert not outcome.drafted[~own].any()
        assert (outcome.drafted[own] == event.drafted[own]).all()
        drafts = event.step.drafts.count
        assert (event.step.cut.neural_len <= drafts).all()
    assert explored > 5


def test_all_ranks_explore_alike():
    requests = random_requests(5, 4, tokens=True)
    runs = [served(requests, exploring(parse_policy("hybrid"), 4)) for _ in range(2)]
    first, second = ([event.proposed for event in run.proposals] for run in runs)
    assert first == second


def test_what_was_explored_is_logged_and_can_be_judged(tmp_path):
    requests = random_requests(6, 40, tokens=True)
    session = exploring(parse_policy("hybrid:2:8:3"), 40)
    lost = Counter()
    logged = output(tmp_path / "log", lost, Manifest(kind="logged", synthetic=True))
    recorder = Recorder(None, logged, session.serving, lost.update)
    session.observers.add(recorder)
    heard = served(requests, session)
    recorder.left([f"r{at}" for at in range(40)])
    recorder.close()
    steps = list(TraceReader(tmp_path / "log").steps())
    assert len(steps) > 50
    chances = {step.propensity for step in steps}
    assert min(chances) < 0.1
    assert max(chances) > 0.8
    for step in steps:
        assert len(step.neural_propensity) >= step.neural_len
    told = sum(int(event.known.sum()) for event in heard.verifications)
    assert len(steps) == told
    report = evaluate_policies(tmp_path / "log", ["fixed:ngram:8:2"], resamples=5)
    judged = next(row for row in report.rows if row["policy"] == "fixed:ngram:8:2")
    assert judged["revealed_share"] == 1.0
    ran = next(row for row in report.rows if row["policy"] == "logged")
    assert 0.0 < ran["exploration"]["explored_share"] < 0.3


def test_nothing_is_explored_where_nothing_is_proposed():
    requests = random_requests(6, 3, tokens=True)
    for session in (exploring(parse_policy("hybrid"), 3), recording(parse_policy("none"), 3, 1.0)):
        if session.serving.explore:
            session.mode = "shadow"
        assert isinstance(session, Session)
        assert all(event.exploration is None for event in served(requests, session).proposals)

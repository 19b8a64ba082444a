"""A served policy learns what steps cost from the times that the scheduler tells."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest

from adaspec.cost.engine import ASYNC
from adaspec.cost.model import CostModel, StepShape
from adaspec.cost.refit import PERIOD, CostRefit
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Setup
from adaspec.policy.spec import parse_policy
from adaspec.vllm.clocked import ClockedSteps
from adaspec.vllm.events import Fault, Observer, Serving
from adaspec.vllm.following import follow
from adaspec.vllm.guarding import Guarded
from adaspec.vllm.kept_learning import KeptLearning, learned_file
from adaspec.vllm.session import Session
from adaspec.vllm.v2.host import Host

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "policy"))
sys.path.append(str(Path(__file__).parents[1] / "replay"))
sys.path.append(str(Path(__file__).parent / "v2"))
from random_models import random_model
from random_recordings import random_requests
from test_session import CAP, COST, NEURAL_CAP, ScriptedEngine
from v2_fakes import no_tables

TRUE = dataclasses.replace(COST, per_token_s=4 * COST.per_token_s)


def learned_policy() -> LearnedPolicy:
    return LearnedPolicy("p", random_model(3, no_tables(), evidence=True), {}, CAP, NEURAL_CAP)


def serving_of(rows: int, learns: bool = True, **changes: object) -> Serving:
    setup = Setup(COST, CAP, NEURAL_CAP, rows, True, True, learns=learns)
    return Serving("p", "why", "serve", setup, "t", "d", vocabulary=1000, **changes)  # type: ignore[arg-type]


class Ranks:
    """Sessions of several ranks, told by a scheduler what their steps took."""

    def __init__(self, count: int, rows: int, true: CostModel = TRUE, **changes: object) -> None:
        self.requests = random_requests(2, rows, tokens=True, output_tokens=(900, 900))
        self.sessions = [
            Session(learned_policy(), serving_of(rows, **changes), False) for _ in range(count)
        ]
        self.engines = [ScriptedEngine(self.requests, session) for session in self.sessions]
        self.true, self.number, self.took = true, 0, ()
        self.shapes: dict[int, list[StepShape]] = {}
        for session in self.sessions:
            if session.clocked is not None:
                session.clocked.ran = self._spying(session.clocked)  # type: ignore[method-assign]

    def _spying(self, clocked: ClockedSteps) -> object:
        ran = clocked.ran

        def spy(shape: StepShape) -> None:
            self.shapes.setdefault(self.number, []).append(shape)
            ran(shape)

        return spy

    def step(self) -> None:
        self.number += 1
        guarded = Guarded("plan", 0, np.nan, np.nan, self.number, self.took)
        for session, engine in zip(self.sessions, self.engines, strict=True):
            follow(session, None, guarded)
            engine.step()
        ran = self.shapes.get(self.number)
        self.took = ((self.number, self.true.step_s(ran[0])),) if ran else ()


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    made = Ranks(2, 3)
    while made.engines[0].running and made.number < 12 * PERIOD:
        made.step()
    return made


def test_a_session_learns_what_steps_cost(ranks: Ranks) -> None:
    for session in ranks.sessions:
        assert not session.breaker.counts
        costs = session.policy.planner.costs  # type: ignore[attr-defined]
        assert costs.per_token_s / costs.fixed_s == pytest.approx(
            TRUE.per_token_s / TRUE.fixed_s, rel=0.1
        )


def test_ranks_learn_alike(ranks: Ranks) -> None:
    one, other = (session.policy.planner.costs for session in ranks.sessions)  # type: ignore[attr-defined]
    assert all(np.array_equal(*each) for each in zip(one, other, strict=True))
    assert all(len(set(shapes)) == 1 for shapes in ranks.shapes.values())


def test_a_shape_is_what_the_step_ran(ranks: Ranks) -> None:
    assert len(ranks.shapes) > 10 * PERIOD
    shapes = [each[0] for each in ranks.shapes.values()]
    assert {shape.rows for shape in shapes} == {3}
    assert any(shape.copied for shape in shapes)
    contexts = [shape.context_tokens for shape in shapes]
    assert contexts == sorted(contexts)


@pytest.mark.parametrize("learns", [False, True])
def test_who_may_not_or_cannot_learn_does_not(learns: bool) -> None:
    policy = learned_policy() if not learns else parse_policy("hybrid:2:8:3")
    session = Session(policy, serving_of(2, learns), False)
    assert session.clocked is None
    follow(session, None, Guarded("plan", 0, 1.0, 1.0, 1, ((0, 1.0),)))


def test_learning_that_fails_is_counted_and_given_up(ranks: Ranks) -> None:
    session = Session(learned_policy(), serving_of(1), False)
    assert session.clocked is not None
    session.clocked.follow = None  # type: ignore[assignment, method-assign]
    faults: list[str] = []

    class Listener(Observer):
        def fault(self, fault: Fault) -> None:
            faults.append(fault.stage)

    session.observers.add(Listener())
    for _ in range(3):
        follow(session, None, Guarded("plan", 0, 1.0, 1.0))
    assert faults == ["refit"]
    assert not session.breaker.off


def test_steps_that_nobody_tells_of_are_forgotten() -> None:
    refit = CostRefit(COST.constants())
    clocked = ClockedSteps(None, refit, list)
    for number in range(500):
        clocked.follow(Guarded("plan", 0, 1.0, 1.0, number, ((number + 1000, 1.0),)))
        clocked.ran(StepShape(1, 1))
    assert len(clocked._shapes) <= 32


def test_costs_far_off_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    refit = CostRefit(COST.constants())
    clocked = ClockedSteps(None, refit, list)
    with caplog.at_level(logging.INFO, "vllm.adaspec"):
        refit.factors = np.array([1.0, 1.5, 0.7])
        clocked.log_costs()
        assert not caplog.records
        refit.factors = np.array([2.0, 6.0, 0.5])
        clocked.log_costs()
        clocked.log_costs()
    assert [each.getMessage() for each in caplog.records] == [
        "adaspec: against a whole step, a verified token takes 3.0 times what the cost model says "
        "here, and a forward of the drafter 0.2 times; plans follow what was measured"
    ]


def test_a_source_of_which_little_comes_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    policy = learned_policy()
    policy.start(serving_of(1).setup)
    assert policy.refit is not None
    clocked = ClockedSteps(None, policy.refit, policy.came)
    record = policy.planner.memory.record
    record["expected"], record["accepted"] = [100.0, 300.0, 300.0], [0.0, 150.0, 290.0]
    clocked.log_drift()
    clocked.log_drift()
    assert [each.getMessage() for each in caplog.records] == [
        "adaspec: of the tokens that the policy lately expected of neural drafts, 50% were "
        "accepted: traffic or drafter are not as in training, train it again; plans expect that "
        "much less meanwhile"
    ]


def test_a_host_of_v2_decides_by_what_it_learned() -> None:
    setup = Setup(COST, CAP, 4, 4, True, True, engine=ASYNC, learns=True)
    host, rng = Host(learned_policy(), setup), np.random.default_rng(0)
    before = host._planner.costs.per_token_s
    for _ in range(10 * PERIOD):
        shape = StepShape(4, 2000, int(rng.integers(0, 20)), 0, 0, int(rng.integers(0, 4)), True)
        host.timed(shape, TRUE.under(ASYNC).step_s(shape))
    assert host._planner.costs.per_token_s > 2 * before


class Told(Observer):
    """Notes what was learned."""

    def __init__(self) -> None:
        self.factors: list[list[float]] = []

    def learned(self, factors: list[float], came: list[float]) -> None:
        self.factors.append(factors)


def test_what_was_learned_outlives_the_server(tmp_path: Path) -> None:
    path = learned_file(str(tmp_path / "new"), None)
    assert path is not None
    ranks, told = Ranks(1, 3, learned_file=path), Told()
    session = ranks.sessions[0]
    kept = KeptLearning(path, session.policy, session.serving)  # type: ignore[arg-type]
    session.observers.add(told, kept)
    while ranks.number < 6 * PERIOD:
        ranks.step()
    assert told.factors[-1] == session.clocked.refit.factors.tolist()  # type: ignore[union-attr]
    session.observers.close()
    again = Session(learned_policy(), session.serving, False)
    for name in ("expected", "accepted", "drafts", "factor"):
        records = [each.policy.planner.memory.record[name] for each in (again, session)]  # type: ignore[attr-defined]
        assert records[0].tolist() == records[1].tolist()
    assert again.clocked.refit.state() == session.clocked.refit.state()  # type: ignore[union-attr]
    again.clocked.refit.note(StepShape(3, 1000), 0.01)  # type: ignore[union-attr]
    assert again.clocked.refit.factors == pytest.approx(session.clocked.refit.factors)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "broken", ["cut", "empty", "no JSON", "another policy", "negative", "list"]
)
def test_a_file_that_does_not_fit_is_left_out(
    broken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learned.json"
    ranks = Ranks(1, 2, learned_file=path)
    session = ranks.sessions[0]
    KeptLearning(path, session.policy, session.serving).close()  # type: ignore[arg-type]
    content = json.loads(path.read_text())
    if broken == "another policy":
        content["of"]["version"] = "x"
    if broken == "negative":
        content["record"][0][0] = -1.0
    texts = {"cut": path.read_text()[:-9], "empty": "", "no JSON": "{NaN}", "list": "[]"}
    path.write_text(texts.get(broken, json.dumps(content)))
    again = Session(learned_policy(), session.serving, False)
    assert "what was learned is left out" in caplog.text
    assert again.clocked.refit.state() == {}  # type: ignore[union-attr]

"""The session drives a policy as the replay does; a scripted engine stands in for vLLM."""

from __future__ import annotations

import sys
import time
import types
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from adaspec.vllm.batch import EngineBatch

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.model import StepShape
from adaspec.policy.base import BasePolicy
from adaspec.policy.protocol import Proposal, Setup
from adaspec.policy.spec import parse_policy
from adaspec.replay.loop import run_policy
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.breaker import MAX_IN_A_ROW
from adaspec.vllm.events import Serving, source_of
from adaspec.vllm.following import follow
from adaspec.vllm.metrics import FIGURES, Counters, MetricsObserver
from adaspec.vllm.mode_file import ATTRIBUTE, Told
from adaspec.vllm.request_limits import is_chosen
from adaspec.vllm.session import Session

sys.path.insert(0, str(Path(__file__).parents[1] / "replay"))
from random_recordings import NEURAL_CAP, random_requests, recording_of

COST = H100_LLAMA_3_1_8B.without_deciding()

CAP = 12


class Heard:
    """An observer that keeps what a session tells it, by the kind of event."""

    def __init__(self, session):
        self.told = defaultdict(list)
        session.observers.add(self)

    def __getitem__(self, event):
        return self.told[event]

    def __getattr__(self, event):
        if event.startswith("_"):
            raise AttributeError(event)
        return lambda *facts: self.told[event].append(facts if len(facts) > 1 else facts[0])


class Spy(BasePolicy):
    """Writes down what a policy is shown and what it answers."""

    name = "spy"

    def __init__(self, policy):
        self.policy, self.log, self.learned = policy, [], []
        self.stops_early = policy.stops_early

    def start(self, setup):
        self.policy.start(setup)

    def holds_drafter(self, load):
        answer = self.policy.holds_drafter(load)
        self.log.append(("holds_drafter", load, answer))
        return answer

    def forwards(self, batch):
        found, drafts = batch.matches, batch.drafts
        answer = self.policy.forwards(batch)
        shown = (batch.position, batch.holds_neural, found.length, found.start, found.available)
        shown = [each.tolist() for each in (*shown, batch.is_new, drafts.tokens)]
        self.log.append(("forwards", drafts.count, shown, answer))
        return answer

    def decide(self, batch):
        answer, drafts = self.policy.decide(batch), batch.drafts
        behind = drafts.behind(answer.neural_len)
        self.log.append(("decide", drafts.count, answer.neural_len.tolist(), behind.start.tolist()))
        return answer

    def learn(self, report):
        self.learned.append(report)
        self.policy.learn(report)


class Dice(BasePolicy):
    """Every answer by seeded chance."""

    name = "dice"
    stops_early = True

    def start(self, setup):
        self.draw = np.random.default_rng(3)
        self.cap = setup.neural_cap

    def holds_drafter(self, load):
        return bool(self.draw.random() < 0.9)

    def forwards(self, batch):
        if batch.drafts.count:
            return self.cap if self.draw.random() < 0.7 else batch.drafts.count
        return int(self.draw.integers(0, self.cap + 1)) if batch.holds_neural.any() else 0

    def decide(self, batch):
        most = np.where(batch.holds_neural, batch.drafts.count, 0)
        neural = np.minimum(self.draw.integers(0, CAP, len(batch)), most).astype(np.int32)
        return Proposal(neural, self.draw.integers(0, CAP, len(batch)).astype(np.int32))


class ScriptedEngine:
    """Verifies drafts against recorded texts; drafts what the recording drafted."""

    def __init__(self, requests, session, shortest=None):
        """`shortest`: a draft may not reach that output token of any request."""
        self.requests, self.session, self.shortest = requests, session, shortest
        self.running = list(range(len(requests)))
        self.position = dict.fromkeys(self.running, 0)
        self.states = {f"r{at}": object() for at in self.running}
        self.drafts = {at: [] for at in self.running}

    def run(self, most_steps=500):
        while self.running and most_steps:
            most_steps -= 1
            self.step()
        return self

    def step(self):
        sampled, verified = {}, {}
        for at in self.running:
            output, here = self.requests[at].output, self.position[at]
            taken = 0
            for token in self.drafts[at]:
                if here + taken >= len(output) or output[here + taken] != token:
                    break
                taken += 1
            sampled[at] = output[here : here + taken + 1]
            if self.drafts[at]:
                verified[f"r{at}"] = list(self.drafts[at])
        known = {at: len(self.requests[at].prompt) + self.position[at] for at in self.running}
        for at in self.running:
            self.position[at] += len(sampled[at])
        self.running = [
            at for at in self.running if self.position[at] < len(self.requests[at].output)
        ]
        self.states = {f"r{at}": self.states[f"r{at}"] for at in self.running}
        if self.running:
            self.draft(sampled, verified, known)

    def draft(self, sampled, verified, known):
        texts = [self.requests[at].prompt + self.requests[at].output for at in self.running]
        room = np.full((len(texts), max(map(len, texts))), -7, np.int32)
        for row, text in enumerate(texts):
            room[row, : len(text)] = text
        rows = EngineBatch(
            requests=[f"r{at}" for at in self.running],
            states=[self.states[f"r{at}"] for at in self.running],
            tokens=room,
            prompt_tokens=np.array([len(self.requests[at].prompt) for at in self.running]),
            known=np.array([known[at] for at in self.running]),
            sampled=[sampled[at] for at in self.running],
            verified=verified,
            room=None
            if self.shortest is None
            else np.array([self.shortest - 1 - self.position[at] for at in self.running]),
        )
        self.session.begin(rows, self.states)
        most, ran = self.session.forwards(), 0
        for count in range(most):
            ran += 1
            said = [self.requests[at].drafted[self.position[at]][count] for at in self.running]
            sure = np.full((len(said), 3), -0.5, np.float32)
            sure[:, CONFIDENCES.index("logprob")] = [
                np.log(self.requests[at].probability[self.position[at]][count])
                for at in self.running
            ]
            if not self.session.take(np.array(said, np.int32), sure):
                break
        self.session.drafter_ran(ran, int(ran == 0 and self.session.keeps_alive))
        for at, tokens in zip(self.running, self.session.finish(), strict=True):
            self.drafts[at] = tokens


def session_of(policy, rows, mode="serve", stop_if_slow=False, vocabulary=1000, **more):
    setup = Setup(COST, CAP, NEURAL_CAP, rows, shows_tokens=True, shows_confidences=True)
    serving = Serving("p", "why", mode, setup, "t", "d", vocabulary=vocabulary, **more)
    return Session(policy, serving, stop_if_slow)


POLICIES = [
    "none",
    "fixed:ngram:8:1",
    "fixed:neural:3",
    "hybrid-splice:2:8:3:1:5",
    "hybrid-until:2:8:4:40:1:5",
    "hybrid-agree",
]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", [*POLICIES, "dice"])
def test_a_session_shows_and_asks_a_policy_what_the_replay_does(seed, name):
    requests = random_requests(seed, 5, tokens=True)
    make = Dice if name == "dice" else lambda: parse_policy(name)
    replayed, served = Spy(make()), Spy(make())
    recording = recording_of(requests, seed=seed)
    run_policy(recording, replayed, np.arange(5, dtype=np.int32), 5, COST, CAP)
    session = session_of(served, 5)
    ScriptedEngine(requests, session).run()
    assert not session.breaker.counts
    assert replayed.log
    assert served.log[: len(replayed.log)] == replayed.log  # which ends as the first request does
    for live, told in zip(served.learned, replayed.learned, strict=False):
        going_on = live.emitted_tokens > 0
        for column in ("drafted", "neural_drafted", "accepted", "emitted_tokens"):
            assert (getattr(live, column) == getattr(told, column))[going_on].all()


@pytest.mark.parametrize("mode", ["serve", "record"])
def test_the_last_requests_are_forgotten_in_a_step_in_which_nothing_runs(mode):
    def state(output, ends=()):
        params = types.SimpleNamespace(max_tokens=3, all_stop_token_ids=ends)
        return types.SimpleNamespace(output_token_ids=output, sampling_params=params)

    session = session_of(parse_policy("none"), 4, mode=mode)
    heard = Heard(session)
    states = {
        "r": state([1]),
        "adaspec:w:whole:": state([1, 2, 3]),
        "adaspec:w:ended:": state([1, 9], {9}),
        "adaspec:w:cut:": state([1, 2]),
    }
    batch = EngineBatch(
        requests=[*states],
        states=[*states.values()],
        tokens=np.ones((4, 8), np.int32),
        prompt_tokens=np.full(4, 3),
        known=np.full(4, 3),
        sampled=[[1]] * 4,
        verified={},
        room=None,
    )
    session.begin(batch, states)
    session.forwards()
    session.finish()
    session.idle({"r": states["r"]})
    assert not heard["left"]
    session.idle({})
    session.idle({})
    assert heard["left"] == [[*states][: 3 if mode == "record" else 4]]
    assert not session.breaker.counts


def test_a_draft_that_the_scheduler_dropped_teaches_nothing():
    spy = Spy(parse_policy("fixed:neural:3"))
    requests = random_requests(1, 3, tokens=True, output_tokens=(20, 24))
    session = session_of(spy, 3)
    heard, engine = Heard(session), ScriptedEngine(requests, session)
    while engine.running:
        engine.step()
        engine.drafts = dict.fromkeys(engine.drafts, ())
    assert {"r0", "r1", "r2"} == {name for names in heard["dropped"] for name in names}
    assert not any(event.drafted.any() for event in heard["verified"])
    assert spy.learned
    assert not any(outcome.judged.any() for outcome in spy.learned)


def test_only_steps_that_do_nothing_but_verify_are_timed():
    session = session_of(parse_policy("fixed:neural:3"), 3)
    came = Heard(session)["verified"]
    engine = ScriptedEngine(random_requests(1, 3, tokens=True, output_tokens=(22, 24)), session)
    late = engine.states["r2"]
    engine.running = [0, 1]
    for step in range(5):
        if step == 3:  # its prompt is read in this step
            engine.running.append(2)
            engine.states["r2"] = late
        engine.step()
    timed = [told.took_s for told in came]
    assert [took is not None for took in timed] == [True, True, False, True]
    assert timed[0] > 0
    time.sleep(0.05)
    engine.step()
    assert came[-1].took_s > 0.05


@pytest.mark.parametrize("mode", ["serve", "shadow"])
def test_only_what_the_target_judged_is_said_to_be_judged(mode):
    requests = random_requests(3, 4, tokens=True, output_tokens=(5, 24))
    spy = Spy(parse_policy("fixed:neural:3"))
    session = session_of(spy, 4, mode)
    engine = ScriptedEngine(requests, session).run()
    assert not engine.running
    assert any((outcome.emitted_tokens == 0).any() for outcome in spy.learned)
    for outcome in spy.learned:
        known = outcome.emitted_tokens > 0
        assert known.any()
        np.testing.assert_array_equal(outcome.judged, known & (mode == "serve"))
        # Who has ended was in none of the step's rows.
        rows, drafted = int(known.sum()), int(outcome.drafted.sum())
        least, most = (StepShape(rows, c * rows, drafted, 3, True) for c in (0, 100))
        assert COST.step_s(least) <= outcome.step_s <= COST.step_s(most)


@pytest.mark.parametrize(
    "name", ["hybrid-splice:2:8:3:1:5", "hybrid-agree", "fixed:neural:3", "budget:4", "ema:2,4:0.5"]
)
def test_where_the_drafter_cannot_run_nothing_neural_is_proposed_and_nothing_fails(name):
    """A draft model may have a shorter context than the server."""
    requests = random_requests(6, 4, tokens=True, output_tokens=(30, 40))
    session = session_of(parse_policy(name), 4)
    asked, proposed = session.forwards, Heard(session)["proposed"]
    session.forwards = lambda: asked(possible=session.step % 3 == 0)
    # One request may not hold it at all.
    engine = asking(ScriptedEngine(requests, session), adaspec_source="ngram").run()
    assert not engine.running
    assert not session.breaker.counts
    assert any(step.cut.neural_len.any() for step in proposed)
    # Step 1 cannot run it.
    assert not proposed[0].cut.neural_len.any()


class Drowsy(Dice):
    """Takes longer than `LIMIT_S` in every decision."""

    LIMIT_S = 0.002

    def decide(self, batch):
        time.sleep(2 * self.LIMIT_S)
        return super().decide(batch)


@pytest.mark.parametrize("alone", [True, False])
def test_slow_decisions_switch_off_a_policy_only_where_no_other_rank_must_decide_alike(
    alone, monkeypatch
):
    monkeypatch.setattr("adaspec.vllm.session.SLOW_S", Drowsy.LIMIT_S)
    requests = random_requests(4, 3, tokens=True, output_tokens=(40, 44))
    session = session_of(Drowsy(), 3, stop_if_slow=alone)
    heard = Heard(session)["fault"]
    ScriptedEngine(requests, session).run()
    faults = [(fault.stage, fault.switched_off) for fault in heard]
    assert {stage for stage, _ in faults} == {"time"}
    assert session.breaker.off == alone
    assert faults[-1] == ("time", alone)
    if alone:
        assert len(faults) == MAX_IN_A_ROW
    else:
        assert len(faults) == session.breaker.noted["time"] > MAX_IN_A_ROW
        assert not session.breaker.counts


def test_tokens_that_the_vocabulary_lacks_are_never_proposed():
    requests = random_requests(2, 3, tokens=True)
    session = session_of(parse_policy("hybrid-splice:1:8:3:1:5"), 3, vocabulary=1)
    engine = ScriptedEngine(requests, session)
    while engine.running:
        engine.step()
        assert all(token == 0 for tokens in engine.drafts.values() for token in tokens)


def test_a_request_that_takes_anothers_id_is_a_new_one():
    requests = random_requests(5, 2, tokens=True, output_tokens=(20, 24))
    session = session_of(parse_policy("none"), 2)
    entered = Heard(session)["entered"]
    ScriptedEngine(requests[:1], session).step()
    ScriptedEngine(requests[1:], session).step()
    assert [(name, prompt.tolist()) for name, prompt, *_ in entered] == [
        ("r0", requests[0].prompt),
        ("r0", requests[1].prompt),
    ]


def test_compiling_in_a_warm_up_is_no_slow_decision(monkeypatch):
    from adaspec.vllm.warm_up import warm_up

    monkeypatch.setattr("adaspec.vllm.session.SLOW_S", Drowsy.LIMIT_S)
    session = session_of(Drowsy(), 4, stop_if_slow=True)
    warm_up(session)
    assert not session.breaker.counts and not session.breaker.noted


class LettingGo(Dice):
    """Drafts whenever it can, and takes the drafter from everybody in its fifth step."""

    stops_early = False

    def __init__(self):
        self.planned = []

    def holds_drafter(self, load):
        return len(self.planned) < 4

    def forwards(self, batch):
        self.planned.append(batch.holds_neural.tolist())
        return 2 if batch.holds_neural.any() else 0


def test_a_drafter_that_is_let_go_runs_no_more():
    policy = LettingGo()
    session = session_of(policy, 2)
    engine = ScriptedEngine(random_requests(7, 2, tokens=True, output_tokens=(40, 44)), session)
    for step in range(1, 9):
        engine.step()
        assert session.keeps_alive == (step < 5)
    assert policy.planned == [[True, True]] * 4 + [[False, False]] * 4
    assert not session.breaker.counts


def test_recorded_requests_hold_a_drafter_that_others_let_go():
    policy = LettingGo()
    session = session_of(policy, 40, record_fraction=0.5)
    engine = ScriptedEngine(random_requests(7, 20, tokens=True, output_tokens=(40, 44)), session)
    recorded = [is_chosen(f"r{at}", 0.5) for at in range(20)]
    assert 0 < sum(recorded) < 20
    for _ in range(8):
        engine.step()
    assert policy.planned[3] == [True] * 20
    assert policy.planned[4:] == [recorded] * 4
    assert session.keeps_alive
    assert not session.breaker.counts


def test_a_step_that_cannot_be_read_proposes_nothing():
    requests = random_requests(5, 2, tokens=True, output_tokens=(20, 24))
    session = session_of(parse_policy("hybrid-splice:1:8:3:1:5"), 2)
    ScriptedEngine(requests, session).step()
    session.skip(2, AttributeError("injected"))
    assert session.forwards() == 0
    assert session.keeps_alive
    assert session.finish() == [[], []]
    assert session.breaker.counts["batch"] == 1


def test_a_policy_that_is_switched_off_lets_go_of_requests_and_is_complained_of_no_more():
    class Broken(Dice):
        def forwards(self, batch):
            raise RuntimeError("injected")

    requests = random_requests(8, 5, tokens=True, output_tokens=(20, 44))
    session = session_of(Broken(), 5)
    heard, engine = Heard(session), ScriptedEngine(requests, session)
    while not session.breaker.off:
        engine.step()
    assert len(session._running.requests) == 5
    engine.run()
    nobody = np.zeros(0, np.int32)
    session.begin(EngineBatch([], [], np.zeros((0, 1), np.int32), nobody, nobody, [], {}), {})
    assert session._running.requests == {}
    left = [name for names in heard["left"] for name in names]
    assert sorted(left) == [f"r{at}" for at in range(5)]
    assert session.finish() == []
    assert [fault.stage for fault in heard["fault"]] == ["plan"] * MAX_IN_A_ROW


@pytest.mark.parametrize("name", [*POLICIES, "dice"])
def test_no_draft_goes_beyond_the_room_that_a_request_leaves_it(name):
    shortest = 12
    session = session_of(Dice() if name == "dice" else parse_policy(name), 5)
    counters = Counters(None, {})
    session.observers.add(MetricsObserver(counters))
    proposed = Heard(session)["proposed"]
    requests = random_requests(9, 5, tokens=True, output_tokens=(30, 40))
    engine = ScriptedEngine(requests, session, shortest)
    reached = 0
    for _ in range(6):
        engine.step()
        for at, tokens in engine.drafts.items():
            room = shortest - 1 - engine.position[at]
            assert len(tokens) <= max(0, room)
            reached += len(tokens) == room > 0
    assert not session.breaker.counts
    if name != "none":
        assert reached
    for step in proposed:
        left = shortest - 1 - step.step.batch.position
        np.testing.assert_array_equal(step.room, left)
        assert (step.cut.neural_len + step.cut.ngram_len <= np.maximum(left, 0)).all()
    barred = sum(int((step.room <= 0).sum()) for step in proposed)
    assert counters["decisions/none/output_limit"] == barred
    assert sum(counters[name] for name in FIGURES if name.startswith("decisions/")) == 5 * 6


class Fixed(LettingGo):
    """Always drafts two neural tokens and copies behind them."""

    def holds_drafter(self, load):
        return True

    def decide(self, batch):
        most = np.where(batch.holds_neural, batch.drafts.count, 0).astype(np.int32)
        return Proposal(most, np.full(len(batch), 4, np.int32))


def asking(engine, **extra_args):
    """Have one request of a scripted engine come with these extra arguments."""
    engine.states["r0"] = types.SimpleNamespace(
        sampling_params=types.SimpleNamespace(extra_args=extra_args)
    )
    return engine


def repetitive(count, tokens=60):
    """Requests whose text repeats, and whose drafter is always right."""
    requests = random_requests(7, count, tokens=True, output_tokens=(tokens, tokens + 1))
    for request in requests:
        text = [at % 5 for at in range(400)]
        request.prompt[:], request.output[:] = text[:20], text[20 : 20 + tokens]
        for at in range(len(request.drafted)):
            request.drafted[at] = text[20 + at : 20 + at + NEURAL_CAP]
    return requests


def test_in_mode_off_nothing_is_drafted_and_later_requests_hold_the_drafter_again():
    policy = Fixed()
    counters = Counters(None, {})
    session = session_of(policy, 8)
    session.observers.add(MetricsObserver(counters))
    engine = ScriptedEngine(repetitive(3, tokens=200), session)
    engine.running = [0, 1]
    for _ in range(3):
        engine.step()
    assert all(engine.drafts[at] for at in (0, 1))
    drafted = counters["drafted_tokens/splice"]
    follow(
        session, types.SimpleNamespace(**{ATTRIBUTE: Told("off", "a line of the file is wrong")})
    )
    assert counters["mode/off"] == counters["faults/mode_file"] == 1
    for _ in range(3):
        engine.step()
        assert engine.drafts == {0: [], 1: [], 2: []}
        assert not session.keeps_alive
    # What was proposed before is still learned from.
    assert drafted < counters["drafted_tokens/splice"]
    assert len(policy.planned) == 3
    assert len(session._undrafted) == 2
    follow(session, types.SimpleNamespace(**{ATTRIBUTE: Told("serve", "")}))
    engine.running = [0, 1, 2]
    engine.states = {f"r{at}": engine.states.get(f"r{at}", object()) for at in range(3)}
    engine.step()
    assert policy.planned[-1] == [False, False, True]
    engine.step()
    assert [len(engine.drafts[at]) for at in range(3)] == [4, 4, 6]
    assert counters["mode/off"] == 0
    assert counters["mode/serve"] == 1
    assert not session.breaker.counts


@pytest.mark.parametrize(
    ("extra_args", "length", "source", "holds"),
    [
        ({}, 6, "splice", True),
        ({"adaspec": "off"}, 0, "none", False),
        ({"adaspec_cap": 3}, 3, "splice", True),
        ({"adaspec_cap": 1}, 1, "neural", True),
        ({"adaspec_source": "ngram"}, 4, "ngram", False),
        ({"adaspec_source": "neural"}, 2, "neural", True),
        ({"adaspec": "wrong"}, 6, "splice", True),
    ],
)
def test_a_request_limits_its_drafts_and_nobody_elses(extra_args, length, source, holds):
    policy, counters = Fixed(), Counters(None, {})
    session = session_of(policy, 2)
    session.observers.add(MetricsObserver(counters))
    proposed = Heard(session)["proposed"]
    engine = asking(ScriptedEngine(repetitive(2), session), **extra_args)
    for _ in range(3):
        engine.step()
    assert [len(engine.drafts[at]) for at in (0, 1)] == [length, 6]
    cut = proposed[-1].cut
    assert source_of(int(cut.neural_len[0]), int(cut.ngram_len[0])) == source
    assert policy.planned[-1] == [holds, True]
    assert counters["decisions/none/limited"] == (3 if length == 0 else 0)
    assert counters["faults/request"] == ("wrong" in extra_args.values())
    assert not session.breaker.counts


def test_long_contexts_are_not_drafted_for_and_all_drafts_together_are_kept_to_a_budget():
    policy = Fixed()
    session = session_of(policy, 2, max_context_tokens=30)
    engine = ScriptedEngine(repetitive(1), session)
    while engine.running:
        engine.step()
        known = engine.position[0] + 20
        assert not engine.running or bool(engine.drafts[0]) == (known <= 30)
    assert policy.planned[-1] == [False]
    assert not session.keeps_alive
    session = session_of(Fixed(), 3, max_drafted_tokens=7)
    engine = asking(ScriptedEngine(repetitive(3), session), adaspec_cap=1)
    for _ in range(3):
        engine.step()
        assert [len(engine.drafts[at]) for at in range(3)] == [1, 3, 3]
    assert not session.breaker.counts

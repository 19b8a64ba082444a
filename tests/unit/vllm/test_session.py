"""The session drives an engine as the replay does; a scripted engine stands in for vLLM."""

import types
from collections import Counter
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from random_recordings import NEURAL_CAP, ONE_OF_EACH, random_requests, recording_of
from scripted_engine import (
    CAP,
    COST,
    ScriptedEngine,
    engine_of,
    params_of,
    policy_of,
    repetitive,
    report_of,
)
from test_trace_output import output_in

from adaspec.cost.model import StepShape
from adaspec.policy.guard import BASE, HOLD, KEEP, PLAN, PROBE
from adaspec.replay.learned import LearnedReplay, decide_step
from adaspec.replay.loop import finish_step, goes_on
from adaspec.replay.rules import RuleReplay
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES, Manifest
from adaspec.vllm.events import (
    MAX_IN_A_ROW,
    STEPS_PER_FAULT,
    CircuitBreaker,
    DraftedStep,
    Observers,
    VerifiedStep,
)
from adaspec.vllm.metrics import Counters
from adaspec.vllm.recorder import Recorder, engine_id
from adaspec.vllm.scheduler import MODE_ATTRIBUTE, Told, follow
from adaspec.vllm.session.requests import RunningRequest, is_chosen
from adaspec.vllm.session.session import Session

SPLICES = "hybrid-splice:2:4:2:1:4"


def lengths(neural, copied):
    """How many neural tokens every row drafts, and how many are copied behind them."""
    return [neural.tolist(), copied.tolist()]


def neural_of(event):
    """How many tokens of the drafts that are verified the drafter drafted."""
    return np.minimum(event.drafts.neural, event.verified)


def decided(event):
    neural = neural_of(event)
    return lengths(neural, event.verified - neural)


def replayed_rule(recording, rule):
    """What a rule decides step by step, until the first request ends."""
    drafts, _ = RuleReplay(recording, CAP, False, recording.members(None)).drafted(rule)
    columns, decisions = recording.columns, []
    at, end = columns.offset[:-1] + 1, columns.offset[1:]
    while (at < end).all():
        step = drafts[at]
        decisions.append(lengths(step["neural"], step["drafted"] - step["neural"]))
        at = at + step["emitted"]
    return decisions


def replayed_policy(recording, policy, longest_s):
    """What a learned policy decides step by step, until the first request ends."""
    costs = COST.constants()
    order, decisions = np.arange(5, dtype=np.int32), []
    replay = LearnedReplay(recording, policy)
    loop, *decides = replay.begin(order, 5, COST, CAP, longest_s=longest_s)
    while goes_on(loop):
        rows, shape, accepted = decide_step(loop, *decides)
        decisions.append(lengths(rows["neural"], rows["copied"]))
        finish_step(loop, costs, shape, accepted)
    return decisions


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", [*ONE_OF_EACH, "learned", "bounded"])
def test_a_session_decides_what_the_replay_does(seed, name):
    requests = random_requests(seed, 5, tokens=True)
    recording = recording_of(requests, seed=seed)
    times = (1.05, 1.1, 1.135, 1.142)[seed]  # without a forward, or with one and few tokens
    longest_s = times * COST.step_s(StepShape(5, 100)) if name == "bounded" else None
    policy = policy_of("learned" if name == "bounded" else name, seed)
    if name in ONE_OF_EACH:
        replayed = replayed_rule(recording, policy.rule)
    else:
        replayed = replayed_policy(recording, policy, longest_s)
    engine = engine_of(policy, requests, recording=recording, longest_s=longest_s).run()
    assert any(event.bounded for event in engine.heard["proposed"]) == (name == "bounded")
    assert not engine.session.breaker.counts
    assert replayed
    # The replay ends as the first request does.
    assert [decided(event) for event in engine.heard["proposed"]][: len(replayed)] == replayed


@pytest.mark.parametrize("mode", ["serve", "record"])
def test_the_last_requests_are_forgotten_in_a_step_in_which_nothing_runs(mode):
    names = ["r", "adaspec:w:whole:", "adaspec:w:ended:", "adaspec:w:cut:"]
    engine = engine_of("none", repetitive(4), mode=mode)
    session, engine.names = engine.session, names
    for at, name in enumerate(names):
        engine.params[at].max_tokens = 1 if "whole" in name else None
        if "ended" in name:
            engine.params[at].stop_token_ids = [engine.requests[at].output[0]]
    engine.step()
    session.end(names[1:])
    session.idle()
    assert not engine.heard["left"]
    session.end(names[:1])
    session.idle()
    session.idle()
    left = sorted(name for each in engine.heard["left"] for name in each)
    assert left == sorted(names[1:3] if mode == "record" else names)
    assert not session.breaker.counts


def test_a_draft_that_the_scheduler_dropped_teaches_nothing():
    requests = random_requests(1, 3, tokens=True, output_tokens=(20, 24))
    engine = engine_of("fixed:neural:3", requests)
    while engine.running:
        engine.step()
        engine.drafts = dict.fromkeys(engine.drafts, ())
    verified = engine.heard["verified"]
    assert any(event.step.verified.any() for event in verified)
    assert not any(event.drafted.any() for event in verified)


@pytest.mark.parametrize("name", ["hybrid-splice:2:8:3:1:5", "fixed:neural:3", "learned"])
def test_where_the_drafter_cannot_run_nothing_neural_is_proposed_and_nothing_fails(name):
    """A draft model may have a shorter context than the server."""
    requests = random_requests(6, 4, tokens=True, output_tokens=(30, 40))
    engine = engine_of(name, requests)
    engine.can_draft = lambda step: step % 3 == 0
    engine.params[0] = params_of(adaspec="off")  # one request may not hold it at all
    engine.run()
    assert not engine.running
    assert not engine.session.breaker.counts
    proposed = engine.heard["proposed"]
    assert any(neural_of(step).any() for step in proposed)
    assert not any(neural_of(step).any() for step in proposed[::3])


def test_a_device_that_is_waited_for_is_neither_a_slow_decision_nor_a_fault(monkeypatch):
    session = engine_of("fixed:neural:2", requests := random_requests(2, 3, tokens=True)).session
    clock, read = [0.0], Session._read

    def waits(*facts):  # as behind a chunk of a long prompt
        clock[0] += 2.0
        read(*facts)

    monkeypatch.setattr("adaspec.vllm.session.session.perf_counter", lambda: clock[0])
    monkeypatch.setattr(Session, "_read", waits)
    engine = ScriptedEngine(requests, session).run()
    assert engine.steps > MAX_IN_A_ROW
    assert not engine.heard["fault"]
    assert {step.decision_s for step in engine.heard["proposed"]} == {0.0}


def test_no_step_waits_for_its_own_drafts_or_those_of_the_step_before(monkeypatch):
    """An answer leaves an async engine behind the next step's drafting, so that may not wait."""
    engine = engine_of("fixed:neural:2", random_requests(2, 3, tokens=True))
    session, read = engine.session, Session._read
    waited, counts = [], []

    def waits(session, drafted):
        waited.append(drafted.step)
        read(session, drafted)

    monkeypatch.setattr(Session, "_read", waits)
    for _ in range(3):
        session.take_reports()
        counts.append(len(waited))
        engine.prepare()
        counts.append(len(waited))
    # Before the third target runs, the first step's report is taken.
    assert counts == [0, 0, 0, 0, 1, 1]
    assert not session.breaker.counts


def test_a_request_that_takes_anothers_id_is_a_new_one():
    requests = random_requests(5, 2, tokens=True, output_tokens=(20, 24))
    engine = engine_of("fixed:ngram:4:1", requests[:1], rows=2)
    engine.step()
    engine.session.end(["r0"])
    ScriptedEngine(requests[1:], engine.session).run()
    assert [(each.name, each.prompt.tolist()) for each in engine.heard["admitted"]] == [
        ("r0", requests[0].prompt),
        ("r0", requests[1].prompt),
    ]
    assert not engine.session.breaker.counts


@pytest.mark.parametrize("recorded", [False, True])
def test_a_drafter_that_is_let_go_runs_no_more_but_for_what_is_recorded(recorded):
    fraction = 0.5 if recorded else 0.0
    requests = random_requests(7, 20, tokens=True, output_tokens=(40, 44))
    engine = engine_of("fixed:neural:2", requests, record_fraction=fraction)
    session, steps = engine.session, engine.heard["proposed"]
    for step in range(8):
        if step == 4:
            session.decider.holds_drafter = lambda running: False
        engine.step()
    chosen = [recorded and is_chosen(f"r{at}", fraction) for at in range(20)]
    assert steps[3].holds_neural.tolist() == [True] * 20
    assert all(step.holds_neural.tolist() == chosen for step in steps[4:])
    assert session.needs_keep_alive == any(chosen) == recorded
    for step in steps:
        assert step.forwards <= 2
        assert step.recorded.tolist() == chosen
        for row in np.flatnonzero(chosen):  # drafted for in full, and proposed nothing
            assert step.proposed[row] == []
            assert (step.drafts.drafted[row] >= 0).sum() == NEURAL_CAP
    assert not session.breaker.counts


def test_a_policy_that_is_switched_off_lets_go_of_requests_and_is_complained_of_no_more():
    requests = random_requests(8, 5, tokens=True, output_tokens=(20, 44))
    engine = engine_of("fixed:neural:2", requests)
    session, heard = engine.session, engine.heard
    session.decider.decide = Mock(side_effect=RuntimeError("injected"))
    while not session.breaker.off:
        engine.step()
    assert not any(engine.drafts.values())
    engine.run()
    session.end(engine.ended)
    session.idle()
    assert not session.requests.runs("r0")
    left = [name for names in heard["left"] for name in names]
    assert sorted(left) == [f"r{at}" for at in range(5)]
    assert [stage for stage, _ in heard["fault"]] == ["plan"] * MAX_IN_A_ROW


@pytest.mark.parametrize("name", [*ONE_OF_EACH, "learned"])
def test_no_draft_goes_beyond_the_room_that_a_request_leaves_it(name):
    requests = random_requests(9, 5, tokens=True, output_tokens=(30, 40))
    engine = engine_of(name, requests)
    engine.shortest = shortest = 12
    reached = 0
    for _ in range(6):
        engine.step()
        for at, tokens in engine.drafts.items():
            room = max(shortest - 1 - engine.position[at], 0)
            assert len(tokens) <= room
            reached += len(tokens) == room > 0
    assert not engine.session.breaker.counts
    if name != "none":
        assert reached
    for step in engine.heard["proposed"]:
        position = step.drafts.context - step.prompt_tokens
        left = np.maximum(shortest - 1 - position, 0)
        assert (step.verified <= left).all()


def test_in_mode_off_nothing_is_drafted_and_later_requests_hold_the_drafter_again():
    engine = engine_of(SPLICES, repetitive(3, tokens=200), rows=8)
    session, counters, events = engine.session, engine.counters, engine.heard["proposed"]
    engine.running = [0, 1]
    engine.run(3)
    assert all(engine.drafts[at] for at in (0, 1))
    wrong = Told("off", "a line of the file is wrong")
    follow(session, types.SimpleNamespace(**{MODE_ATTRIBUTE: wrong}))
    assert counters["mode/off"] == counters["faults/mode_file"] == 1
    for _ in range(3):
        engine.step()
        assert engine.drafts == {0: [], 1: [], 2: []}
        assert not session.needs_keep_alive
    assert len(events) == 3
    follow(session, types.SimpleNamespace(**{MODE_ATTRIBUTE: Told("serve", "")}))
    engine.running = [0, 1, 2]
    engine.step()
    assert events[-1].holds_neural.tolist() == [False, False, True]
    engine.step()
    assert [len(engine.drafts[at]) for at in range(3)] == [4, 4, 4]
    assert counters["mode/off"] == 0
    assert counters["mode/serve"] == 1
    assert not session.breaker.counts


@pytest.mark.parametrize(
    ("extra_args", "length", "holds"),
    [
        ({}, 6, True),
        ({"other": 1, "kv_transfer_params": {}}, 6, True),
        ({"adaspec": "off"}, 0, False),
        ({"adaspec": "wrong"}, 6, True),
    ],
)
def test_for_a_request_that_says_off_nothing_is_drafted_and_for_others_all(
    extra_args, length, holds
):
    engine = engine_of("hybrid-splice:9:4:2:1:4", repetitive(2))
    for request in engine.requests:  # a match as long as the rule asks of copies never comes
        request.prompt[:] = [7 + at for at in range(20)]
    engine.params[0] = params_of(**extra_args)
    engine.run(3)
    assert [len(engine.drafts[at]) for at in (0, 1)] == [length, 6]
    assert engine.heard["proposed"][-1].holds_neural.tolist() == [holds, True]
    assert engine.counters["faults/request"] == ("wrong" in extra_args.values())
    assert not engine.session.breaker.counts


def test_what_its_model_expected_is_counted_by_source_as_before_the_correction():
    counters, ones = Counters(None, {}), np.ones(3, np.int32)
    step = DraftedStep(ones, ones, ones > 0, settings=np.array([0.1, 0.5, 0.8, 0.9]))
    curves = [[0.8, 0.4, 0.2, 0.1], [0.5, 0.25, 0.0, 0.0], [0.9, 0.6, 0.3, 0.0]]
    step.report = report_of(curves, [2, 0, 3])
    drafted, neural = np.array([3, 1, 2], np.int32), np.array([2, 0, 2], np.int32)
    counters.verified(VerifiedStep(step, ones > 0, drafted, neural, drafted - 1, drafted))
    expected = {"splice": 1.2 / 0.8 + 0.2 / 0.72, "ngram": 0.5 / 0.5, "neural": 1.5 / 0.8}
    for source, tokens in expected.items():
        assert counters[f"expected_tokens/{source}"] == pytest.approx(tokens)
    assert [counters[f"accepted_tokens/{source}"] for source in expected] == [2, 0, 1]


def test_nobody_is_told_of_vllms_warm_up_and_nothing_is_learned_of_it():
    engine = engine_of(policy_of("learned", 1), repetitive(3))
    session = engine.session
    engine.names = [f"_warmup_{at}_" for at in range(3)]
    session.rehearse(engine.names)
    engine.run(8)
    assert session.decider.state.throughput["steps"][0] > 0
    assert not any(engine.heard[event] for event in ("admitted", "proposed", "verified"))
    assert not engine.counters["drafted_tokens/ngram"]
    session.rehearse([])
    assert session.decider.state.throughput["steps"][0] == 0
    session.observers.notify("switched", "serve")
    assert engine.heard["switched"] == ["serve"]


def alternating(policy, baseline, states, seed=5):
    """Run an engine whose steps are of these states at random; which steps either arm learned."""
    requests = random_requests(seed, 5, tokens=True, output_tokens=(60, 80))
    engine = engine_of(policy_of(policy, seed), requests, baseline=baseline)
    session, chance, learned = engine.session, np.random.default_rng(seed), {}
    for is_baseline in (False, True):
        host = session._decider(is_baseline)
        learn = host.learn

        def learn_and_note(verified, learn=learn, is_baseline=is_baseline):
            learned.setdefault(is_baseline, []).append(verified)
            learn(verified)

        host.learn = learn_and_note
    while engine.running:
        session.guard_state = str(chance.choice(states))
        engine.step()
        if session.guard_state not in (PLAN, BASE):
            assert not any(engine.drafts[at] for at in engine.running)
    assert not session.breaker.counts
    return learned


@pytest.mark.parametrize("policy", ["learned", "fixed:ngram:8:1"])
@pytest.mark.parametrize(
    ("baseline", "neural", "copied"),
    [("eagle:3", {3}, {0}), ("ngram:5:1", {0}, set(range(6))), ("hybrid:4:6:2", {0, 2}, {0, 6})],
)
def test_either_arm_drafts_its_own_and_learns_from_its_own_steps(policy, baseline, neural, copied):
    learned = alternating(policy, baseline, [PLAN, PLAN, BASE, BASE, PROBE, KEEP])
    for is_baseline, events in learned.items():
        assert {event.step.is_baseline for event in events} == {is_baseline}
    assert learned[True] and learned[False]
    assert any(event.drafted.any() for event in learned[False])
    drafts = [event.step.drafts for event in learned[True] if event.step.verified.any()]
    held = np.concatenate([event.step.holds_neural for event in learned[True]])
    assert held.all() == (policy == "learned" or max(neural) > 0)
    assert set(np.concatenate([each.neural for each in drafts]).tolist()) <= neural | {0}
    assert max(each.neural.max() for each in drafts) == max(neural)
    spliced = np.concatenate([each.offered - each.neural for each in drafts])
    assert set(spliced.tolist()) <= set(range(max(copied) + 1))
    assert (spliced.max() > 0) == (max(copied) > 0)


@pytest.mark.parametrize("in_one_pass", [False, True])
@pytest.mark.parametrize("policy", ["fixed:neural:3", "learned"])
def test_forwards_are_counted_by_the_pass(policy, in_one_pass):
    engine = engine_of(policy, repetitive(3), in_one_pass=in_one_pass).run()
    steps = [step.forwards for step in engine.heard["proposed"] if step.forwards]
    assert not engine.session.breaker.counts
    assert engine.counters["drafter_forwards/draft"] == (len(steps) if in_one_pass else sum(steps))
    assert max(steps) > 1 or not in_one_pass
    assert engine.session.most_forwards == 1 or not in_one_pass


def test_while_a_baseline_without_drafter_serves_for_long_requests_lose_theirs():
    engine = engine_of("fixed:neural:3", repetitive(2, tokens=400), baseline="ngram:2")
    session = engine.session
    engine.run(3)
    for steps, holds in ((60, True), (10, False)):
        session.guard_state = BASE
        engine.run(steps)
        assert not session.needs_keep_alive
        assert bool(session.requests.facts["holds_neural"].any()) == holds
    session.guard_state = HOLD
    engine.run(1)
    assert not session.breaker.counts


def breaker_after(pattern):
    """A breaker, and at which of these steps (True: it fails) it switched off; None if never."""
    breaker, off = CircuitBreaker("a policy", Observers()), None
    for step, fails in enumerate(pattern):
        if fails:
            breaker.fault("plan", ValueError("injected"))
        else:
            breaker.step_succeeded()
        if off is None and breaker.off:
            off = step
    return breaker, off


OFTEN = [True, False] * 200


@pytest.mark.parametrize(
    ("pattern", "off"),
    [
        ([True] * 20, MAX_IN_A_ROW - 1),
        (([True] * (MAX_IN_A_ROW - 1) + [False]) * 3, None),
        # Steps that succeeded before are no credit.
        ([False] * 100_000 + OFTEN, 100_000 + breaker_after(OFTEN)[1]),
        # A rare failure never does, however long the server runs.
        (([False] * STEPS_PER_FAULT + [True]) * 3000, None),
    ],
)
def test_failures_in_a_row_or_too_often_switch_off_which_is_said_once_and_are_counted_on(
    pattern, off, caplog
):
    breaker, found = breaker_after(pattern)
    assert found == off
    assert breaker.off == (off is not None)
    assert breaker.counts == {"plan": sum(pattern)}
    assert caplog.text.count("is switched off") == breaker.off


DRAFTED = Manifest(neural_cap=NEURAL_CAP, draft_cap=NEURAL_CAP, confidences=CONFIDENCES)


def recorder_in(tmp_path, manifest=DRAFTED):
    lost = Counter()
    return Recorder(output_in(tmp_path, lost, manifest=manifest)), lost


@pytest.mark.parametrize("ends", [{"eos_token_id": 9}, {"stop_token_ids": [9]}])
def test_it_is_known_how_a_request_ended(tmp_path, ends):
    recorder, _ = recorder_in(tmp_path, Manifest())
    for sample, output in enumerate(([5, 9], [5, 6, 7], [5, 6], [5, -1, 6])):
        name = engine_id("chat", str(sample))
        params = params_of()
        params.max_tokens = 3
        vars(params).update(ends)
        prompt = np.arange(4, dtype=np.int32)
        recorder.admitted(RunningRequest(name, prompt, output, params, None, recorded=True))
        recorder.left([name])
    recorder.close()
    kept = [
        (each.output_tokens.tolist(), each.is_cut_off)
        for each in TraceReader(tmp_path / "trace").requests()
    ]
    # By a token that ends it, by its limit, by an abort, and by a fault.
    assert kept == [([5, 9], False), ([5, 6, 7], True), ([5, 6], True), ([5], True)]


def test_a_request_of_which_a_full_queue_dropped_a_step_is_counted_and_not_written(
    tmp_path, monkeypatch
):
    requests = random_requests(8, 3, tokens=True, output_tokens=(9, 20))
    engine = engine_of("fixed:ngram:8:1", requests, record_fraction=1.0)
    recorder, lost = recorder_in(tmp_path)
    engine.session.observers.add(recorder)
    for step in range(20):
        monkeypatch.setattr("adaspec.vllm.recorder.MAX_QUEUED", 0 if step == 3 else 1 << 10)
        engine.run(1)
    recorder.close()
    assert not (tmp_path / "trace").exists()
    assert lost == {"queue": 3, "incomplete": 3}

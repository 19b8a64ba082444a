"""The session drives an engine as the replay does; a scripted engine stands in for vLLM."""

from __future__ import annotations

import time
import types

import numpy as np
import pytest
from heard import Heard
from session_fakes import no_tables

torch = pytest.importorskip("torch", reason="torch is not installed")

from random_models import random_model, random_policy  # noqa: E402
from random_recordings import recording_of  # noqa: E402
from scripted_engine import (  # noqa: E402
    CAP,
    COST,
    NEURAL_CAP,
    ScriptedEngine,
    params_of,
    random_requests,
    repetitive,
    session_of,
)

from adaspec.policy.learned import LearnedPolicy, planner_for  # noqa: E402
from adaspec.policy.spec import parse_policy  # noqa: E402
from adaspec.replay.closed_loop import finish_step, goes_on, start  # noqa: E402
from adaspec.replay.learned import decide_step, setup_for  # noqa: E402
from adaspec.replay.paths import walk_rule  # noqa: E402
from adaspec.vllm.breaker import MAX_IN_A_ROW  # noqa: E402
from adaspec.vllm.client_arguments import is_chosen  # noqa: E402
from adaspec.vllm.events import source_of  # noqa: E402
from adaspec.vllm.metrics import FIGURES, Counters, MetricsObserver  # noqa: E402
from adaspec.vllm.mode_file import ATTRIBUTE, Told  # noqa: E402
from adaspec.vllm.scheduler import follow  # noqa: E402

RULES = [
    "none",
    "fixed:ngram:8:1",
    "fixed:neural:3",
    "hybrid-splice:2:8:3:1:5",
    "hybrid-until:2:8:4:40:1:5",
    "hybrid-agree:2:8:3:1:5",
]
SPLICES = "hybrid-splice:2:4:2:1:4"


def policy_of(name, seed=3):
    if name == "learned":
        rng = np.random.default_rng(seed)
        return random_policy(rng, no_tables(), evidence=True, cap=CAP, neural_cap=NEURAL_CAP)
    return parse_policy(name)


def lengths(neural_len, ngram_len):
    """How many tokens every row copies in place of neural ones, and how many it drafts in all."""
    copied = np.where(neural_len == 0, ngram_len, 0)
    return [copied.tolist(), (neural_len + ngram_len).tolist()]


def decided(event):
    return lengths(event.neural_len, event.ngram_len)


def replayed_rule(recording, rule):
    """What a rule decides step by step, until the first request ends."""
    paths = walk_rule(recording, rule, CAP, False)
    every = np.split(paths.steps, paths.start[1:-1])
    together = np.stack([steps[: min(map(len, every))] for steps in every], axis=1)
    return [[step["copied"].tolist(), step["drafted"].tolist()] for step in together]


def replayed_policy(recording, policy):
    """What a learned policy decides step by step, until the first request ends."""
    costs = COST.charged_to(policy.deciding).constants()
    planner = planner_for((policy,), setup_for(recording, COST, 5, CAP))
    none, decisions = np.zeros(5, np.int32), []
    loop = start(recording.columns, np.arange(5, dtype=np.int32), 5, True)
    while goes_on(loop):
        step = decide_step(recording.arrays, loop, planner.address, none, CAP)
        decisions.append(lengths(step.neural_len, step.ngram_len))
        finish_step(loop, costs, step.shape, step.accepted)
    return decisions


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", [*RULES, "learned"])
def test_a_session_decides_what_the_replay_does(seed, name):
    requests = random_requests(seed, 5, tokens=True)
    recording = recording_of(requests, seed=seed)
    policy = policy_of(name, seed)
    if name == "learned":
        replayed = replayed_policy(recording, policy)
    else:
        replayed = replayed_rule(recording, policy.rule)
    session = session_of(policy, 5)
    events = Heard(session)["proposed"]
    ScriptedEngine(requests, session, recording=recording).run()
    assert not session.breaker.counts
    assert replayed
    # The replay ends as the first request does.
    assert [decided(event) for event in events][: len(replayed)] == replayed


@pytest.mark.parametrize("mode", ["serve", "record"])
def test_the_last_requests_are_forgotten_in_a_step_in_which_nothing_runs(mode):
    names = ["r", "adaspec:w:whole:", "adaspec:w:ended:", "adaspec:w:cut:"]
    session = session_of(parse_policy("none"), 4, mode=mode)
    heard = Heard(session)
    engine = ScriptedEngine(repetitive(4), session)
    engine.names = names
    for at, name in enumerate(names):
        engine.params[at].max_tokens = 1 if "whole" in name else None
        if "ended" in name:
            engine.params[at].ignore_eos = False
            engine.params[at].all_stop_token_ids = {engine.requests[at].output[0]}
    engine.step()
    session.end(names[1:])
    session.idle()
    assert not heard["left"]
    session.end(names[:1])
    session.idle()
    session.idle()
    left = sorted(name for each in heard["left"] for name in each)
    assert left == sorted(names[1:3] if mode == "record" else names)
    assert not session.breaker.counts


def test_a_draft_that_the_scheduler_dropped_teaches_nothing():
    requests = random_requests(1, 3, tokens=True, output_tokens=(20, 24))
    session = session_of(parse_policy("fixed:neural:3"), 3)
    heard, engine = Heard(session), ScriptedEngine(requests, session)
    while engine.running:
        engine.step()
        engine.drafts = dict.fromkeys(engine.drafts, ())
    assert {"r0", "r1", "r2"} == {name for event in heard["verified"] for name in event.dropped}
    assert heard["verified"]
    assert not any(event.drafted.any() for event in heard["verified"])


def test_only_steps_that_do_nothing_but_verify_are_timed():
    session = session_of(parse_policy("fixed:neural:3"), 3)
    came = Heard(session)["verified"]
    engine = ScriptedEngine(random_requests(1, 3, tokens=True, output_tokens=(22, 24)), session)
    engine.running = [0, 1]
    for step in range(5):
        if step == 3:  # its prompt is read in this step
            engine.running.append(2)
        engine.step()
    timed = [told.took_s for told in came]
    assert [took is not None for took in timed] == [True, True, False, True]
    assert timed[0] > 0
    time.sleep(0.05)
    engine.step()
    assert came[-1].took_s > 0.05


@pytest.mark.parametrize("name", ["hybrid-splice:2:8:3:1:5", "fixed:neural:3", "learned"])
def test_where_the_drafter_cannot_run_nothing_neural_is_proposed_and_nothing_fails(name):
    """A draft model may have a shorter context than the server."""
    requests = random_requests(6, 4, tokens=True, output_tokens=(30, 40))
    session = session_of(policy_of(name), 4)
    proposed = Heard(session)["proposed"]
    engine = ScriptedEngine(requests, session, can_draft=lambda step: step % 3 == 0)
    engine.params[0] = params_of(adaspec_source="ngram")  # one request may not hold it at all
    engine.run()
    assert not engine.running
    assert not session.breaker.counts
    assert any(step.neural_len.any() for step in proposed)
    assert not any(step.neural_len.any() for step in proposed[::3])


@pytest.mark.parametrize("alone", [True, False])
def test_slow_decisions_switch_off_a_policy_only_where_no_other_rank_must_decide_alike(
    alone, monkeypatch
):
    monkeypatch.setattr("adaspec.vllm.session.session.SLOW_S", -1.0)
    requests = random_requests(2, 3, tokens=True, output_tokens=(40, 44))
    session = session_of(parse_policy("fixed:neural:2"), 3, stop_if_slow=alone)
    faults = Heard(session)["fault"]
    ScriptedEngine(requests, session).run()
    assert session.breaker.off == alone
    assert {fault.stage for fault in faults} == {"time"}
    assert session.breaker.counts == ({"time": MAX_IN_A_ROW} if alone else {})


def test_tokens_that_the_vocabulary_lacks_are_never_proposed():
    requests = random_requests(2, 3, tokens=True)
    session = session_of(parse_policy("hybrid-splice:1:8:3:1:5"), 3, vocabulary=1)
    engine = ScriptedEngine(requests, session)
    while engine.running:
        engine.step()
        assert all(token == 0 for tokens in engine.drafts.values() for token in tokens)


def test_a_request_that_takes_anothers_id_is_a_new_one():
    requests = random_requests(5, 2, tokens=True, output_tokens=(20, 24))
    session = session_of(parse_policy("fixed:ngram:4:1"), 2)
    entered = Heard(session)["admitted"]
    ScriptedEngine(requests[:1], session).step()
    session.end(["r0"])
    ScriptedEngine(requests[1:], session).run()
    assert [(name, prompt.tolist()) for name, prompt, *_ in entered] == [
        ("r0", requests[0].prompt),
        ("r0", requests[1].prompt),
    ]
    assert not session.breaker.counts


@pytest.mark.parametrize("recorded", [False, True])
def test_a_drafter_that_is_let_go_runs_no_more_but_for_what_is_recorded(recorded):
    fraction = 0.5 if recorded else 0.0
    session = session_of(parse_policy("fixed:neural:2"), 40, record_fraction=fraction)
    steps = Heard(session)["proposed"]
    requests = random_requests(7, 20, tokens=True, output_tokens=(40, 44))
    engine = ScriptedEngine(requests, session)
    for step in range(8):
        if step == 4:
            session.host.holds_drafter = lambda running: False
        engine.step()
    chosen = [recorded and is_chosen(f"r{at}", fraction) for at in range(20)]
    assert steps[3].holds_neural.tolist() == [True] * 20
    assert all(step.holds_neural.tolist() == chosen for step in steps[4:])
    assert session.needs_keep_alive == any(chosen) == recorded
    assert not session.breaker.counts


def test_a_step_that_cannot_be_read_proposes_nothing():
    requests = random_requests(5, 2, tokens=True, output_tokens=(20, 24))
    session = session_of(parse_policy("hybrid-splice:1:8:3:1:5"), 2)
    ScriptedEngine(requests, session).step()
    session.skip(2, AttributeError("injected"))
    assert session.needs_keep_alive
    session.finish(torch.zeros((2, 0), dtype=torch.int64), torch.zeros((0, 2, 3)))
    assert session.proposed() == [[], []]
    assert session.breaker.counts["batch"] == 1


def test_a_policy_that_is_switched_off_lets_go_of_requests_and_is_complained_of_no_more():
    def broken(*facts):
        raise RuntimeError("injected")

    requests = random_requests(8, 5, tokens=True, output_tokens=(20, 44))
    session = session_of(parse_policy("fixed:neural:2"), 5)
    session.host.decide = broken
    heard, engine = Heard(session), ScriptedEngine(requests, session)
    while not session.breaker.off:
        engine.step()
    assert not any(engine.drafts.values())
    engine.run()
    session.end(engine.ended)
    session.idle()
    assert not session.requests.runs("r0")
    left = [name for names in heard["left"] for name in names]
    assert sorted(left) == [f"r{at}" for at in range(5)]
    assert [fault.stage for fault in heard["fault"]] == ["plan"] * MAX_IN_A_ROW


@pytest.mark.parametrize("name", [*RULES, "learned"])
def test_no_draft_goes_beyond_the_room_that_a_request_leaves_it(name):
    shortest = 12
    session = session_of(policy_of(name), 5)
    counters = Counters(None, {})
    session.observers.add(MetricsObserver(counters))
    proposed = Heard(session)["proposed"]
    requests = random_requests(9, 5, tokens=True, output_tokens=(30, 40))
    engine = ScriptedEngine(requests, session, shortest)
    reached = 0
    for _ in range(6):
        engine.step()
        for at, tokens in engine.drafts.items():
            room = max(shortest - 1 - engine.position[at], 0)
            assert len(tokens) <= room
            reached += len(tokens) == room > 0
    assert not session.breaker.counts
    if name != "none":
        assert reached
    barred = 0
    for step in proposed:
        left = np.maximum(shortest - 1 - step.position, 0)
        assert (step.neural_len + step.ngram_len <= left).all()
        barred += int((left == 0).sum())
    assert counters["decisions/none/output_limit"] == barred
    assert sum(counters[name] for name in FIGURES if name.startswith("decisions/")) == 5 * 6


def test_in_mode_off_nothing_is_drafted_and_later_requests_hold_the_drafter_again():
    counters = Counters(None, {})
    session = session_of(parse_policy(SPLICES), 8)
    session.observers.add(MetricsObserver(counters))
    events = Heard(session)["proposed"]
    engine = ScriptedEngine(repetitive(3, tokens=200), session)
    engine.running = [0, 1]
    for _ in range(3):
        engine.step()
    assert all(engine.drafts[at] for at in (0, 1))
    follow(
        session, types.SimpleNamespace(**{ATTRIBUTE: Told("off", "a line of the file is wrong")})
    )
    assert counters["mode/off"] == counters["faults/mode_file"] == 1
    for _ in range(3):
        engine.step()
        assert engine.drafts == {0: [], 1: [], 2: []}
        assert not session.needs_keep_alive
    assert len(events) == 3
    follow(session, types.SimpleNamespace(**{ATTRIBUTE: Told("serve", "")}))
    engine.running = [0, 1, 2]
    engine.step()
    assert events[-1].holds_neural.tolist() == [False, False, True]
    engine.step()
    assert [len(engine.drafts[at]) for at in range(3)] == [4, 4, 4]
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
        ({"adaspec_source": "ngram"}, 0, "none", False),
        ({"adaspec_source": "neural"}, 2, "neural", True),
        ({"adaspec": "wrong"}, 6, "splice", True),
    ],
)
def test_a_request_limits_its_drafts_and_nobody_elses(extra_args, length, source, holds):
    counters = Counters(None, {})
    session = session_of(parse_policy("hybrid-splice:9:4:2:1:4"), 2)
    session.observers.add(MetricsObserver(counters))
    proposed = Heard(session)["proposed"]
    engine = ScriptedEngine(repetitive(2), session)
    for request in engine.requests:  # a match as long as the rule asks of copies never comes
        request.prompt[:] = [7 + at for at in range(20)]
    engine.params[0] = params_of(**extra_args)
    for _ in range(3):
        engine.step()
    assert len(engine.drafts[0]) == length
    event = proposed[-1]
    assert source_of(int(event.neural_len[0]), int(event.ngram_len[0])) == source
    assert event.holds_neural.tolist() == [holds, True]
    assert counters["decisions/none/limited"] == (3 if extra_args == {"adaspec": "off"} else 0)
    assert counters["faults/request"] == ("wrong" in extra_args.values())
    assert not session.breaker.counts


def test_long_contexts_are_not_drafted_for_and_all_drafts_together_are_kept_to_a_limit():
    session = session_of(parse_policy(SPLICES), 2, max_context_tokens=30)
    engine = ScriptedEngine(repetitive(1), session)
    while engine.running:
        engine.step()
        known = engine.position[0] + 20
        assert not engine.running or bool(engine.drafts[0]) == (known <= 30)
    assert not session.needs_keep_alive
    session = session_of(parse_policy(SPLICES), 3, max_drafted_tokens=7)
    engine = ScriptedEngine(repetitive(3), session)
    for _ in range(3):
        engine.step()
        assert sum(map(len, engine.drafts.values())) == 7
    assert not session.breaker.counts


def test_in_mode_shadow_it_is_said_what_would_be_drafted():
    model = random_model(3, no_tables(), evidence=True)
    found = []
    for mode in ("serve", "shadow"):
        session = session_of(LearnedPolicy("p", model, CAP, NEURAL_CAP), 3, mode)
        events = Heard(session)["proposed"]
        engine = ScriptedEngine(repetitive(3), session)
        engine.step()
        found.append((decided(events[0]), any(engine.drafts.values())))
    assert found[0][0] == found[1][0]
    assert [drafts for _, drafts in found] == [True, False]

"""What holds on either model runner: tests/engine/v2 asks the same of V2."""

import numpy as np
import pytest
from heard import Heard
from live_engine import KINDS, requests_of
from wandering import bound, breaking, check_sound, random_policy, wander, without_numbers

from adaspec.policy.guard import BASE, KEEP, PLAN, PROBE
from adaspec.vllm.events import MAX_IN_A_ROW
from adaspec.vllm.scheduler import follow


@pytest.mark.parametrize("times", [1.02, 1.2])
def test_a_bound_leaves_the_output_as_it_was(serve, head, prompts, truth, times):
    engine, session = serve(head, random_policy(3, True))
    told = bound(session, times)
    assert engine.greedy(prompts, 32) == truth(32)
    check_sound(session)
    assert any(step.bounded for step in told)


def check_arms(serve, head, runner, prompts, truth, baseline, patch):
    """Let the guard's arms alternate at random, the operator's baseline among them."""
    engine, wanderer = wander(serve, head, baseline=baseline)
    chance, session = np.random.default_rng(4), wanderer.session
    verified = Heard(session)["verified"]

    def follow_and_alternate(session, scheduled):
        follow(session, scheduled)
        session.guard_state = str(chance.choice([PLAN, BASE] * 8 + [PROBE, KEEP]))

    where = {"v1": "v1", "v2": "v2.attachment"}[runner]
    patch.setattr(f"adaspec.vllm.{where}.follow", follow_and_alternate)
    assert engine.greedy(prompts, 48) == truth(48)
    check_sound(session)
    assert {each.step.is_baseline for each in verified if each.drafted.any()} == {False, True}


@pytest.mark.parametrize("baseline", ["HEAD:3", "ngram:5:1", "hybrid-splice:3:8:2:1:4"])
def test_arms_that_alternate_at_random_leave_the_output_as_it_was(
    serve, head, runner, prompts, truth, baseline, monkeypatch
):
    baseline = baseline.replace("HEAD", head)
    check_arms(serve, head, runner, prompts, truth, baseline, monkeypatch)


def check_kind(serve, head, prompts, said, kind):
    """Have requests of this kind answered while decisions are random; returns what was proposed."""
    engine, wanderer = wander(serve, head)
    proposed = Heard(wanderer.session)["proposed"]
    assert engine.outputs(*requests_of(kind, prompts)) == said[kind]
    assert len({len(one[0]) for one in said[kind]}) > (kind != "structured")
    assert any(accepted for one in engine.judged.values() for _, accepted in one)
    check_sound(wanderer.session)
    return proposed


@pytest.mark.parametrize("kind", KINDS)
def test_requests_of_every_kind_are_answered_as_without_speculation(
    serve, head, prompts, said, kind
):
    check_kind(serve, head, prompts, said, kind)


LIMITS = {"v1": "take_likeliest", "v2": "budget"}
"""What says how many drafted tokens a step verifies."""
PLACES = [
    *(("decider", name) for name in ("holds_drafter", "decide", "learn", LIMITS)),
    *(("drafting", name) for name in ("begin", "revise", "finish")),
]


@pytest.mark.parametrize(("part", "name"), PLACES)
def test_a_fault_now_and_then_costs_only_its_step(
    serve, head, runner, prompts, truth, monkeypatch, part, name
):
    engine, wanderer = wander(serve, head)
    session, few = wanderer.session, len(prompts) // 2
    place = name[runner] if name is LIMITS else name
    failed = breaking(monkeypatch, getattr(session, part), place, 3)
    assert engine.greedy(prompts[:few], 24) == truth(24)[:few]
    assert engine.greedy(prompts[:2], 8) == truth(8)[:2]
    assert failed
    assert sum(session.breaker.counts.values()) >= len(failed)
    assert not session.breaker.off


def test_what_always_fails_is_switched_off(serve, head, prompts, truth, monkeypatch):
    engine, wanderer = wander(serve, head)
    session = wanderer.session
    breaking(monkeypatch, session.drafting, "finish", 1)
    assert engine.greedy(prompts, 48) == truth(48)
    assert session.breaker.off
    assert sum(session.breaker.counts.values()) == MAX_IN_A_ROW
    engine.judged.clear()
    assert engine.greedy(prompts, 24) == truth(24)
    assert not engine.judged


def test_a_model_that_says_nan_drafts_nothing_harmful(serve, head, prompts, truth):
    engine, session = serve(head, without_numbers(random_policy(1, True)))
    assert engine.greedy(prompts, 48) == truth(48)
    assert not session.breaker.off


def check_ring(engine, session, prompts, expected):
    """Ask with and without a salt: such an answer neither enters the ring nor is helped by it."""
    verified, accepted = Heard(session)["verified"], []
    for salt in ("one", None, "one", None):
        verified.clear()
        assert engine.greedy(prompts, 32, salts=[salt] * len(prompts)) == expected
        engine.greedy([[1, 2, 3]], 1, salts=["two"])  # who has ended is told with the next step
        accepted.append(sum(int(event.accepted.sum()) for event in verified))
    *alone, helped = accepted
    assert max(alone) - min(alone) < 4, alone  # what a step has room for depends on when it comes
    assert helped > max(alone) + len(prompts)
    check_sound(session)


def test_what_was_answered_is_copied_but_by_a_salt_and_changes_no_output(serve, prompts, truth):
    engine, session = serve(None, "fixed:ngram:8:2", ring_tokens=2048)
    check_ring(engine, session, prompts[:6], truth(32)[:6])

"""A replay under a guard takes the steps that the guard says, and charges what is true."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from checkout import CHECKOUT, need
from random_recordings import random_requests, recording_of

from adaspec.cost.builtin import H100_LLAMA_3_1_8B as COST
from adaspec.cost.model import plain_seconds
from adaspec.policy.guard import HOLD, PLAN, PROBE, Guard
from adaspec.policy.learned import load_policy
from adaspec.policy.spec import parse_policy
from adaspec.replay.player import Player

need("eval")
sys.path.append(str(CHECKOUT / "eval" / "guard"))

from guarded_run import GuardedRun  # noqa: E402

CAP, LOAD = 20, 4
ORDER = np.arange(40, dtype=np.int32)
RULE = "hybrid-splice:2:8:3:2:4"
DEARER = replace(
    COST,
    seconds=tuple(COST.seconds[0] + 3 * (each - COST.seconds[0]) for each in COST.seconds),
    forward_s=3 * COST.forward_s,
)


class Fixed(Guard):
    """A guard that decides the same over and over; it notes what it is told."""

    def __init__(self, *words):
        super().__init__(plain_seconds(COST))
        self.given, self.noted = words, []

    def _state(self, bucket):
        return self.given[len(self.noted) % len(self.given)]

    def note(self, decision, seconds, tokens, emitting):
        self.noted.append((decision, seconds, tokens))


@pytest.fixture(scope="module")
def recording():
    return recording_of(random_requests(5, len(ORDER), tokens=False, output_tokens=(20, 60)))


def run(recording, guard=None, true_cost=COST):
    run = GuardedRun(recording, parse_policy(RULE), ORDER, LOAD, COST, CAP, guard, true_cost)
    return run.result()


@pytest.mark.parametrize("tokens", [False, True], ids=["without tokens", "with tokens"])
@pytest.mark.parametrize("name", [RULE, "fixed:neural:3", "fixed:ngram:4", "reference-pair-cpu"])
def test_without_a_guard_it_is_the_replay(name, tokens):
    recording = recording_of(random_requests(3, 12, tokens=tokens, output_tokens=(20, 40)), seed=1)
    policy = load_policy(name) if name == "reference-pair-cpu" else parse_policy(name)
    played = Player(recording, COST, CAP).play(policy, ORDER[:12], LOAD)
    found = GuardedRun(recording, policy, ORDER[:12], LOAD, COST, CAP, None, COST).result()
    assert found.time_s == pytest.approx(played.time_s)
    assert (found.tokens, found.drafted, found.accepted, found.neural_steps) == (
        *(played.tokens, played.drafted, played.accepted, played.neural_steps),
    )


def test_it_is_told_what_steps_took_and_emitted(recording):
    guard = Fixed(PLAN, PLAN, PROBE, HOLD, HOLD)
    result = run(recording, guard, DEARER)
    assert sum(seconds for _, seconds, _ in guard.noted) == pytest.approx(result.time_s)
    assert sum(tokens for *_, tokens in guard.noted) == result.tokens
    plain_s = plain_seconds(DEARER)
    for decision, seconds, tokens in guard.noted:
        if decision.state != PLAN:
            assert tokens <= decision.rows
            assert seconds < plain_s(decision.rows, 1000 * decision.rows, 0)
    assert 0 < result.neural_steps < result.steps

"""What a trace can replay, and how it says that it cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import find
from random_recordings import (
    NEURAL_CAP,
    random_cost,
    random_requests,
    recorded,
    recording_of,
    static_specs,
)

from adaspec.errors import EvaluationError, SpecError
from adaspec.policy import spec as specs
from adaspec.policy.base import BasePolicy, Needs, needs_of
from adaspec.policy.protocol import Batch, Drafts, Proposal, Setup
from adaspec.policy.spec import FORMS, KINDS, Field, Form, Kind
from adaspec.policy.static import StaticRule
from adaspec.replay.contender import parse_contender
from adaspec.replay.loop import run_policy
from adaspec.replay.player import Player, is_compiled
from adaspec.replay.recording import Recording, build_recording
from adaspec.vllm.choice import named_policy

COST = random_cost(np.random.default_rng(0))
NEURAL_ORACLES = ("oracle:neural", "oracle:combine")
OTHER_ORACLES = ("oracle:ngram", "oracle:plan", "oracle:plan-splice", "oracle:dp-splice")


def recording_without_neural() -> Recording:
    requests = random_requests(0, 3, tokens=False)
    bare = [
        replace(recorded(request, str(at)), neural_accepted=None)
        for at, request in enumerate(requests)
    ]
    return build_recording(bare, 0)


@pytest.mark.parametrize("spec", ["fixed:neural:1", "hybrid", "budget:2", "ema", *NEURAL_ORACLES])
def test_drafting_with_a_drafter_that_never_ran_is_refused(spec: str) -> None:
    player = Player(recording_without_neural(), COST, 48)
    with pytest.raises(EvaluationError, match=f"'{spec}' drafts with a neural drafter"):
        player.check(parse_contender(spec))


@pytest.mark.parametrize("spec", ["none", "fixed:ngram:5", "hybrid:4:5:0", *OTHER_ORACLES])
def test_what_needs_no_drafter_plays_without_one(spec: str) -> None:
    player = Player(recording_without_neural(), COST, 48)
    contender = parse_contender(spec)
    player.check(contender)
    assert player.play(contender, np.arange(3, dtype=np.int32), 1).tokens_per_s > 0


@pytest.mark.parametrize("spec", ["fixed:neural:6", "hybrid:4:5:6", "budget:6", "ema:1,6"])
def test_drafts_longer_than_what_was_recorded_are_refused(spec: str) -> None:
    player = Player(recording_of(random_requests(0, 3, tokens=True)), COST, 48)
    with pytest.raises(EvaluationError, match=f"drafts 6 neural tokens.* end at {NEURAL_CAP}"):
        player.check(parse_contender(spec))


def test_comparing_drafted_tokens_needs_drafted_tokens() -> None:
    with_tokens, without = (
        Player(recording_of(random_requests(0, 3, tokens=tokens)), COST, 48)
        for tokens in (True, False)
    )
    with_tokens.check(parse_contender("hybrid-agree"))
    with pytest.raises(EvaluationError, match="compares drafted tokens, but the trace holds none"):
        without.check(parse_contender("hybrid-agree"))


@pytest.mark.parametrize("kind", ["dp", "dp-splice"])
def test_the_cheapest_path_has_no_meaning_in_a_closed_loop_of_many(kind: str) -> None:
    player = Player(recording_of(random_requests(0, 4, tokens=False)), COST, 48)
    oracle, order = parse_contender(f"oracle:{kind}"), np.arange(4, dtype=np.int32)
    with pytest.raises(EvaluationError, match="no meaning at concurrency 2"):
        player.play(oracle, order, 2)
    assert player.play(oracle, order, 1).tokens > 0


def test_what_decides_everything_at_once_is_refused_in_an_async_engine() -> None:
    player = Player(recording_of(random_requests(0, 3, tokens=True)), COST, 48, engine="async")
    for spec in ("none", "fixed:neural:2", "hybrid:3:5:2", "budget:2", "ema", "oracle:plan"):
        player.check(parse_contender(spec))
    with pytest.raises(EvaluationError, match=r"lacks the stage 'budget'.*--engine sync"):
        player.check(EverySecond("own", 1))


class EverySecond(BasePolicy):
    """Drafts K neural tokens in every second step."""

    def __init__(self, name: str, length: int) -> None:
        self.name, self.length, self.steps = name, length, 0

    @property
    def needs(self) -> Needs:
        return Needs(drafter=True, neural_len=self.length, draft_len=self.length)

    def start(self, setup: Setup) -> None:
        self.steps = 0

    def plan(self, batch: Batch) -> int:
        self.steps += 1
        return self.length * (self.steps % 2)

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        lengths = np.full(len(batch), drafts.count, np.int32)
        return Proposal(lengths, np.zeros(len(batch), np.int32))


NEW_RULE = Form("late", (Field("KE", 2, 1),), lambda length: StaticRule(9, 3, length))
NEW_BASELINE = Kind(
    "second", "second:K", "second:2", lambda text, words: EverySecond(text, int(words[0]))
)


@pytest.mark.parametrize("kind", [NEW_RULE.kind, NEW_BASELINE], ids=["a rule", "a baseline"])
def test_what_has_an_entry_among_the_specs_is_parsed_replayed_and_served(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(specs.KINDS, kind.head, kind)
    spec = f"{kind.head}:3"
    policy = parse_contender(spec)
    assert policy.name == spec
    assert needs_of(policy).neural_len == needs_of(named_policy(spec)).draft_len == 3
    with pytest.raises(SpecError, match=kind.usage):
        parse_contender("no-such-spec:3")
    with pytest.raises(EvaluationError, match="the trace recorded none"):
        Player(recording_without_neural(), COST, 48).check(policy)
    recording, order = (
        recording_of(random_requests(0, 3, tokens=True)),
        np.arange(3, dtype=np.int32),
    )
    player = Player(recording, COST, 48)
    player.check(policy)
    played, stepped = (
        player.play(policy, order, 2),
        run_policy(recording, policy, order, 2, COST, 48),
    )
    assert (played.tokens, played.steps, played.drafted, played.accepted) == (
        *(stepped.tokens, stepped.steps, stepped.drafted, stepped.accepted),
    )
    assert played.drafted > 0
    assert is_compiled(policy) == (kind.head == NEW_RULE.head)


def test_every_static_rule_is_among_those_held_against_the_reference() -> None:
    kinds = static_specs(tokens=True)
    # What copies from earlier answers is held against a plain search in test_history.
    for head in FORMS.keys() - {"fixed:memory", "hybrid-memory"}:
        assert find(kinds, lambda spec, head=head: f"{spec}:".startswith(f"{head}:"))
    assert set(FORMS) <= set(KINDS)

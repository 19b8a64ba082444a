"""A panel shares a batch among policies or rules, each deciding for its own requests."""

import numpy as np
import pytest
from random_models import random_policy
from random_recordings import random_cost, random_requests, recording_of

from adaspec.evaluate.hindsight import tuned_winners
from adaspec.policy.spec import parse_policy
from adaspec.replay.crossfit import CrossfitPolicy, CrossfitRule
from adaspec.replay.learned import run_learned
from adaspec.replay.player import Player, is_compiled
from adaspec.train.token_tables import TableMaker

SPECS = ("hybrid:4:8:2", "hybrid-splice:2:12:3:1:5", "fixed:neural:1")


@pytest.mark.parametrize("kind", ["bare", "tokens", "confidences"])
def test_only_the_member_of_a_request_decides_for_it(kind):
    rng = np.random.default_rng(7)
    requests = random_requests(7, 20, tokens=kind != "bare")
    recording = recording_of(requests, seed=7 if kind == "confidences" else None)
    cost = random_cost(rng)
    tables = TableMaker(recording, 0).make(np.ones(len(recording), np.bool_))
    first, second = (
        random_policy(rng, tables, evidence=kind != "bare", cap=48, neural_cap=5) for _ in range(2)
    )
    member = (np.arange(len(recording)) % 2).astype(np.int32)
    mixed = rng.integers(0, len(recording), 40).astype(np.int32)

    def time_s(policy, order=mixed):
        return run_learned(recording, policy, order, 4, cost, 20).time_s

    assert time_s(CrossfitPolicy("alike", (first, first), member)) == time_s(first)
    # What concerns the whole batch follows the first member.
    panel = CrossfitPolicy("two", (first, second), member)
    own = np.resize(np.flatnonzero(member == 0), 40).astype(np.int32)
    assert time_s(panel, own) == time_s(first, own)
    assert len({time_s(each) for each in (first, second, panel)}) == 3


@pytest.fixture
def player():
    recording = recording_of(random_requests(5, 6, tokens=True))
    return Player(recording, random_cost(np.random.default_rng(5)), 20)


def test_every_request_runs_under_its_own_rule(player):
    rules = tuple(parse_policy(spec).rule for spec in SPECS)
    mixed = CrossfitRule("mixed", rules, np.arange(6, dtype=np.int32) % 3)
    assert is_compiled(mixed)
    for rule, spec in enumerate(SPECS):
        order = np.flatnonzero(mixed.rule_of_request == rule).astype(np.int32)
        mine, alone = (player.play(each, order, 1) for each in (mixed, parse_policy(spec)))
        # Some rule of the panel copies, so every batch is looked up.
        assert mine.time_s - mine.deciding_s == pytest.approx(alone.time_s - alone.deciding_s)
    order = np.random.default_rng(0).integers(0, 6, 30).astype(np.int32)
    alike = CrossfitRule("alike", rules[1:2] * 3, mixed.rule_of_request)
    assert (
        player.play(alike, order, 4).time_s == player.play(parse_policy(SPECS[1]), order, 4).time_s
    )


def test_a_panel_is_compared_with_the_rules_of_its_own_folds(player):
    def winners(*specs):
        member = (np.arange(len(player.recording)) % 2).astype(np.int32)
        panel = CrossfitPolicy("crossfit:2", (), member, {4: specs})
        return tuned_winners(player, [panel], 8)

    assert winners(SPECS[0], SPECS[0])["static:tuned"].contender.name == SPECS[0]
    found = winners(SPECS[0], SPECS[1])["static:tuned"]
    assert isinstance(found.contender, CrossfitRule)
    assert found.contender.name == f"{SPECS[0]} / {SPECS[1]}"
    # Who would pay the keep-alive where only some hold the drafter is nowhere said.
    assert winners(SPECS[0], "fixed:ngram:8") == {}

"""Static rules that share a batch."""

from __future__ import annotations

import numpy as np
import pytest
from random_recordings import random_cost, random_requests, recording_of

from adaspec.evaluate.hindsight import tuned_winners
from adaspec.policy.spec import parse_policy
from adaspec.replay.crossfit import CrossfitPolicy, CrossfitRule
from adaspec.replay.player import Player, is_compiled

SPECS = ("hybrid:4:8:2", "hybrid-splice:2:12:3:1:5", "fixed:neural:1")


@pytest.fixture
def player():
    recording = recording_of(random_requests(5, 6, tokens=True))
    return Player(recording, random_cost(np.random.default_rng(5)), 20)


def panel_of(player, specs=SPECS, member=None):
    rules = tuple(parse_policy(spec).rule for spec in specs)
    if member is None:
        member = np.arange(len(player.recording)) % len(rules)
    return CrossfitRule("mixed", rules, member.astype(np.int32))


def test_one_rule_many_times_is_that_rule(player):
    order = np.random.default_rng(0).integers(0, len(player.recording), 30).astype(np.int32)
    mixed = panel_of(player, SPECS[1:2] * 3)
    assert is_compiled(mixed)
    one = player.play(parse_policy(SPECS[1]), order, 4)
    assert player.play(mixed, order, 4).time_s == one.time_s


def test_every_request_runs_under_its_own_rule(player):
    mixed = panel_of(player)
    for rule, spec in enumerate(SPECS):
        order = np.flatnonzero(mixed.rule_of_request == rule).astype(np.int32)
        mine, alone = (player.play(each, order, 1) for each in (mixed, parse_policy(spec)))
        # Some rule of the panel copies, so every batch is looked up.
        assert mine.time_s - mine.deciding_s == pytest.approx(alone.time_s - alone.deciding_s)


def test_a_panel_is_compared_with_the_rules_of_its_own_folds(player):
    def winners(*specs):
        member = (np.arange(len(player.recording)) % 2).astype(np.int32)
        panel = CrossfitPolicy("crossfit:2", (), member, {4: specs})
        return tuned_winners(player, [panel], 8)

    assert winners(SPECS[0], SPECS[0])["static:tuned"].spec == SPECS[0]
    found = winners(SPECS[0], SPECS[1])["static:tuned"]
    assert isinstance(found.contender, CrossfitRule)
    assert found.spec == f"{SPECS[0]} / {SPECS[1]}"
    # Who would pay the keep-alive where only some hold the drafter is nowhere said.
    assert winners(SPECS[0], "fixed:ngram:8") == {}

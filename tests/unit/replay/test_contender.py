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
from wild_policy import WildPolicy

from adaspec.errors import EvaluationError
from adaspec.policy.spec import FORMS, KINDS
from adaspec.replay.contender import parse_contender
from adaspec.replay.player import Player
from adaspec.replay.recording import Recording, build_recording

COST = random_cost(np.random.default_rng(0))
OTHER_ORACLES = ("oracle:ngram", "oracle:plan", "oracle:plan-splice")


def recording_without_neural() -> Recording:
    requests = random_requests(0, 3, tokens=False)
    bare = [
        replace(recorded(request, str(at)), neural_accepted=None)
        for at, request in enumerate(requests)
    ]
    return build_recording(bare, 0)


REFUSED = {
    "drafts with a neural drafter, but the trace recorded none": (
        recording_without_neural(),
        ("fixed:neural:1", "hybrid", "budget:2", "ema", "oracle:neural", "oracle:combine"),
    ),
    f"drafts 6 neural tokens.* end at {NEURAL_CAP}": (
        recording_of(random_requests(0, 3, tokens=True)),
        ("fixed:neural:6", "hybrid:4:5:6", "budget:6", "ema:1,6"),
    ),
    "compares drafted tokens, but the trace holds none": (
        recording_of(random_requests(0, 3, tokens=False)),
        ("hybrid-agree",),
    ),
    "copies from earlier answers": (
        recording_of(random_requests(0, 3, tokens=True)),
        ("fixed:memory", "hybrid-memory", "oracle:combine-memory"),
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_a_trace_cannot_tell_is_not_replayed(said: str) -> None:
    recording, refused = REFUSED[said]
    for spec in refused:
        with pytest.raises(EvaluationError, match=f"'{spec}' {said}"):
            Player(recording, COST, 48).check(parse_contender(spec))


@pytest.mark.parametrize("spec", ["none", "fixed:ngram:5", "hybrid:4:5:0", *OTHER_ORACLES])
def test_what_needs_no_drafter_plays_without_one(spec: str) -> None:
    player = Player(recording_without_neural(), COST, 48)
    contender = parse_contender(spec)
    player.check(contender)
    assert player.play(contender, np.arange(3, dtype=np.int32), 1).tokens_per_s > 0


def test_what_decides_everything_at_once_is_refused_in_an_async_engine() -> None:
    player = Player(recording_of(random_requests(0, 3, tokens=True)), COST, 48, engine="async")
    for spec in ("none", "fixed:neural:2", "hybrid:3:5:2", "budget:2", "ema", "oracle:plan"):
        player.check(parse_contender(spec))
    with pytest.raises(EvaluationError, match=r"asked step by step.*--engine sync"):
        player.check(WildPolicy(0))


def test_every_static_rule_is_among_those_held_against_the_reference() -> None:
    kinds = static_specs(tokens=True)
    # What copies from earlier answers is held against a plain search in test_history.
    for head in FORMS.keys() - {"fixed:memory", "hybrid-memory"}:
        assert find(kinds, lambda spec, head=head: f"{spec}:".startswith(f"{head}:"))
    assert set(FORMS) <= set(KINDS)

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

from adaspec.errors import EvaluationError
from adaspec.policy.spec import FORMS, KINDS
from adaspec.replay.contender import parse_contender
from adaspec.replay.player import Player
from adaspec.replay.recording import Recording, build_recording

COST = random_cost(np.random.default_rng(0))


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


def test_every_static_rule_is_among_those_held_against_the_reference() -> None:
    kinds = static_specs(tokens=True)
    # What copies from earlier answers is held against a plain search in test_history.
    for head in FORMS.keys() - {"fixed:memory", "hybrid-memory"}:
        assert find(kinds, lambda spec, head=head: f"{spec}:".startswith(f"{head}:"))
    assert set(FORMS) <= set(KINDS)

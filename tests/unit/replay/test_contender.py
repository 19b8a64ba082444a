import numpy as np
import pytest
from hypothesis import find
from random_recordings import random_cost, random_requests, recording_of, static_specs

from adaspec.errors import EvaluationError
from adaspec.policy.static import KINDS, StaticPolicy
from adaspec.replay.contender import parse_contender
from adaspec.replay.player import Player

COST = random_cost(np.random.default_rng(0))
TOLD = recording_of(random_requests(0, 3, tokens=True))
REFUSED = [
    (
        "drafts with a neural drafter, but the trace recorded none",
        recording_of(random_requests(0, 3, tokens=False), 0),
        ("fixed:neural:1", "hybrid", "budget:2", "trtllm", "oracle:neural", "oracle:combine"),
    ),
    (
        "drafts 6 neural tokens.* end at 5",
        TOLD,
        ("fixed:neural:6", "hybrid:4:5:6", "budget:6", "trtllm:6"),
    ),
]


@pytest.mark.parametrize(("said", "recording", "refused"), REFUSED)
def test_what_a_trace_cannot_tell_is_not_replayed(said, recording, refused):
    for spec in refused:
        with pytest.raises(EvaluationError, match=f"'{spec}' {said}"):
            Player(recording, COST, 48).check(parse_contender(spec))


def test_every_static_rule_is_among_those_held_against_the_reference():
    kinds = static_specs()
    for head in [head for head, kind in KINDS.items() if kind.policy is StaticPolicy]:
        assert find(kinds, lambda spec, head=head: f"{spec}:".startswith(f"{head}:"))

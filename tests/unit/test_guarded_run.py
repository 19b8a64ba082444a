"""eval/guard replays step by step under a guard: without one, what every replay does."""

import sys

import numpy as np
import pytest
from checkout import CHECKOUT, need
from random_recordings import random_requests, recording_of

from adaspec.cost.load import H100_LLAMA_3_1_8B as COST
from adaspec.policy.protocol import load_policy
from adaspec.policy.static import parse_policy
from adaspec.replay.player import Player

need("eval")
sys.path.append(str(CHECKOUT / "eval" / "guard"))

from guarded_run import GuardedRun  # noqa: E402

CAP, LOAD = 20, 4
ORDER = np.arange(12, dtype=np.int32)
RULE = "hybrid-splice:2:8:3:2:4"


@pytest.mark.parametrize("tokens", [False, True], ids=["without tokens", "with tokens"])
@pytest.mark.parametrize("name", [RULE, "fixed:neural:3", "fixed:ngram:4", "reference-pair-cpu"])
def test_without_a_guard_it_is_the_replay(name, tokens):
    recording = recording_of(random_requests(3, 12, tokens=tokens, output_tokens=(20, 40)), seed=1)
    policy = load_policy(name) if name == "reference-pair-cpu" else parse_policy(name)
    played = Player(recording, COST, CAP).play(policy, ORDER, LOAD)
    found = GuardedRun(recording, policy, ORDER, LOAD, COST, CAP, None, COST).result()
    assert found.time_s == pytest.approx(played.time_s)
    assert (found.tokens, found.drafted, found.accepted, found.neural_steps) == (
        *(played.tokens, played.drafted, played.accepted, played.neural_steps),
    )

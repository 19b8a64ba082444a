"""A panel shares a batch among policies, each deciding for its own requests."""

import numpy as np
import pytest
from random_models import random_policy
from random_recordings import random_cost, random_requests, recording_of

from adaspec.replay.crossfit import CrossfitPolicy
from adaspec.replay.learned import run_learned
from adaspec.train.token_tables import TableMaker


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

"""A panel shares a batch among policies, each deciding for its own requests."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "policy"))

from learned_recordings import random_recording
from random_models import random_policy
from random_recordings import random_cost

from adaspec.replay.crossfit import CrossfitPolicy
from adaspec.replay.learned import run_learned
from adaspec.train.token_tables import TableMaker


def test_a_panel_of_one_policy_many_times_is_that_policy() -> None:
    for seed, kind in enumerate(("bare", "tokens", "confidences")):
        rng = np.random.default_rng(seed)
        recording, cost = random_recording(seed, kind), random_cost(rng)
        tables = TableMaker(recording, 0).make(np.ones(len(recording), np.bool_))
        policy = random_policy(rng, tables, evidence=kind != "bare", cap=48, neural_cap=5)
        order = rng.integers(0, len(recording), 40).astype(np.int32)
        member = rng.integers(0, 3, len(recording)).astype(np.int32)
        panel = CrossfitPolicy("three", (policy,) * 3, member)
        one = run_learned(recording, policy, order, 4, cost, 20)
        assert run_learned(recording, panel, order, 4, cost, 20).time_s == one.time_s


def test_only_the_member_of_a_request_decides_for_it() -> None:
    rng = np.random.default_rng(7)
    recording, cost = random_recording(7, "tokens"), random_cost(rng)
    tables = TableMaker(recording, 0).make(np.ones(len(recording), np.bool_))
    first, second = (
        random_policy(rng, tables, evidence=True, cap=48, neural_cap=5) for _ in range(2)
    )
    member = (np.arange(len(recording)) % 2).astype(np.int32)
    panel = CrossfitPolicy("two", (first, second), member)
    for who, policy in enumerate(panel.policies):
        order = np.flatnonzero(member == who).astype(np.int32)
        alone = run_learned(recording, policy, order, 2, cost, 20)
        # The knobs of pace are the first member's for all.
        swapped = CrossfitPolicy("swapped", (policy, policy), member)
        assert run_learned(recording, swapped, order, 2, cost, 20).time_s == alone.time_s
    mixed = rng.integers(0, len(recording), 40).astype(np.int32)
    speeds = {
        run_learned(recording, each, mixed, 4, cost, 20).time_s for each in (first, second, panel)
    }
    assert len(speeds) == 3

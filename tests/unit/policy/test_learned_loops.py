"""The policy's class behind the loop for any policy and the compiled loop are one."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_recordings import KINDS, random_recording
from random_models import random_policy
from random_recordings import random_cost, with_hidden_overhead

from adaspec.cost.model import CostModel
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.budget import forwards_table
from adaspec.replay.learned import run_learned
from adaspec.replay.loop import run_policy
from adaspec.replay.recording import Recording
from adaspec.replay.result import Result
from adaspec.train.token_tables import TableMaker


def assert_one(
    recording: Recording,
    policy: LearnedPolicy,
    order: np.ndarray,
    concurrency: int,
    cost: CostModel,
    cap: int,
) -> Result:
    slow = run_policy(recording, policy, order, concurrency, cost, cap)
    fast = run_learned(recording, policy, order, concurrency, cost, cap)
    for field in fields(Result):
        if field.name in ("token_s", "request_s"):
            np.testing.assert_allclose(
                getattr(fast, field.name), getattr(slow, field.name), rtol=1e-9
            )
        elif field.name == "time_s":
            assert fast.time_s == pytest.approx(slow.time_s, rel=1e-12)
        elif field.name != "decision_s":
            assert getattr(fast, field.name) == getattr(slow, field.name), field.name
    return fast


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    evidence=st.booleans(),
)
def test_the_class_and_the_compiled_loop_are_one(kind: str, seed: int, evidence: bool) -> None:
    rng = np.random.default_rng(seed)
    # A drafter may draft more than the curves tell of.
    recording = random_recording(seed % 1000, kind, neural_cap=int(rng.choice([5, 5, 12])))
    cap = int(rng.choice([1, 2, 4, 9, 30]))
    policy = random_policy(
        rng,
        TableMaker(recording, 0).make(np.ones(len(recording), np.bool_)),
        evidence=evidence,
        cap=int(rng.choice([2, 6, 48])),
        neural_cap=int(rng.choice([1, 3, 5, 8, 12])),
    )
    policy.forwards_by_load = forwards_table(
        {load: int(rng.choice([0, 1, 2, 3, 5])) for load in (1, 2, 4, 6)}
    )
    order = rng.integers(0, len(recording), 14).astype(np.int32)
    cost = random_cost(rng)
    if rng.random() < 0.3:
        recording = recording.with_prefill()
    cost = with_hidden_overhead(cost)
    assert_one(recording, policy, order, int(rng.integers(1, 6)), cost, cap)

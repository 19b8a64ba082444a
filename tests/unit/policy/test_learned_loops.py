"""The policy's class behind the generic loop and the compiled loop are one."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_recordings import KINDS, random_recording
from random_models import random_policy
from random_recordings import random_cost, with_hidden_overhead

from adaspec.cost.engine import ENGINES, SYNC
from adaspec.cost.model import CostModel, line
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner import stages
from adaspec.policy.planner.late import forwards_table
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
    engine: str = SYNC,
) -> Result:
    slow = run_policy(recording, policy, order, concurrency, cost, cap, engine=engine)
    fast = run_learned(recording, policy, order, concurrency, cost, cap, engine=engine)
    for field in fields(Result):
        if field.name == "token_s":
            np.testing.assert_allclose(fast.token_s, slow.token_s, rtol=1e-12)
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
    engine=st.sampled_from(ENGINES),
)
def test_the_class_and_the_compiled_loop_are_one(
    kind: str, seed: int, evidence: bool, engine: str
) -> None:
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
    policy.forwards = forwards_table(
        {int(load): (int(rng.integers(0, 4)), int(rng.integers(0, 6))) for load in (1, 3)}
    )
    order = rng.integers(0, len(recording), 14).astype(np.int32)
    cost = random_cost(rng)
    if rng.random() < 0.3:
        recording = recording.with_prefill()
    cost = with_hidden_overhead(cost)
    assert_one(recording, policy, order, int(rng.integers(1, 6)), cost, cap, engine)


@pytest.mark.parametrize("kind", ["bare", "confidences"])
def test_they_are_one_while_admission_refuses_and_probes(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = let_go = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        recording = random_recording(seed, kind, requests=12)
        policy = random_policy(
            rng,
            TableMaker(recording, 0).make(np.ones(len(recording), np.bool_)),
            evidence=True,
            cap=48,
            neural_cap=5,
        )
        # The dearer one is refused at once, the cheaper one once it is seen to bring too little.
        drafting = 3.0 if seed % 2 else 0.2
        cost = line("dear drafter", 1.0, 0.05, forward_s=drafting)
        order = rng.integers(0, len(recording), 120).astype(np.int32)
        seen, kept = [], []
        admits, keeps = stages.admits, stages.keeps

        def watched(*facts: object) -> bool:
            seen.append(bool(admits(*facts)))  # noqa: B023
            return seen[-1]  # noqa: B023

        def listening(*facts: object) -> bool:
            kept.append(bool(keeps(*facts)))  # noqa: B023
            return kept[-1]  # noqa: B023

        monkeypatch.setattr(stages, "admits", watched)
        monkeypatch.setattr(stages, "keeps", listening)
        slow = run_policy(recording, policy, order, 4, cost, 20)
        monkeypatch.setattr(stages, "admits", admits)
        monkeypatch.setattr(stages, "keeps", keeps)
        fast = run_learned(recording, policy, order, 4, cost, 20)
        assert fast.time_s == pytest.approx(slow.time_s, rel=1e-12)
        assert (fast.steps, fast.drafted, fast.accepted, fast.neural_steps) == (
            slow.steps,
            slow.drafted,
            slow.accepted,
            slow.neural_steps,
        )
        refused += seen.count(False)
        let_go += kept.count(False)
    assert refused > 50
    assert let_go > 0

"""`bench decide --server` drives the plug-in's own session; nothing here looks at the clock."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from random_models import random_policy

from adaspec.bench import decide, served
from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.policy.learned import LearnedPolicy
from adaspec.predict.tables import packed

FEW = np.empty(0, np.float32)
EMPTY = packed(np.empty(0, np.uint64), FEW, FEW, FEW, (0, 0, 0, 0), 1)


class Idle(served.BusyMachine):
    """A machine on which forwards are only counted."""

    def __init__(self) -> None:
        self.forwards = 0

    def forward(self) -> None:
        self.forwards += 1


def policy_that(*, evidence: bool, neural_cap: int = 5) -> LearnedPolicy:
    return random_policy(
        np.random.default_rng(3), EMPTY, evidence=evidence, cap=20, neural_cap=neural_cap
    )


@pytest.mark.parametrize("neural_cap", [0, 2, 5])
@pytest.mark.parametrize("evidence", [False, True])
def test_every_step_is_decided_between_forwards(evidence: bool, neural_cap: int) -> None:
    machine = Idle()
    policy = policy_that(evidence=evidence, neural_cap=neural_cap)
    batch = served.ServedBatch(policy, H100_LLAMA_3_1_8B, 3, 256, machine)
    for _ in range(40):
        batch.step(timed=True)
    session, figures = batch._session, batch.row(1e-6)
    assert not session.breaker.counts
    assert machine.forwards == 40 * (1 + min(neural_cap, 3))
    assert (figures.served, figures.steps, figures.drafted) == (True, 40, min(neural_cap, 3))
    assert figures.metric_us is not None and figures.median_us is not None
    assert len(batch._metric_s) == 40


def test_what_is_drafted_is_verified_and_matches_as_in_other_steps() -> None:
    batch = served.ServedBatch(policy_that(evidence=True), H100_LLAMA_3_1_8B, 16, 2048, Idle())
    verified = []
    notify = batch._session.observers.notify

    def noted(event: str, *values: object) -> None:
        if event == "verified":
            verified.extend(values)
        notify(event, *values)

    batch._session.observers.notify = noted  # type: ignore[method-assign]
    for _ in range(60):
        batch.step(timed=False)
    assert 0.3 < batch.matched / (16 * 60) < 0.7
    known = np.array([step.known.mean() for step in verified])  # type: ignore[attr-defined]
    # All but the rows whose request has just left.
    assert known.mean() > 0.9
    assert sum(int(step.accepted.sum()) for step in verified) > 0  # type: ignore[attr-defined]


def test_requests_leave_at_their_end_and_others_enter() -> None:
    batch = served.ServedBatch(policy_that(evidence=True), H100_LLAMA_3_1_8B, 2, 32, Idle())
    for _ in range(600):
        batch.step(timed=False)
    assert batch.entered > 2
    assert len(batch._session._running.requests) == 2


def test_the_other_cores_are_busy_until_the_measurement_ends() -> None:
    policy = policy_that(evidence=True)
    with served.BusyMachine() as machine:
        neighbours = machine._neighbours
        assert all(neighbour.poll() is None for neighbour in neighbours)
        made_up = partial(served.ServedBatch, machine=machine)
        found = decide.bench_decide([policy], [64], [1], steps=2, made_up=made_up)
    assert all(neighbour.returncode is not None for neighbour in neighbours)
    assert [row.served for row in found.rows] == [True]

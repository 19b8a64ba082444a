"""`bench decide` measures whole steps of a policy; nothing here looks at the clock."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from random_models import random_policy

from adaspec.bench import decide
from adaspec.errors import BenchError
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.shipped import shipped_policies
from adaspec.predict.tables import packed

FEW = np.empty(0, np.float32)
EMPTY = packed(np.empty(0, np.uint64), FEW, FEW, FEW, (0, 0, 0, 0), 1)


def policy_that(*, evidence: bool, neural_cap: int = 5) -> LearnedPolicy:
    return random_policy(
        np.random.default_rng(3), EMPTY, evidence=evidence, cap=20, neural_cap=neural_cap
    )


def test_policies_take_turns_and_each_has_a_row_with_every_part_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stepped = []
    step = decide.MadeUpBatch.step

    def noted(made_up: decide.MadeUpBatch, timed: bool) -> None:
        if timed:
            stepped.append((made_up.tokens, made_up.batch, made_up.policy.name))
        step(made_up, timed)

    monkeypatch.setattr(decide.MadeUpBatch, "step", noted)
    without, reads = policy_that(evidence=False), policy_that(evidence=True)
    without.name, reads.name = "no evidence", "reads evidence"
    steps = 2 * decide.TURN
    rows = decide.bench_decide([without, reads], [64, 128], [1, 3], steps, cold=True)
    names = (without.name, reads.name)
    cells = [(tokens, batch, name) for tokens in (64, 128) for batch in (1, 3) for name in names]
    assert [(row.context_tokens, row.batch, row.policy) for row in rows] == cells
    assert [cell for cell, _ in itertools.groupby(stepped)] == 2 * cells
    for row in rows:
        assert row.evidence == (row.policy == reads.name)
        assert (row.drafted, row.steps) == (3, steps)
        assert min(row.lookup_us, row.before_us, row.while_us, row.after_us) >= 0
        assert 0 < row.median_us <= row.p99_us
        assert row.reference_us > 0


def test_about_half_of_the_rows_have_a_match_and_drafts_are_accepted() -> None:
    policy = policy_that(evidence=False)
    made_up = decide.MadeUpBatch(policy, 16, 2048, 400, lambda: None)
    for _ in range(60):
        made_up.step(timed=True)
    assert 0.3 < made_up.row(1e-6).matched < 0.7
    assert 1.5 < made_up._position.mean() / 60 < 3.5


def test_what_memory_cannot_hold_is_refused_with_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decide, "free_memory", lambda: 2**30)
    with pytest.raises(BenchError, match=r"1\.0 GiB are free: name fewer"):
        decide.bench_decide([policy_that(evidence=False)], [1 << 20], [8], steps=2)


def test_every_shipped_policy_is_measured_unless_some_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shipped = shipped_policies()
    assert [policy.name for policy in decide.find_benched([])] == list(shipped)
    last = list(shipped)[-1]
    assert [policy.name for policy in decide.find_benched([last, last])] == [last]
    monkeypatch.setattr(decide, "shipped_policies", dict)
    with pytest.raises(BenchError, match=r"no policy is shipped.*--policy DIR.*adaspec train"):
        decide.find_benched([])

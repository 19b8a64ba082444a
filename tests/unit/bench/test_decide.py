"""`bench decide` measures whole steps of a policy; nothing here looks at the clock."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from random_models import random_policy

from adaspec.bench import decide, machine
from adaspec.cost.builtin import H100_LLAMA_3_1_8B
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


def test_a_row_per_policy_batch_and_context_holds_every_part_of_a_step() -> None:
    without, reads = policy_that(evidence=False), policy_that(evidence=True)
    without.name, reads.name = "no evidence", "reads evidence"
    found = decide.bench_decide([without, reads], [64, 128], [1, 3], steps=12)
    asked = [(row.policy, row.evidence, row.context_tokens, row.batch) for row in found.rows]
    cells = [(64, 1), (64, 3), (128, 1), (128, 3)]
    assert asked == [
        (policy.name, evidence, *cell)
        for policy, evidence in ((without, False), (reads, True))
        for cell in cells
    ]
    for row in found.rows:
        assert row.drafted == 3
        assert row.steps == 12
        parts = (row.lookup_us, row.before_us, row.while_us, row.after_us)
        assert all(part is not None and part >= 0 for part in parts)
        assert row.reference_us is not None and row.reference_us > 0
        assert row.first_tenth_us is not None and row.last_tenth_us is not None
    assert 0 < found.first_tenth_mb <= found.peak_mb * 1.01


def test_about_half_of_the_rows_have_a_match() -> None:
    made_up = decide.MadeUpBatch(policy_that(evidence=False), H100_LLAMA_3_1_8B, 16, 2048)
    for _ in range(60):
        made_up.step(timed=False)
    assert 0.3 < made_up.matched / (16 * 60) < 0.7


def test_requests_leave_at_their_end_and_others_enter() -> None:
    made_up = decide.MadeUpBatch(policy_that(evidence=True), H100_LLAMA_3_1_8B, 2, 32)
    for _ in range(600):
        made_up.step(timed=False)
    assert made_up.entered > 2 + 2


def test_an_ngram_only_policy_is_measured_without_a_draft() -> None:
    found = decide.bench_decide([policy_that(evidence=False, neural_cap=0)], [64], [2], steps=3)
    assert found.rows[0].drafted == 0
    assert found.rows[0].median_us is not None


def test_a_batch_that_memory_cannot_hold_is_skipped_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "free_memory", lambda: 1e6)
    found = decide.bench_decide([policy_that(evidence=False)], [64, 1 << 20], [1], steps=2)
    assert [row.skipped is None for row in found.rows] == [True, False]
    assert "GiB are free" in str(found.rows[1].skipped)


def test_without_a_shipped_policy_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "shipped_policies", dict)
    with pytest.raises(BenchError, match=r"no policy is shipped.*--policy DIR.*adaspec train"):
        decide.find_benched([])


def test_every_shipped_policy_is_measured_unless_some_are_named() -> None:
    shipped = shipped_policies()
    assert [policy.name for policy in decide.find_benched([])] == list(shipped)
    last = list(shipped)[-1]
    assert [policy.name for policy in decide.find_benched([last, last])] == [last]


def test_two_policies_of_one_name_are_refused(tmp_path: Path) -> None:
    name, folder = next(iter(shipped_policies().items()))
    shutil.copytree(folder, tmp_path / name)
    with pytest.raises(BenchError, match="another policy is called"):
        decide.find_benched([name, str(tmp_path / name)])


def test_policies_take_turns_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped = []
    step = decide.MadeUpBatch.step

    def noted(made_up: decide.MadeUpBatch, timed: bool) -> None:
        if timed:
            stepped.append((made_up.policy.name, made_up.batch))
        step(made_up, timed)

    monkeypatch.setattr(decide.MadeUpBatch, "step", noted)
    one, other = policy_that(evidence=False), policy_that(evidence=True)
    one.name, other.name = "one", "other"
    decide.bench_decide([one, other], [32], [1, 2], steps=2 * decide.STEPS_PER_ROUND)
    turns = [cell for cell, _ in itertools.groupby(stepped)]
    assert turns == 2 * [("one", 1), ("other", 1), ("one", 2), ("other", 2)]

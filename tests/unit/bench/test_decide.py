"""`bench decide` measures whole steps of a policy; nothing here looks at the clock."""

from __future__ import annotations

import numpy as np
import pytest
from random_models import random_policy

from adaspec.bench import decide
from adaspec.bench.lookup import BenchError
from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.policy.learned import LearnedPolicy
from adaspec.predict.tables import packed

FEW = np.empty(0, np.float32)
EMPTY = packed(np.empty(0, np.uint64), FEW, FEW, FEW, (0, 0, 0, 0), 1)


def policy_that(*, evidence: bool, neural_cap: int = 5) -> LearnedPolicy:
    return random_policy(
        np.random.default_rng(3), EMPTY, evidence=evidence, cap=20, neural_cap=neural_cap
    )


@pytest.mark.parametrize("evidence", [False, True])
def test_a_row_per_batch_and_context_holds_every_part_of_a_step(evidence: bool) -> None:
    found = decide.bench_decide(policy_that(evidence=evidence), [64, 128], [1, 3], steps=12)
    asked = [(row.context_tokens, row.batch) for row in found.rows]
    assert asked == [(64, 1), (64, 3), (128, 1), (128, 3)]
    assert (found.drafted, found.evidence) == (3, evidence)
    for row in found.rows:
        assert row.steps == 12
        parts = (row.lookup_us, row.before_us, row.while_us, row.after_us)
        assert all(part is not None and part >= 0 for part in parts)
        assert row.reference_us is not None and row.reference_us > 0
        assert row.first_tenth_us is not None and row.last_tenth_us is not None
    assert 0 < found.first_tenth_mb <= found.peak_mb * 1.01


def test_about_half_of_the_rows_have_a_match() -> None:
    lane = decide.Lane(policy_that(evidence=False), H100_LLAMA_3_1_8B, 16, 2048)
    for _ in range(60):
        lane.step(timed=False)
    assert 0.3 < lane.matched / (16 * 60) < 0.7


def test_requests_leave_at_their_end_and_others_enter() -> None:
    lane = decide.Lane(policy_that(evidence=True), H100_LLAMA_3_1_8B, 2, 32)
    for _ in range(600):
        lane.step(timed=False)
    assert lane.entered > 2 + 2


def test_an_ngram_only_policy_is_measured_without_a_draft() -> None:
    found = decide.bench_decide(policy_that(evidence=False, neural_cap=0), [64], [2], steps=3)
    assert found.drafted == 0
    assert found.rows[0].median_us is not None


def test_a_batch_that_memory_cannot_hold_is_skipped_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decide, "free_memory", lambda: 1e6)
    found = decide.bench_decide(policy_that(evidence=False), [64, 1 << 20], [1], steps=2)
    assert [row.skipped is None for row in found.rows] == [True, False]
    assert "GiB are free" in str(found.rows[1].skipped)


def test_without_a_shipped_policy_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "shipped_policies", dict)
    with pytest.raises(BenchError, match=r"no policy is shipped.*--policy DIR.*adaspec train"):
        decide.find_benched(None)

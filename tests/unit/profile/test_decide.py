"""`bench decide` measures whole steps of a policy; nothing here looks at the clock."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from random_models import random_policy

from adaspec.errors import BenchError
from adaspec.policy.shipped import shipped_policies
from adaspec.predict.tables import no_tables
from adaspec.profile import decide


def policy_that(*, evidence, neural_cap=5):
    return random_policy(
        np.random.default_rng(3), no_tables(), evidence=evidence, cap=20, neural_cap=neural_cap
    )


def test_policies_follow_each_other_and_each_has_a_row_with_every_part_of_a_step():
    without, reads = policy_that(evidence=False), policy_that(evidence=True)
    without.name, reads.name = "no evidence", "reads evidence"
    rows = decide.bench_decide([without, reads], [64, 128], [1, 3], steps=20, cold=True)
    names = (without.name, reads.name)
    cells = [(tokens, batch, name) for tokens in (64, 128) for batch in (1, 3) for name in names]
    assert [(row.context_tokens, row.batch, row.policy) for row in rows] == cells
    for row in rows:
        assert row.evidence == (row.policy == reads.name)
        assert row.drafted == 3
        assert min(row.lookup_us, row.before_us, row.read_us, row.after_us) >= 0
        assert 0 < row.median_us <= row.p99_us


def test_about_half_of_the_rows_have_a_match_and_drafts_are_accepted(monkeypatch):
    matched, emitted = [], []
    step = decide.Server.step

    def noted(server, said, counts, *rest):
        emitted.append(counts.mean())
        parts = step(server, said, counts, *rest)
        matched.append((server._drafting.predictor.planner.rows.available > 0).mean())
        return parts

    monkeypatch.setattr(decide.Server, "step", noted)
    list(decide.made_up_steps(policy_that(evidence=False), 16, 2048, 60, cold=False))
    assert 0.3 < np.mean(matched) < 0.7
    assert 1.5 < np.mean(emitted) < 3.5


def test_every_shipped_policy_is_measured_unless_some_are_named(monkeypatch):
    shipped = shipped_policies()
    assert [policy.name for policy in decide.find_benched([])] == list(shipped)
    last = list(shipped)[-1]
    assert [policy.name for policy in decide.find_benched([last, last])] == [last]
    monkeypatch.setattr(decide, "shipped_policies", dict)
    with pytest.raises(BenchError, match=r"no policy is shipped.*--policy DIR.*adaspec train"):
        decide.find_benched([])

"""Copies of one request in lockstep: throughputs, weights and intervals."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.model import StepShape
from adaspec.evaluate.batching import weighted

NAMED = "fixed:neural:3"
COST = H100_LLAMA_3_1_8B.without_deciding()


def by_name(report):
    return {(r["workload"], r["concurrency"], r["policy"]): r for r in report["rows"]}


@pytest.fixture(scope="module")
def requests(requests_of):
    return requests_of(count=4)


@pytest.fixture(scope="module")
def rows(requests, report_of):
    return by_name(report_of(requests, [NAMED], batching="lockstep", concurrency=(1, 4)))


def entering_s(copies, prompt):
    """Seconds until all copies have read their prompt, before anything is drafted."""
    return COST.fixed_s + COST.overhead_s + copies * prompt * COST.per_token_s


def plain(request, copies):
    """Tokens per second of a request's copies without speculation, step by step."""
    prompt, length = len(request.prompt_tokens), len(request.output_tokens)
    seconds = entering_s(copies, prompt)
    seconds += sum(COST.step_s(StepShape(copies, copies * (prompt + p))) for p in range(1, length))
    return copies * (length - 1) / seconds


def drafting(request, copies, k):
    """The same with k neural tokens in every step."""
    prompt, length = len(request.prompt_tokens), len(request.output_tokens)
    position = 1
    seconds = entering_s(copies, prompt) + copies * prompt * COST.draft_prompt_s
    while position < length:
        seconds += COST.step_s(
            StepShape(
                copies,
                copies * (prompt + position),
                neural=copies * k,
                forwards=k,
                holds_neural=True,
            )
        )
        position += min(int(request.neural_accepted[position]), k) + 1
    return copies * (length - 1) / seconds


@pytest.mark.parametrize("copies", [1, 4])
def test_a_workload_is_the_mean_over_its_requests(rows, requests, copies):
    edits = [r for r in requests if r.workload == "edits"]
    found = rows["edits", copies, "none"]["tokens_per_s"]
    assert found == pytest.approx(np.mean([plain(r, copies) for r in edits]))
    found = rows["edits", copies, NAMED]["tokens_per_s"]
    assert found == pytest.approx(np.mean([drafting(r, copies, 3) for r in edits]))


def test_all_weighs_workloads_alike_however_many_requests_they_have(requests, report_of):
    uneven = [r for r in requests if r.workload == "edits" or r.id == "0-0"]
    rows = by_name(report_of(uneven, [NAMED], batching="lockstep", concurrency=(2,)))
    parts = [rows[name, 2, NAMED]["tokens_per_s"] for name in ("edits", "talk")]
    assert rows["all", 2, NAMED]["tokens_per_s"] == pytest.approx(np.mean(parts))
    # One request says nothing of others, nor does a mix that holds it.
    assert rows["edits", 2, NAMED]["ci95"] is not None
    assert rows["talk", 2, NAMED]["ci95"] is None
    assert rows["all", 2, NAMED]["ci95"] is None


def test_weights_are_per_workload_along_the_last_axis():
    speeds = np.array([[1.0, 3.0, 10.0], [2.0, 2.0, 0.0]])
    workload = np.array([0, 0, 1], np.int32)
    everyone = np.arange(3, dtype=np.int32)
    assert weighted(speeds, workload, everyone).tolist() == [6.0, 1.0]
    assert weighted(speeds, workload, everyone[:2]).tolist() == [2.0, 2.0]


def test_winners_agree_with_their_own_rows(rows):
    for (_, _, policy), row in rows.items():
        if policy == "static:best":
            key = (row["workload"], row["concurrency"], "fixed:best")
            assert row["tokens_per_s"] >= rows[key]["tokens_per_s"]
            assert rows[key]["tokens_per_s"] >= row["tokens_per_s"] / row["speedup"]


def test_without_resamples_there_are_no_intervals(requests, report_of):
    found = report_of(requests, [NAMED], batching="lockstep", concurrency=(1,), resamples=0)
    assert all(row["ci95"] is None for row in found["rows"])
    assert all(entry["lift_ci95"] is None for entry in found["headline"])

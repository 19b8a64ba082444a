"""What `eval --json` promises, held against the replay itself."""

import copy

import pytest
from synthetic import without_drafts

from adaspec.evaluate.report import EvaluationReport

pytestmark = pytest.mark.slow

NAMED = "hybrid-splice:4:20:2:2:5"
CELL = {"workload", "concurrency", "policy"}
ROW = CELL | {"tokens_per_s", "speedup", "ci95", "neural_steps_share", "detail"}
ROW |= {"accepted_per_step", "drafted_per_step", "latencies"}
ENDS = ("", "_ci95")
HEADLINE = CELL | {"lift_over_static_best", "lift_ci95", "gap_closed", "worst_workload_lift"}
HEADLINE |= {f"lift_over_{rival}{end}" for rival in ("vllm_best", "suffix") for end in ENDS}
HEADLINE |= {"decide_share_of_step"}
WINNERS = {"vllm:best", "trtllm:K", "online:K", "static:best"}
BOUNDS = {"oracle:combine", "oracle:plan-splice"}


@pytest.fixture(scope="module")
def report(requests_of, report_of):
    return report_of(requests_of(), [NAMED], orders=2)


@pytest.fixture(scope="module")
def rows(report):
    return by_name(report)


def by_name(report):
    return {(r["workload"], r["concurrency"], r["policy"]): r for r in report["rows"]}


def test_a_report_has_the_keys_that_the_design_fixes(report):
    assert {"schema", "cost", "traces", "rows", "headline"} <= set(report)
    assert report["schema"] == 1
    assert report["cost"] == "h100-llama-3.1-8b"
    assert report["engine"] == "sync"
    assert all(set(row) == ROW for row in report["rows"])
    assert all(set(entry) == HEADLINE for entry in report["headline"])


def test_every_figure_of_the_headline_is_shown(report):
    filled = copy.deepcopy(report)
    for entry in filled["headline"]:
        unknown = [key for key, value in entry.items() if value is None]
        entry |= {key: [0.1, 0.3] if key.endswith("ci95") else 0.2 for key in unknown}
    shown = str(EvaluationReport(filled))
    for key in HEADLINE - CELL:
        changed = copy.deepcopy(filled)
        for entry in changed["headline"]:
            entry[key] = [0.125, 0.375] if key.endswith("ci95") else 0.125
        assert str(EvaluationReport(changed)) != shown, key


def test_every_workload_and_the_mix_have_a_row_for_everything_that_ran(rows):
    cells = {(workload, n) for workload, n, _ in rows}
    assert cells == {(workload, n) for workload in ("all", "edits", "talk") for n in (1, 4)}
    for workload, n in cells:
        names = {policy for w, m, policy in rows if (w, m) == (workload, n)}
        assert names == {"none", NAMED, *WINNERS, *BOUNDS}


def test_rows_say_latency_and_speedup_over_none_and_winners_say_their_spec(rows):
    for (workload, n, policy), row in rows.items():
        for taken_s in row["latencies"].values():
            assert 0 < taken_s["p50"] <= taken_s["p95"] <= taken_s["p99"]
        always = {"score", "load"}
        assert row["detail"].keys() - always == ({"spec"} if policy in WINNERS else set())
        none = rows[workload, n, "none"]["tokens_per_s"]
        assert row["speedup"] == pytest.approx(row["tokens_per_s"] / none)
        low, high = row["ci95"]
        assert low <= row["speedup"] <= high
    assert rows["all", 1, "none"]["ci95"] == [1.0, 1.0]


def test_a_trace_without_neural_drafts_has_nulls_for_what_needs_them(requests_of, report_of):
    found = report_of(map(without_drafts, requests_of()), ["fixed:ngram:8:2"], cap=0)
    names = {row["policy"] for row in found["rows"]}
    best = {"vllm:best", "online:K", "static:best"}
    assert names == {"none", "fixed:ngram:8:2", *best, "oracle:plan-splice"}
    assert all(row["neural_steps_share"] in (0, None) for row in found["rows"])
    assert all(entry["lift_over_static_best"] is not None for entry in found["headline"])
    assert any("no neural drafts" in note for note in found["notes"])


def test_one_request_says_nothing_of_others(requests_of, report_of):
    found = report_of(requests_of(count=1, workloads=1), [NAMED])
    assert all(row["ci95"] is None and row["tokens_per_s"] > 0 for row in found["rows"])
    assert all(entry["lift_ci95"] is None for entry in found["headline"])
    assert sum("has one request" in note for note in found["notes"]) == 1


def test_the_seed_decides_everything_and_prompts_that_are_not_read_make_faster(
    requests_of, report_of
):
    one, again, other, free = (
        report_of(requests_of(), [NAMED], concurrency=(4,), **options)
        for options in ({}, {}, {"seed": 1}, {"prefill": False})
    )
    assert one == again
    for policy in ("none", NAMED):
        speeds = [by_name(each)["all", 4, policy]["tokens_per_s"] for each in (one, other, free)]
        assert speeds[1] != speeds[0] < speeds[2]

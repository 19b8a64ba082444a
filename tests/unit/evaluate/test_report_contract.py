"""What `eval --json` promises, held against the replay itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.evaluate.grids import GRIDS, grid_of
from adaspec.replay.contender import parse_contender
from adaspec.replay.orders import draw_orders
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording

pytestmark = pytest.mark.slow

NAMED = "hybrid-splice:4:20:2:2:5"
ROW = {
    "workload",
    "concurrency",
    "policy",
    "tokens_per_s",
    "speedup",
    "ci95",
    "accepted_per_step",
    "drafted_per_step",
    "neural_steps_share",
    "detail",
}
HEADLINE = {
    "workload",
    "concurrency",
    "policy",
    "lift_over_static_best",
    "lift_ci95",
    "lift_over_static_tuned",
    "lift_over_static_tuned_ci95",
    "lift_over_static_fresh",
    "lift_over_static_fresh_ci95",
    "lift_over_static_memory",
    "lift_over_static_memory_ci95",
    "lift_over_suffix",
    "lift_over_suffix_ci95",
    "lift_over_static_one",
    "lift_over_adaptive_best",
    "lift_over_adaptive_best_ci95",
    "lift_over_hybrid_best",
    "lift_over_fixed_best",
    "lift_over_fixed_best_ci95",
    "gap_closed",
    "gap_closed_combine",
    "worst_workload_lift",
    "decide_share_of_step",
}
BASELINES = ["fixed:best", "hybrid:best", "static:best", "static:one", "adaptive:best"]
LOOP_ORACLES = [f"oracle:{kind}" for kind in ("ngram", "neural", "combine", "plan", "plan-splice")]
DP = ["oracle:dp", "oracle:dp-splice"]


@pytest.fixture(scope="module")
def report(requests_of, report_of):
    return report_of(requests_of(), [NAMED])


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


def test_every_workload_and_the_mix_have_a_row_for_everything_that_ran(rows):
    cells = {(workload, n) for workload, n, _ in rows}
    assert cells == {(workload, n) for workload in ("all", "edits", "talk") for n in (1, 4)}
    for workload, n in cells:
        names = {policy for w, m, policy in rows if (w, m) == (workload, n)}
        expected = {"none", NAMED, *BASELINES, *LOOP_ORACLES}
        assert names == expected | (set(DP) if n == 1 else set())


def test_rows_say_latency_and_winners_say_their_spec_and_edges(rows):
    for (_, _, policy), row in rows.items():
        latency = row["detail"]["latency_s"]
        assert 0 < latency["median"] <= latency["p95"]
        assert ("spec" in row["detail"]) == (policy in BASELINES)


def test_no_winner_lies_on_an_edge_but_that_of_the_trace(rows):
    for (_, _, policy), row in rows.items():
        if policy in ("static:best", "hybrid:best", "fixed:best", "static:one"):
            # Neural drafts end at 8 tokens in these traces.
            assert set(row["detail"]["edge"]) <= {"K=8", "KE=8"}


def grew(settings, start):
    """Whether a grid of so many settings has grown around some winners, and no further."""
    return start <= settings < start + 1000


def test_none_is_the_measure_of_speedups(rows):
    for (workload, n, _), row in rows.items():
        none = rows[workload, n, "none"]["tokens_per_s"]
        assert row["speedup"] == pytest.approx(row["tokens_per_s"] / none)
        low, high = row["ci95"]
        assert low <= row["speedup"] <= high
    assert rows["all", 1, "none"]["ci95"] == [1.0, 1.0]


def test_lifts_and_gaps_follow_from_the_rows(report, rows):
    for entry in report["headline"]:
        workload, n = entry["workload"], entry["concurrency"]

        def speed(policy, workload=workload, n=n):
            return rows[workload, n, policy]["tokens_per_s"]

        mine = speed(NAMED)
        for opponent in BASELINES:
            key = f"lift_over_{opponent.replace(':', '_')}"
            assert entry[key] == pytest.approx(mine / speed(opponent) - 1), key
        low, high = entry["lift_ci95"]
        assert low <= entry["lift_over_static_best"] <= high
        for key, oracle in (("gap_closed", "plan-splice"), ("gap_closed_combine", "combine")):
            start, bound = speed("fixed:best"), speed(f"oracle:{oracle}")
            if bound - start >= 0.05 * speed("none"):
                assert entry[key] == pytest.approx((mine - start) / (bound - start))
            else:
                assert entry[key] is None
        alone = [
            rows[name, n, NAMED]["tokens_per_s"] / rows[name, n, "static:best"]["tokens_per_s"] - 1
            for name in ("edits", "talk")
        ]
        assert entry["worst_workload_lift"] == pytest.approx(min(alone))
        assert entry["lift_over_static_tuned"] is None
        assert 0 <= entry["decide_share_of_step"] < 0.1


def test_winners_are_the_best_of_all_settings_by_brute_force(requests_of, rows, report):
    recording = build_recording(requests_of(), 8).with_prefill(H100_LLAMA_3_1_8B)
    player = Player(recording, H100_LLAMA_3_1_8B, 48)
    specs = [setting.spec for setting in grid_of(player.recording)]
    # Grids grow by whatever lies beyond an edge on which somebody wins.
    won = {row["detail"]["spec"] for row in report["rows"] if "spec" in row["detail"]}
    specs += sorted(
        spec for spec in won - {*specs} if spec.startswith(tuple(grid.head for grid in GRIDS))
    )
    assert grew(report["settings"], len(specs))
    policies = [parse_contender(spec) for spec in specs]
    speeds = np.array(
        [
            [
                np.mean([player.play(policy, order, n).tokens_per_s for order in orders])
                for n, orders in (
                    (n, draw_orders(player.recording, "talk", n, 0, 2)) for n in (1, 4)
                )
            ]
            for policy in policies
        ]
    )
    families = {
        "static:best": lambda spec: True,
        "hybrid:best": lambda spec: spec.startswith("hybrid:"),
        "fixed:best": lambda spec: spec.startswith(("fixed:ngram", "fixed:neural:", "none")),
    }
    for at, n in enumerate((1, 4)):
        for name, member in families.items():
            best = max(s for s, p in zip(speeds[:, at], policies, strict=True) if member(p.name))
            assert rows["talk", n, name]["tokens_per_s"] == pytest.approx(best), (name, n)
        geometric = speeds[np.argmax(np.prod(speeds, axis=1)), at]
        assert rows["talk", n, "static:one"]["tokens_per_s"] == pytest.approx(geometric)


def test_adaptive_best_is_the_best_of_budgets_and_ema(requests_of, rows):
    recording = build_recording(requests_of(), 8).with_prefill(H100_LLAMA_3_1_8B)
    player = Player(recording, H100_LLAMA_3_1_8B, 48)
    for n in (1, 4):
        orders = draw_orders(player.recording, "talk", n, 0, 2)
        row = rows["talk", n, "adaptive:best"]

        def speed(spec, orders=orders, n=n):
            policy = parse_contender(spec)
            return np.mean([player.play(policy, order, n).tokens_per_s for order in orders])

        assert row["tokens_per_s"] == pytest.approx(speed(row["detail"]["spec"]))
        rivals = ["ema", *(f"budget:{k}" for k in range(1, 9))]
        assert all(row["tokens_per_s"] >= speed(spec) - 1e-9 for spec in rivals)


def test_a_named_policy_that_wins_has_a_lift_of_exactly_nothing(requests_of, report_of, rows):
    spec = rows["edits", 4, "static:best"]["detail"]["spec"]
    found = report_of(requests_of(), [spec])
    entry = next(e for e in found["headline"] if (e["workload"], e["concurrency"]) == ("edits", 4))
    assert entry["lift_over_static_best"] == 0.0
    assert entry["lift_ci95"] == [0.0, 0.0]


def test_a_trace_without_neural_drafts_has_nulls_for_what_needs_them(requests_of, report_of):
    plain = [
        replace(r, neural_accepted=None, drafted_tokens=None, confidences=None)
        for r in requests_of()
    ]
    found = report_of(plain, ["fixed:ngram:8:2"], cap=0)
    names = {row["policy"] for row in found["rows"]}
    assert {"oracle:neural", "oracle:combine", "adaptive:best"}.isdisjoint(names)
    assert {"oracle:ngram", "oracle:plan", "static:best"} <= names
    assert all(row["neural_steps_share"] in (0, None) for row in found["rows"])
    for entry in found["headline"]:
        assert entry["lift_over_adaptive_best"] is None
        assert entry["gap_closed_combine"] is None
        assert entry["lift_over_static_best"] is not None
    assert any("no neural drafts" in note for note in found["notes"])
    # Fixed n-gram, hybrids without neural tokens, and none.
    assert grew(found["settings"], 24 + 7 * 7 + 1)


def test_a_short_neural_cap_cuts_the_grids(requests_of, report_of):
    found = report_of(requests_of(cap=3), ["hybrid:4:16:3"], cap=3, concurrency=(2,))
    # none, n-gram; K up to 3; KE 0..3 of 0..4; KE 1..3 of 1..4; all that agree, with KE 1..3; and
    # of those that stop by confidence K 2 and 3, KE 2 and 3 of 2, 3, 5, 8.
    start = 1 + 24 + 3 + 245 * 4 // 5 + 6480 * 3 // 4 + 405 + 2 * 9 + 1728 // 2
    assert grew(found["settings"], start)


def test_a_single_workload_is_its_own_mix(requests_of, report_of):
    found = report_of(requests_of(workloads=1), [NAMED])
    assert {row["workload"] for row in found["rows"]} == {"all", "edits"}


def test_one_request_per_workload_gets_figures_but_no_intervals(requests_of, report_of):
    found = report_of(requests_of(count=1), [NAMED])
    assert all(row["ci95"] is None and row["tokens_per_s"] > 0 for row in found["rows"])
    assert all(entry["lift_ci95"] is None for entry in found["headline"])
    assert sum("has one request" in note for note in found["notes"]) == 2


def test_prefill_makes_everything_slower_and_ratios_smaller(requests_of, report_of, rows):
    free = by_name(report_of(requests_of(), [NAMED], prefill=False))
    for key, row in rows.items():
        if key[2] in ("none", NAMED):
            assert row["tokens_per_s"] < free[key]["tokens_per_s"]
    speedup = rows["all", 1, NAMED]["speedup"]
    assert 1 < speedup < free["all", 1, NAMED]["speedup"]


def test_in_an_async_engine_rules_pay_for_what_they_cannot_know(requests_of, report_of, rows):
    found = report_of(requests_of(), [NAMED], engine="async")
    assert found["engine"] == "async"
    sync, late = rows, by_name(found)
    for key, row in late.items():
        # Plain decoding and what knows all in advance lose nothing, and the overhead is hidden.
        if key[2] == "none" or key[2].startswith("oracle:"):
            assert row["tokens_per_s"] > sync[key]["tokens_per_s"]
    hidden = by_name(report_of(requests_of(), [NAMED], cost=H100_LLAMA_3_1_8B.under("async")))
    for load in {load for _, load, _ in late}:
        key = ("all", load, NAMED)
        assert late[key]["tokens_per_s"] < hidden[key]["tokens_per_s"]


def test_without_keep_alive_hybrids_gain_and_plain_decoding_does_not(requests_of, report_of, rows):
    free = replace(H100_LLAMA_3_1_8B, keep_alive_forwards=0)
    found = by_name(report_of(requests_of(), [NAMED], cost=free))
    assert found["all", 1, NAMED]["tokens_per_s"] > rows["all", 1, NAMED]["tokens_per_s"]
    assert found["all", 1, "none"]["tokens_per_s"] == rows["all", 1, "none"]["tokens_per_s"]


def test_deciding_is_charged_to_those_who_decide_and_to_nobody_else(requests_of, report_of):
    requests = requests_of(count=2, workloads=1)
    quick = {"concurrency": (4,), "orders": 1, "resamples": 0}
    named = ["fixed:ngram:8:2", "hybrid:2:8:3", "fixed:neural:3"]
    found = report_of(requests, named, **quick)
    charged = by_name(found)
    free = by_name(report_of(requests, named, free_decisions=True, **quick))
    for policy in ("fixed:ngram:8:2", "hybrid:2:8:3"):
        row = charged["edits", 4, policy]
        assert row["tokens_per_s"] < free["edits", 4, policy]["tokens_per_s"]
    for policy in ("none", "fixed:neural:3", "oracle:combine"):
        same = free["edits", 4, policy]["tokens_per_s"]
        assert charged["edits", 4, policy]["tokens_per_s"] == same
    shares = {e["policy"]: e["decide_share_of_step"] for e in found["headline"]}
    assert shares.pop("fixed:neural:3") == 0
    assert all(0 < share < 0.1 for share in shares.values())


def test_the_seed_decides_everything(requests_of, report_of, report):
    assert report_of(requests_of(), [NAMED]) == report
    other = report_of(requests_of(), [NAMED], seed=1)
    assert by_name(other)["all", 4, "none"] != by_name(report)["all", 4, "none"]


def test_more_orders_and_resamples_move_only_what_they_should(requests_of, report_of, report):
    found = report_of(requests_of(), [NAMED], resamples=5)
    for mine, theirs in zip(found["rows"], report["rows"], strict=True):
        assert mine["tokens_per_s"] == theirs["tokens_per_s"]
    assert report_of(requests_of(), [NAMED], resamples=0)["rows"][1]["ci95"] is None

"""Headline formulas, on cells whose throughputs are given."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.evaluate.cell_result import CellResult, Measure

SPEEDS = {
    "none": 100.0,
    "mine": 240.0,
    "static:best": 200.0,
    "static:one": 192.0,
    "adaptive:best": 160.0,
    "hybrid:best": 200.0,
    "fixed:best": 150.0,
    "oracle:plan-splice": 300.0,
    "oracle:combine": 270.0,
}


def cell(replicates=None, **changes):
    """A cell with these throughputs; None takes a row away."""
    speeds = {k: v for k, v in (SPEEDS | changes).items() if v is not None}
    measures = {k: Measure(v, decision_share=0.01) for k, v in speeds.items()}
    return CellResult({}, {}, measures, replicates or {})


def entry(found, alone=()):
    return found.headline((None, 8), "mine", list(alone))


def test_a_lift_is_the_ratio_to_the_opponent_minus_1():
    found = entry(cell())
    assert found["lift_over_static_best"] == pytest.approx(0.2)
    assert found["lift_over_static_one"] == pytest.approx(0.25)
    assert found["lift_over_adaptive_best"] == pytest.approx(0.5)
    assert found["lift_over_hybrid_best"] == pytest.approx(0.2)
    assert found["lift_over_fixed_best"] == pytest.approx(0.6)
    assert found["decide_share_of_step"] == 0.01


def test_the_gap_runs_from_fixed_best_to_the_oracle():
    found = entry(cell())
    assert found["gap_closed"] == pytest.approx(90 / 150)
    assert found["gap_closed_combine"] == pytest.approx(90 / 120)


def test_there_is_no_gap_to_close_where_the_oracle_is_no_better_than_fixed_best():
    """oracle:combine is no bound in mixed batches."""
    assert entry(cell(**{"oracle:combine": 150.0}))["gap_closed_combine"] is None
    assert entry(cell(**{"oracle:combine": 140.0}))["gap_closed_combine"] is None


def test_a_gap_under_a_twentieth_of_nones_speed_is_none_to_take_a_share_of():
    assert entry(cell(**{"oracle:combine": 154.9}))["gap_closed_combine"] is None
    assert entry(cell(**{"oracle:plan-splice": 154.9}))["gap_closed"] is None
    assert entry(cell(**{"oracle:combine": 155.0}))["gap_closed_combine"] == pytest.approx(18)


def test_what_did_not_run_is_null():
    found = entry(cell(**{"adaptive:best": None, "oracle:combine": None}))
    assert found["lift_over_adaptive_best"] is None
    assert found["gap_closed_combine"] is None
    assert found["lift_over_static_tuned"] is None
    assert found["lift_ci95"] is None


def test_the_worst_workload_is_the_least_lift_over_workloads_alone():
    found = entry(cell(), [cell(mine=180.0), cell(mine=260.0)])
    assert found["worst_workload_lift"] == pytest.approx(-0.1)
    assert entry(cell(), [])["worst_workload_lift"] is None


def test_the_interval_of_a_lift_is_paired_and_around_the_lift():
    replicates = {"mine": np.array([200.0, 260.0]), "static:best": np.array([100.0, 130.0])}
    # Both fast or both slow together: the ratio is 2 in each replicate and does not vary.
    assert entry(cell(replicates))["lift_ci95"] == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize("rival", ["adaptive", "fixed"])
def test_each_kind_of_vllms_own_methods_has_an_interval_of_its_own(rival):
    replicates = {"mine": np.array([240.0, 300.0]), f"{rival}:best": np.array([120.0, 120.0])}
    found = entry(cell(replicates))
    low, high = found[f"lift_over_{rival}_best_ci95"]
    assert low < found[f"lift_over_{rival}_best"] < high
    other = {"adaptive": "fixed", "fixed": "adaptive"}[rival]
    assert found[f"lift_over_{other}_best_ci95"] is None


def test_against_itself_the_interval_is_exactly_zero():
    speeds = np.array([201.7, 260.3, 199.9])
    found = cell({"mine": speeds, "static:best": speeds}, mine=201.7, **{"static:best": 201.7})
    assert entry(found)["lift_over_static_best"] == 0.0
    assert entry(found)["lift_ci95"] == [0.0, 0.0]

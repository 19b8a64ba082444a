"""Measures of several runs, and headline formulas on cells whose throughputs are given."""

import numpy as np
import pytest

from adaspec.evaluate.cell_result import CellResult, Measure, average, measure
from adaspec.replay.closed_loop import Result

SPEEDS = {
    "none": 100.0,
    "mine": 240.0,
    "static:best": 200.0,
    "vllm:best": 150.0,
    "oracle:plan-splice": 300.0,
}


def cell(replicates=None, **changes):
    """A cell with these throughputs; None takes a row away."""
    speeds = {k: v for k, v in (SPEEDS | changes).items() if v is not None}
    measures = {k: Measure(v, decision_share=0.01) for k, v in speeds.items()}
    return CellResult({}, {}, measures, replicates or {})


def entry(found, alone=()):
    return found.headline((None, 8), "mine", list(alone))


def test_lifts_are_ratios_to_opponents_and_gaps_run_from_vllm_best_to_foresight():
    found = entry(cell(), [cell(mine=180.0), cell(mine=260.0)])
    figures = {key: value for key, value in found.items() if isinstance(value, float)}
    assert figures == pytest.approx(
        {
            "lift_over_static_best": 0.2,
            "lift_over_vllm_best": 0.6,
            "decide_share_of_step": 0.01,
            "gap_closed": 90 / 150,
            "worst_workload_lift": -0.1,
        }
    )


@pytest.mark.parametrize(
    ("oracle", "closed"), [(None, None), (140.0, None), (150.0, None), (154.9, None), (155.0, 18)]
)
def test_there_is_no_gap_to_close_under_a_twentieth_of_nones_speed(oracle, closed):
    """Foresight plans greedily: it is no bound in mixed batches."""
    found = entry(cell(**{"oracle:plan-splice": oracle}))["gap_closed"]
    assert found == (closed and pytest.approx(closed))


def test_the_interval_of_a_lift_is_paired_and_around_the_lift():
    replicates = {"mine": np.array([200.0, 260.0]), "static:best": np.array([100.0, 130.0])}
    # Both fast or both slow together: the ratio is 2 in each replicate and does not vary.
    assert entry(cell(replicates))["lift_ci95"] == pytest.approx([0.2, 0.2])


def result(**changes):
    given = {"tokens": 100.0, "time_s": 10.0, "steps": 40.0, "row_steps": 80.0, "accepted": 20.0}
    given |= {"drafted": 60.0, "neural_steps": 10.0, "request_s": np.array([1.0, 2.0])}
    return Result(**(given | changes))


def test_throughput_is_the_mean_over_runs_and_shares_are_over_all_of_them():
    given = {"accepted": 60.0, "row_steps": 120.0, "drafted": 40.0, "steps": 60.0}
    long = result(time_s=90.0, deciding_s=4.0, token_s=np.arange(51.0, 101.0), **given)
    found = measure([result(deciding_s=1.0, token_s=np.arange(51.0)), long])
    assert found.tokens_per_s == pytest.approx((10 + 100 / 90) / 2)
    assert found.accepted_per_step == pytest.approx(80 / 200)
    assert found.drafted_per_step == pytest.approx(100 / 200)
    assert found.neural_steps_share == pytest.approx(20 / 100)
    assert (found.token_s_median, found.token_s_p95) == (50.0, 95.0)
    assert found.decision_share == 5 / 100


def test_over_folds_throughputs_and_replicates_are_averaged_and_winners_listed():
    folds = []
    for speed, spec in ((100.0, "hybrid:4"), (200.0, "fixed:neural:3"), (300.0, "hybrid:4")):
        measures = {"none": Measure(speed, *[0.5] * 6), "static:best": Measure(2.0, *[0.1] * 6)}
        replicates = {"none": np.array([speed - 10.0, speed + 10.0])}
        folds.append(CellResult({"static:best": spec}, {}, measures, replicates, speed))
    folds[2].measures["mine"] = folds[2].measures["none"]
    found = average(folds)
    assert found.measures == {
        "none": Measure(200.0, *[0.5] * 6),
        "static:best": Measure(2.0, *[pytest.approx(0.1)] * 6),
    }
    assert found.winners == {"static:best": "hybrid:4, fixed:neural:3"}
    assert found.replicates["none"].tolist() == [190.0, 210.0]
    assert found.variance_ratio == 300.0

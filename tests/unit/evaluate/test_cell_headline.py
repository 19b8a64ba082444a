import numpy as np
import pytest

from adaspec.evaluate.cell_result import CellResult, Measure, measure
from adaspec.evaluate.options import Options
from adaspec.replay.loop import Result, gap_seconds

GAPS = len(gap_seconds())

SPEEDS = {
    "none": 100.0,
    "mine": 240.0,
    "static:best": 200.0,
    "vllm:best": 150.0,
    "oracle:plan-splice": 300.0,
}


def measured(score, other=0.01):
    return Measure(score, *[other] * 5, np.full(3, other), np.full((4, 3), other))


def cell(replicates=None, **changes):
    """A cell with these throughputs; None takes a row away."""
    speeds = {k: v for k, v in (SPEEDS | changes).items() if v is not None}
    measures = {k: measured(v) for k, v in speeds.items()}
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
    given |= {"first_s": np.array([0.2, 0.4]), "gaps": np.zeros(GAPS, np.int64)}
    given |= {"load_s": np.array([1.0, 5.0, 4.0])}
    return Result(**(given | changes))


def test_throughput_is_the_mean_over_runs_and_shares_are_over_all_of_them():
    given = {"accepted": 60.0, "row_steps": 120.0, "drafted": 40.0, "steps": 60.0}
    long = result(time_s=90.0, deciding_s=4.0, token_s=np.arange(51.0, 101.0), **given)
    long.gaps[[100, 900]] = 94, 6
    found = measure([result(deciding_s=1.0, token_s=np.arange(51.0)), long], Options())
    assert found.tokens_per_s == pytest.approx((10 + 100 / 90) / 2)
    assert found.accepted_per_step == pytest.approx(80 / 200)
    assert found.drafted_per_step == pytest.approx(100 / 200)
    assert found.neural_steps_share == pytest.approx(20 / 100)
    assert found.decision_share == 5 / 100
    assert found.load.tolist() == [0, 1, 2]
    first_s, token_s, gap_s, request_s = found.latencies
    assert token_s.tolist() == [50.0, 95.0, 99.0]
    assert gap_s.tolist() == [gap_seconds()[at] for at in (100, 900, 900)]
    assert (first_s[0], request_s[0]) == pytest.approx((0.3, 1.5))


def test_goodput_counts_requests_that_were_served_within_their_time():
    run = result(token_s=np.array([0.1, 0.2]), deciding_s=0.0)
    for goal, well in (
        ({"slo_ttft_ms": 300.0}, 1),
        ({"slo_tpot_ms": 150.0, "slo_ttft_ms": 500.0}, 1),
        ({"slo_tpot_ms": 50.0}, 0),
        ({"slo_tpot_ms": 200.0}, 2),
    ):
        assert measure([run], Options(**goal)).score == well / 10
    assert measure([run], Options()).score == 10

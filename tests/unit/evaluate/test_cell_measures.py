"""What a report says of several runs."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.evaluate.cell_result import measure
from adaspec.replay.result import Result


def result(**changes):
    given = {
        "tokens": 100.0,
        "time_s": 10.0,
        "steps": 40.0,
        "row_steps": 80.0,
        "accepted": 20.0,
        "drafted": 60.0,
        "neural_steps": 10.0,
        "deciding_s": 0.0,
        "token_s": np.array([0.1, 0.2]),
        "request_s": np.array([1.0, 2.0]),
    }
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

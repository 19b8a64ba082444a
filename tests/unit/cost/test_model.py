"""The builtin cost model."""

import json

import numpy as np
import pytest
from checkout import CHECKOUT, need
from msgspec import structs

from adaspec.cost.fit import MeasuredStep, fit_cost
from adaspec.cost.load import BUILTIN
from adaspec.cost.model import StepShape


def test_who_decides_in_each_step_is_charged_for_the_step_and_for_every_row():
    cost, shape = BUILTIN["h100-llama-3.1-8b"].without_deciding(), StepShape(8, 4_000)
    deciding = structs.replace(cost, decide_s=10.0, decide_per_row_s=2.0)
    assert deciding.step_s(shape) - cost.step_s(shape) == pytest.approx(26.0)
    assert deciding.without_deciding() == cost


def test_the_builtin_table_is_fitted_to_the_steps_that_a_gpu_took():
    need("eval")
    report = CHECKOUT / "eval" / "reports" / "gpu-h100" / "report.json"
    timed = json.loads(report.read_text())["costs"]["v2"]["steps"]
    keys = ("batch", "tokens", "context_tokens", "forwards", "step_s")
    steps = [MeasuredStep(*(row[key] for key in keys)) for row in timed]
    builtin = BUILTIN["h100-llama-3.1-8b"]
    sizes = [size for size in builtin.tokens if size <= builtin.largest_graph]
    cost, fit = fit_cost(steps, "fitted", sizes)
    for name in ("context_s", "forward_s", "forward_per_row_s", "outside_graphs_s"):
        assert getattr(cost, name) == pytest.approx(getattr(builtin, name), rel=0.01), name
    fitted, built = cost.constants().table_s[: 2048 + 1], builtin.constants().table_s
    np.testing.assert_allclose(fitted, built, rtol=0.01)
    assert fit.mean_error < 0.08

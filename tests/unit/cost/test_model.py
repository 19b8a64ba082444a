"""What a step takes, as its cost model says."""

import json

import numpy as np
import pytest
from checkout import CHECKOUT, need
from msgspec import structs

from adaspec.cost.builtin import BUILTIN, H100_LLAMA_3_1_8B_PAPER
from adaspec.cost.fit import MeasuredStep, fit_cost
from adaspec.cost.model import StepShape

COST = H100_LLAMA_3_1_8B_PAPER.without_deciding()


def test_the_papers_costs_are_a_line():
    fixed, per_token, per_kv = 5.88590713e-3, 2.10103129e-5, 3.92645679e-8
    by_hand = fixed + per_token * 8 + per_kv * 4_000 + 1.20683946e-3
    assert COST.step_s(StepShape(8, 4_000)) == pytest.approx(by_hand, rel=1e-12)
    one = 0.7118e-3 + 2.37768493e-9 * 4_000
    three = COST.step_s(StepShape(8, 4_000, forwards=3))
    assert three == pytest.approx(by_hand + 3 * one, rel=1e-12)
    # Deciding is charged to who decides in each step.
    deciding = structs.replace(COST, decide_s=10.0, decide_per_row_s=2.0)
    assert deciding.step_s(StepShape(8, 4_000)) - by_hand == pytest.approx(26.0)
    assert deciding.without_deciding() == COST


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

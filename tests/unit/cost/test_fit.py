import dataclasses
import json
from itertools import product

import numpy as np
import pytest
from checkout import CHECKOUT, need

from adaspec.cost.fit import MeasuredStep, fit_cost
from adaspec.cost.load import BUILTIN
from adaspec.cost.model import CostModel, StepShape, line
from adaspec.errors import CostError

SIZES = (1, 2, 4, *range(8, 257, 8))
INSIDE = np.interp(SIZES, (8, 64, 192, 256), (6e-3, 6.4e-3, 7.4e-3, 8e-3)).tolist()
TRUTH = CostModel(
    "truth",
    (*SIZES, 257, 2048),
    (*INSIDE, 20e-3, 20e-3 + 1791 * 0.6e-3 / 64),
    256,
    context_s=4e-8,
    forward_s=8e-4,
    forward_per_row_s=8e-6,
    forward_context_s=2e-9,
    outside_graphs_s=3e-3,
)
STRAIGHT = line("straight", 6e-3, 2e-5, context_s=4e-8, forward_s=8e-4, forward_per_row_s=8e-6)
TERMS = ("context_s", "forward_s", "forward_per_row_s", "forward_context_s", "outside_graphs_s")


BATCHES, DRAFTS = (1, 4, 16, 64, 128), (0, 1, 3, 8)
CONTEXTS, FORWARDS = (200, 1_000, 4_000), (0, 1, 3, 5)


def measured(
    cost, batches=BATCHES, drafts=DRAFTS, contexts=CONTEXTS, forwards=FORWARDS, noise=0.0, seed=0
):
    """Steps of each of these shapes, whose times are off by a normal share of `noise`."""
    random, steps = np.random.default_rng(seed), []
    for rows, draft, each, ran in product(batches, drafts, contexts, forwards):
        step_s = cost.step_s(StepShape(rows, rows * each, rows * draft, ran))
        step_s *= float(np.exp(noise * random.normal()))
        steps.append(MeasuredStep(rows, rows * (1 + draft), rows * each, ran, step_s))
    return steps


def assert_alike(cost, truth, rel):
    for tokens in (1, 8, 50, 128, 256, 257, 600, 1_152):
        for forwards in (0, 3):
            shape = StepShape(1, 1_000, tokens - 1, forwards)
            assert cost.step_s(shape) == pytest.approx(truth.step_s(shape), rel=rel), shape


def test_exact_times_give_back_the_truth():
    cost, report = fit_cost(measured(TRUTH), "fitted", SIZES)
    assert_alike(cost, TRUTH, 1e-4)
    for term in TERMS:
        assert getattr(cost, term) == pytest.approx(getattr(TRUTH, term), rel=1e-3), term
    assert report.p95_error < 1e-4
    assert report.not_identified == {}


def test_without_graphs_the_table_bends_where_tokens_begin_to_cost_more():
    bent = CostModel("bent", (1, 64, 2048), (0.02, 0.0201, 0.8), forward_s=0.004)
    cost, report = fit_cost(measured(bent), "fitted")
    assert cost.largest_graph == 0
    assert report.p95_error < 1e-3
    assert_alike(cost, bent, 1e-2)


def test_three_bad_steps_in_a_hundred_change_nothing():
    for seed in range(5):
        steps = measured(TRUTH, noise=0.02, seed=seed)
        good, _ = fit_cost(steps, "good", SIZES)
        random = np.random.default_rng(seed)
        for at in random.choice(len(steps), round(0.03 * len(steps)), replace=False):
            bad_s = steps[at].step_s * random.choice([0.2, 3, 10])
            steps[at] = dataclasses.replace(steps[at], step_s=bad_s)
        bad, _ = fit_cost(steps, "bad", SIZES)
        assert_alike(bad, good, 0.01)
        assert (np.diff(bad.seconds) >= 0).all()


def test_a_term_that_no_step_tells_apart_is_reported_not_invented():
    cost, report = fit_cost(measured(STRAIGHT, forwards=(0,)), "plain")
    drafter = {"forward_s", "forward_per_row_s", "forward_context_s"}
    assert drafter <= set(report.not_identified)
    assert cost.forward_s == cost.forward_per_row_s == cost.forward_context_s == 0.0
    assert "0 in every point" in report.not_identified["forward_s"]
    # A context that never varied leaves its share to the fixed part.
    cost, report = fit_cost(measured(STRAIGHT, (1,), range(30), (1_000,)), "one context")
    assert {"context_s", "forward_context_s"} <= set(report.not_identified)
    assert "only along with fixed_s" in report.not_identified["context_s"]
    fixed_s = STRAIGHT.seconds[0] + STRAIGHT.context_s * 1_000
    assert cost.seconds[0] == pytest.approx(fixed_s, rel=1e-4)
    # Of contexts that hardly differ, the slope over them is anybody's guess.
    steps = measured(STRAIGHT, (1,), contexts=3 * (1_000, 1_003), noise=0.05, seed=3)
    cost, report = fit_cost(steps, "vague")
    assert "context_s" in report.not_identified
    assert cost.context_s == 0.0


def test_no_term_is_ever_negative():
    falling = [
        MeasuredStep(1, tokens, context, forwards, 0.02 - 1e-6 * context + 1e-4 * forwards)
        for tokens in (1, 4, 16)
        for context in (100, 1_000, 5_000)
        for forwards in (0, 1, 3)
    ]
    assert fit_cost(falling, "falling")[0].context_s == 0.0


def test_too_few_kinds_are_refused():
    few = measured(STRAIGHT, batches=(1, 4), drafts=(0, 1), contexts=(100,), forwards=(0, 1))
    with pytest.raises(CostError, match="8 different steps"):
        fit_cost(few * 50, "few")


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

"""What a step takes, as its cost model says."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adaspec.cost.builtin import BUILTIN, H100_LLAMA_3_1_8B_PAPER
from adaspec.cost.engine import ASYNC, SYNC
from adaspec.cost.fit import MeasuredStep, fit_cost
from adaspec.cost.model import Deciding, HostTimes, StepShape, deciding_s

COST = H100_LLAMA_3_1_8B_PAPER.without_deciding()
REPORTS = Path(__file__).parents[3] / "eval" / "reports"


def test_the_papers_costs_are_a_line():
    fixed, per_token, per_kv = 5.88590713e-3, 2.10103129e-5, 3.92645679e-8
    by_hand = fixed + per_token * 8 + per_kv * 4_000 + 1.20683946e-3
    assert COST.step_s(StepShape(8, 4_000)) == pytest.approx(by_hand, rel=1e-12)
    one = 0.7118e-3 + 2.37768493e-9 * 4_000
    three = COST.step_s(StepShape(8, 4_000, forwards=3))
    assert three == pytest.approx(by_hand + 3 * one, rel=1e-12)


DECIDES = replace(
    COST,
    sync=replace(
        COST.sync,
        lookup_s=1.0,
        lookup_per_row_s=0.1,
        decide_s=10.0,
        decide_per_row_s=2.0,
        read_draft_s=100.0,
        revise_s=1000.0,
        revise_per_row_s=200.0,
    ),
    async_=HostTimes(lookup_s=0.5, decide_s=5.0, revise_s=50.0),
)


@pytest.mark.parametrize(
    ("deciding", "sync", "late"),
    [
        (Deciding.NOTHING, 0.0, 0.0),
        (Deciding.LOOKUP, 1.4, 0.5),
        (Deciding.THRESHOLD, 1.4 + 2 * 100, 0.5),
        (Deciding.PLAN, 18.0, 5.0),
        (Deciding.REVISION, 18.0 + 2 * (100 + 1000 + 4 * 200), 5.0 + 2 * 50),
    ],
)
def test_deciding_is_charged_to_who_does_it(deciding, sync, late):
    shape = StepShape(4, 900, 8, forwards=2, holds_neural=True)
    for engine, seconds in ((SYNC, sync), (ASYNC, late)):
        under = DECIDES.under(engine)
        charged = under.charged_to(deciding)
        assert charged.step_s(shape) - COST.under(engine).step_s(shape) == pytest.approx(seconds)
        assert deciding_s(charged.constants(), shape) == pytest.approx(seconds)
        assert under.under(engine) == under
        free = DECIDES.without_deciding().under(engine).charged_to(deciding)
        assert free.step_s(shape) == COST.under(engine).step_s(shape)


def report(name):
    path = REPORTS / name / "report.json"
    if not path.exists():
        pytest.skip("eval/ is not here: a source distribution leaves it out")
    return json.loads(path.read_text())


def test_the_builtin_table_is_fitted_to_the_steps_that_a_gpu_took():
    timed = report("gpu-h100")["costs"]["v2"]["steps"]
    steps = [
        MeasuredStep(*(row[key] for key in ("batch", "tokens", "context_tokens", "forwards")), s)
        for row in timed
        for s in [row["step_s"]]
    ]
    builtin = BUILTIN["h100-llama-3.1-8b"]
    sizes = [size for size in builtin.tokens if size <= builtin.largest_graph]
    cost, fit = fit_cost(steps, "fitted", sizes)
    for name in ("context_s", "forward_s", "forward_per_row_s", "outside_graphs_s"):
        assert getattr(cost, name) == pytest.approx(getattr(builtin, name), rel=0.01), name
    fitted, built = cost.constants().table_s[: 2048 + 1], builtin.constants().table_s
    np.testing.assert_allclose(fitted, built, rtol=0.01)
    assert fit.mean_error < 0.08

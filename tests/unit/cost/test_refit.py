"""Step costs that are refitted by what steps took."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.model import CostModel, Costs, StepShape
from adaspec.cost.refit import GROUPS, PERIOD, WARM, CostRefit

GIVEN = H100_LLAMA_3_1_8B.without_deciding()


def steps(rows: int, count: int, seed: int = 0) -> list[StepShape]:
    rng = np.random.default_rng(seed)
    return [
        StepShape(
            rows,
            int(rows * rng.integers(200, 900)),
            copied=int(rng.integers(0, 4 * rows)),
            forwards=int(rng.integers(1, 6)),
            holds_neural=True,
        )
        for _ in range(count)
    ]


def scaled(step: float, token: float, forward: float) -> CostModel:
    by = dict(zip(GROUPS, (step, token, forward), strict=True))
    return replace(
        GIVEN,
        **{
            name: getattr(GIVEN, name) * by[group]
            for group, names in GROUPS.items()
            for name in names
        },
    )


def refitted(refit: CostRefit, true: CostModel, shapes: list[StepShape], noise: float) -> Costs:
    rng = np.random.default_rng(1)
    found = GIVEN.constants()
    for shape in shapes:
        seconds = true.step_s(shape) * math.exp(noise * rng.standard_normal())
        if noise and rng.random() < 0.01:
            seconds *= 10
        found = refit.note(shape, seconds) or found
    return found


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("factors", [(1, 3, 1), (1, 1, 3), (2, 0.5, 2), (1, 1, 1 / 3), (9, 9, 9)])
def test_it_finds_what_steps_cost(rows: int, factors: tuple[float, float, float]) -> None:
    true = scaled(*factors)
    found = refitted(CostRefit(GIVEN.constants()), true, steps(rows, 400), noise=0.0)
    for name in ("per_token_s", "draft_fixed_s", "fixed_s", "per_kv_s"):
        # Alone, a request's tokens are a hundredth of a step.
        close = 0.25 if rows == 1 else 0.05
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=close), name


def test_a_bad_clock_is_borne() -> None:
    true = scaled(1, 3, 0.5)
    found = refitted(CostRefit(GIVEN.constants()), true, steps(8, 2000), noise=0.15)
    assert found.per_token_s / found.fixed_s == pytest.approx(
        true.per_token_s / true.fixed_s, rel=0.2
    )
    assert found.draft_fixed_s / found.fixed_s == pytest.approx(
        true.draft_fixed_s / true.fixed_s, rel=0.2
    )


def test_costs_that_change_are_followed() -> None:
    refit = CostRefit(GIVEN.constants())
    refitted(refit, GIVEN, steps(8, 3000), noise=0.05)
    refitted(refit, scaled(1, 3, 1), steps(8, 2000, seed=2), noise=0.05)
    assert refit.factors[1] / refit.factors[0] == pytest.approx(3, rel=0.15)


def test_steps_that_are_all_alike_change_no_plan() -> None:
    refit = CostRefit(GIVEN.constants())
    shape = StepShape(4, 2000, copied=8, forwards=2, holds_neural=True)
    refitted(refit, scaled(3, 3, 3), [shape] * 500, noise=0.0)
    assert refit.factors == pytest.approx(np.full(3, 3.0), rel=1e-6)


def test_loads_are_told_apart_and_a_new_one_begins_as_the_nearest() -> None:
    refit = CostRefit(GIVEN.constants())
    refitted(refit, scaled(1, 3, 1), steps(8, 400), noise=0.0)
    before = refit.factors.copy()
    first = refit.note(steps(16, 1)[0], GIVEN.step_s(steps(16, 1)[0]))
    assert first is not None
    assert refit.factors == pytest.approx(before)
    refitted(refit, GIVEN, steps(16, 400), noise=0.0)
    assert refit.factors[1] == pytest.approx(1, rel=0.1)
    again = refit.note(steps(8, 1)[0], 1.0)
    assert again is not None
    assert refit.factors == pytest.approx(before)


def test_no_factor_is_far_from_that_of_the_whole() -> None:
    refit = CostRefit(GIVEN.constants())
    refitted(refit, scaled(1, 200, 1), steps(2, 3000), noise=0.0)
    assert refit.factors.max() / refit.factors.min() <= 25 * (1 + 1e-9)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_times_that_are_none_are_left_out(seconds: float) -> None:
    refit = CostRefit(GIVEN.constants())
    shape = steps(1, 1)[0]
    for _ in range(3 * PERIOD):
        assert refit.note(shape, seconds) is None
    assert refit.state() == {}


def test_the_first_steps_of_a_load_do_not_count() -> None:
    slow, refit = CostRefit(GIVEN.constants()), CostRefit(GIVEN.constants())
    for at, shape in enumerate(steps(8, 5 * PERIOD)):
        seconds = GIVEN.step_s(shape)
        refit.note(shape, seconds)
        slow.note(shape, seconds * (100 if at < WARM else 1))
    assert slow.factors == pytest.approx(refit.factors)


def test_the_same_seconds_give_the_same_costs_whatever_came_between() -> None:
    one, other = CostRefit(GIVEN.constants()), CostRefit(GIVEN.constants())
    refitted(one, scaled(1, 2, 1), steps(8, 90), noise=0.1)
    other.note(steps(8, 1)[0], math.nan)
    refitted(other, scaled(1, 2, 1), steps(8, 90), noise=0.1)
    assert one.factors.tolist() == other.factors.tolist()


def test_what_is_known_can_be_written_and_read() -> None:
    refit = CostRefit(GIVEN.constants())
    for rows in (1, 8):
        refitted(refit, scaled(1, 3, 1), steps(rows, 10 * PERIOD), noise=0.1)
    again = CostRefit(GIVEN.constants())
    again.restore(json.loads(json.dumps(refit.state())))
    assert again.state() == refit.state()
    again.note(steps(8, 1)[0], 1.0)
    assert again.factors == pytest.approx(refit.factors)


@pytest.mark.parametrize(
    "state", [{"6": [1.0]}, {"x": [0.0] * 18}, {"6": [math.nan] * 18}, {"6": ""}]
)
def test_what_was_not_written_so_is_refused(state: dict[str, object]) -> None:
    refit = CostRefit(GIVEN.constants())
    with pytest.raises(ValueError):
        refit.restore(state)
    assert refit.state() == {}

"""Fitting cost models to step times of known truth."""

import dataclasses

import numpy as np
import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.fit import TERMS, MeasuredStep, fit_cost
from adaspec.cost.model import CostModel, StepShape
from adaspec.errors import CostError

TRUTH = dataclasses.replace(H100_LLAMA_3_1_8B.without_deciding(), overhead_s=0.0)


def measured(
    cost: CostModel,
    batches=(1, 4, 16, 64, 128),
    drafts=(0, 1, 3, 8),
    contexts=(200, 1_000, 4_000),
    forwards=(0, 1, 3, 5),
    noise=0.0,
    repeats=1,
    seed=0,
):
    random = np.random.default_rng(seed)
    return [
        MeasuredStep(
            tokens,
            context,
            ran,
            cost.step_s(StepShape(tokens, context, forwards=ran))
            * float(np.exp(noise * random.normal())),
        )
        for batch in batches
        for draft in drafts
        for each in contexts
        for ran in forwards
        for _ in range(repeats)
        for tokens, context in [(batch * (1 + draft), batch * each)]
    ]


def fitted(steps, *, seed=0, floors=(), **known):
    return fit_cost(steps, CostModel(**known), seed, floors)


def constants(cost):
    return np.array([getattr(cost, term) for term in TERMS])


def test_exact_times_give_back_the_truth():
    cost, report = fitted(measured(TRUTH), name="fitted")
    assert constants(cost) == pytest.approx(constants(TRUTH), rel=1e-6)
    assert report.p95_error < 1e-9
    assert report.not_identified == {}
    # An overhead that is known is taken from the fixed part.
    true = dataclasses.replace(TRUTH, overhead_s=0.002)
    known, _ = fitted(measured(true), name="known", overhead_s=0.002)
    assert constants(known) == pytest.approx(constants(TRUTH), rel=1e-6)
    assert known.overhead_s == 0.002
    unaware, _ = fitted(measured(true), name="unaware")
    assert unaware.fixed_s == pytest.approx(TRUTH.fixed_s + 0.002, rel=1e-6)


def test_padding_to_captured_sizes_is_part_of_the_fit():
    stepped = dataclasses.replace(TRUTH, captured_sizes=(1, 8, 64, 512), per_token_s=2e-4)
    steps = measured(stepped)
    knows, right = fitted(steps, name="knows", captured_sizes=(1, 8, 64, 512))
    _, wrong = fitted(steps, name="does not")
    assert knows.per_token_s == pytest.approx(2e-4, rel=1e-6)
    assert right.p95_error < 1e-9 < 0.05 < wrong.p95_error


def test_noise_is_what_the_held_out_error_reports():
    cost, report = fitted(measured(TRUTH, noise=0.05, repeats=2, seed=5), name="noisy")
    assert fitted(measured(TRUTH, noise=0.05, repeats=2, seed=5), name="noisy") == (cost, report)
    # The mean of |N(0, 0.05)| is 0.04.
    assert 0.03 < report.mean_error < 0.05
    assert report.median_error < report.mean_error < report.p95_error
    assert constants(cost)[:4] == pytest.approx(constants(TRUTH)[:4], rel=0.2)


def test_the_truth_lies_within_the_standard_errors_about_as_often_as_it_should():
    inside = []
    for seed in range(40):
        cost, report = fitted(measured(TRUTH, noise=0.05, seed=seed), name="noisy", seed=seed)
        one = report.standard_errors_s
        inside += [
            abs(getattr(cost, term) - getattr(TRUTH, term)) < 2 * one[term]
            for term in ("fixed_s", "per_token_s", "per_kv_s", "draft_fixed_s")
        ]
    assert 0.88 < np.mean(inside) <= 1.0


def test_a_drafter_that_never_ran_is_reported_not_invented():
    cost, report = fitted(measured(TRUTH, forwards=(0,)), name="plain")
    assert set(report.not_identified) == {"draft_fixed_s", "draft_per_kv_s"}
    assert cost.draft_fixed_s == cost.draft_per_kv_s == 0.0
    assert "0 in every point" in report.not_identified["draft_fixed_s"]


def test_a_context_that_never_varied_leaves_its_share_to_the_fixed_part():
    steps = [
        MeasuredStep(
            tokens, 1_000, forwards, TRUTH.step_s(StepShape(tokens, 1_000, forwards=forwards))
        )
        for tokens in (1, 2, 4, 8, 16, 32)
        for forwards in (0, 1, 3)
    ]
    cost, report = fitted(steps, name="one context")
    assert set(report.not_identified) == {"per_kv_s", "draft_per_kv_s"}
    assert "only along with fixed_s" in report.not_identified["per_kv_s"]
    assert cost.fixed_s == pytest.approx(TRUTH.fixed_s + TRUTH.per_kv_s * 1_000, rel=1e-6)
    assert report.p95_error < 1e-9


def test_no_constant_is_ever_negative_and_one_that_drowns_in_noise_is_reported():
    falling = [
        MeasuredStep(tokens, context, forwards, 0.02 - 1e-6 * context + 1e-4 * forwards)
        for tokens in (1, 4, 16)
        for context in (100, 1_000, 5_000)
        for forwards in (0, 1, 3)
    ]
    cost, report = fitted(falling, name="falling")
    assert (constants(cost) >= 0).all()
    assert "per_kv_s" in report.at_zero
    # Contexts that hardly differ: the slope over them is anybody's guess.
    steps = measured(TRUTH, batches=(1,), contexts=(1_000, 1_003), noise=0.05, repeats=3, seed=3)
    cost, report = fitted(steps, name="vague")
    assert {"per_kv_s", "draft_per_kv_s"} <= {*report.not_identified, *report.at_zero}
    assert cost.per_kv_s == cost.draft_per_kv_s == 0.0


def test_an_impossible_measurement_is_refused_with_its_place_and_too_few_kinds_are():
    for step, said in (
        (MeasuredStep(0, 10, 0, 0.01), "tokens=0"),
        (MeasuredStep(1, -1, 0, 0.01), "context_tokens=-1"),
        (MeasuredStep(1, 10, -1, 0.01), "forwards=-1"),
        (MeasuredStep(1, 10, 0, float("nan")), "step_s=nan"),
    ):
        with pytest.raises(CostError, match=f"step 240.*{said}"):
            fitted([*measured(TRUTH), step], name="broken")
    few = measured(TRUTH, batches=(1, 4), drafts=(0, 1), contexts=(100,), forwards=(0, 1))
    with pytest.raises(CostError, match="8 different steps"):
        fitted(few * 50, name="few")


def test_a_floor_is_found_where_few_tokens_take_as_long_as_some():
    flat = dataclasses.replace(TRUTH, captured_sizes=(8,), per_token_s=2e-4)
    steps = measured(flat, noise=0.01)
    cost, report = fitted(steps, name="flat", floors=(2, 4, 8, 16))
    assert cost.captured_sizes == (8,)
    assert cost.per_token_s == pytest.approx(2e-4, rel=0.02)
    assert report.mean_error < 0.015
    # None is taken where none explains the steps better.
    assert fitted(measured(TRUTH), name="straight", floors=(2, 8, 32))[0].captured_sizes == ()

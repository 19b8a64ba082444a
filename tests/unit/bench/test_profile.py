"""Profiles of machines of known truth, quiet and noisy."""

import dataclasses

import numpy as np
import pytest

from adaspec.bench.profile.measurement import Cell, Grid, measure, plans_of
from adaspec.bench.profile.profile import (
    MAX_REFERENCE_SPREAD,
    MAX_STEP_SPREAD,
    fit_profile,
)
from adaspec.cost.model import HostTimes, StepShape, line
from adaspec.errors import CostError
from adaspec.evaluate.options import silent
from adaspec.vllm.profiling import PromptStep, TimedStep

pytestmark = pytest.mark.slow

TRUTH = line(
    "truth",
    0.02,
    0.0015,
    context_s=2e-6,
    forward_s=0.004,
    forward_context_s=5e-7,
    draft_prompt_s=2e-4,
    sync=HostTimes(overhead_s=0.001),
)
BATCHES = (1, 4, 16)
GRID = Grid(contexts=(128, 1024), rounds=5)
QUIET = [0.001] * 20


class Machine:
    """Answers forced plans with the truth's times, each off by a factor of chance."""

    def __init__(self, noise=0.0, room=1 << 20, on_cpu=True, outliers=0.0):
        self.noise, self.room, self.on_cpu, self.outliers = noise, room, on_cpu, outliers
        self.draw = np.random.default_rng(7)
        self.visits = []

    @property
    def runs_on_cpu(self):
        return self.on_cpu

    def refusal(self, requests, context_tokens, room):
        return None if requests * context_tokens <= self.room else "no room"

    def run(self, requests, context_tokens, holds, plans, steps, synchronises=False):
        self.visits.append((requests, context_tokens, holds, synchronises))
        return [(plan, self.timed(requests, context_tokens, holds, plan)) for plan in plans * steps]

    def prompts(self):
        """Of the last visit: looking up takes its time with the drafter or without."""
        requests, context_tokens, holds, _ = self.visits[-1]
        seconds = 1e-5 + (TRUTH.draft_prompt_s if holds else 0.0)
        return [
            PromptStep(context_tokens, holds, context_tokens * seconds) for _ in range(requests)
        ]

    def timed(self, requests, context_tokens, holds, plan):
        tokens = requests * (1 + plan.draft_len)
        forwards = max(plan.forwards, 1) if holds else 0
        context = requests * context_tokens
        slow = float(np.exp(self.noise * self.draw.normal()))
        if self.draw.random() < self.outliers:
            slow *= 10
        shape = StepShape(requests, context, tokens - requests, forwards)
        step_s = TRUTH.step_s(shape) * slow
        draft_s = forwards * (TRUTH.forward_s + TRUTH.forward_context_s * context) * slow
        other_s = TRUTH.sync.overhead_s * slow
        rest = step_s - draft_s - other_s
        return TimedStep(
            requests, tokens, context, forwards, step_s, 0.9 * rest, 0.1 * rest, draft_s
        )


def profiled(machine, drafter=True, reference_s=QUIET):
    measured = measure(machine, GRID, BATCHES, drafter, silent)
    # The real loop's times are this machine's, not the test's.
    measured = dataclasses.replace(measured, reference_s=reference_s)
    return fit_profile(measured, "found", (), GRID.seed, {})


def test_a_quiet_machines_constants_are_recovered():
    found = profiled(Machine())
    for term in ("context_s", "forward_s", "forward_context_s"):
        assert getattr(found.cost, term) == pytest.approx(getattr(TRUTH, term), rel=1e-3), term
    assert found.cost.sync.overhead_s == pytest.approx(TRUTH.sync.overhead_s)
    assert found.cost.draft_prompt_s == pytest.approx(TRUTH.draft_prompt_s)
    assert found.fit.mean_error < 1e-3
    assert found.complaints == []


def test_noise_and_outliers_leave_the_constants_within_a_few_percent():
    found = profiled(Machine(noise=0.08, outliers=0.05))
    for tokens, context, forwards in ((1, 200, 0), (1, 200, 1), (16, 2_000, 3), (64, 8_000, 1)):
        shape = StepShape(1, context, tokens - 1, forwards)
        assert found.cost.step_s(shape) == pytest.approx(TRUTH.step_s(shape), rel=0.08)
    assert 0.005 < found.fit.mean_error < 0.1
    assert found.noise.complaint is None


def test_a_noisy_machine_is_not_trusted_and_says_why():
    varies = profiled(Machine(), reference_s=[0.001, 0.002] * 10)
    assert varies.noise.reference_spread > MAX_REFERENCE_SPREAD
    assert "a fixed loop" in varies.complaints[0]
    found = profiled(Machine(noise=0.3))
    assert found.noise.step_spread > MAX_STEP_SPREAD
    assert "too noisy to trust" in found.complaints[0]
    assert found.document()["noise"]["trusted"] is False


def test_a_step_that_the_formula_cannot_tell_is_a_complaint():
    class Fickle(Machine):
        def timed(self, requests, context_tokens, holds, plan):
            found = super().timed(requests, context_tokens, holds, plan)
            return dataclasses.replace(found, step_s=found.step_s * (1 + found.tokens % 3))

    found = profiled(Fickle())
    assert found.fit.mean_error > 0.1
    assert "goal is 10%" in found.complaints[0]


def test_without_a_drafter_its_constants_are_left_at_nought():
    found = profiled(Machine(), drafter=False)
    assert {"forward_s", "forward_per_row_s", "forward_context_s"} <= set(found.fit.not_identified)


def test_cells_that_do_not_fit_are_named_and_the_rest_is_measured():
    machine = Machine(room=4 * 1024)
    found = profiled(machine)
    assert found.skipped == {"batch 16 at 1,024 tokens": "no room"}
    assert max(requests * context for requests, context, *_ in machine.visits) <= 4 * 1024
    with pytest.raises(CostError, match=r"batch 1 at 128 tokens: no room"):
        profiled(Machine(room=1))


def test_rounds_are_interleaved_and_the_first_is_thrown_away():
    machine = Machine()
    measurement = measure(machine, GRID, BATCHES, True, silent)
    cells = 3 * 2 * 2
    assert len(machine.visits) == cells * (GRID.rounds + 1)
    for turn in range(GRID.rounds + 1):
        assert len(set(machine.visits[turn * cells : (turn + 1) * cells])) == cells
    assert {len(kind.timed) for kind in measurement.kinds} == {2 * GRID.rounds}
    assert len(measurement.reference_s) == len(machine.visits)


@pytest.mark.parametrize(("on_cpu", "rounds"), [(True, 3), (False, 4)])
def test_when_time_is_up_two_rounds_are_made_and_a_gpus_parts_timed(on_cpu, rounds):
    machine = Machine(on_cpu=on_cpu)
    measurement = measure(machine, dataclasses.replace(GRID, max_s=0.0), BATCHES, True, silent)
    assert len(machine.visits) == rounds * 12
    assert {len(kind.timed) for kind in measurement.kinds} == {4}


def test_plans_tell_a_forward_from_a_verified_token():
    plans = plans_of(Cell(1, 128, True), (1, 2, 4), (3, 8))
    design = np.array([(1, max(plan.forwards, 1), 1 + plan.draft_len) for plan in plans])
    assert np.linalg.matrix_rank(design) == 3
    assert {plan.source for plan in plans} == {"none", "ngram", "neural", "splice"}
    assert {plan.source for plan in plans_of(Cell(1, 128, False), (1,), (3,))} == {"none", "ngram"}

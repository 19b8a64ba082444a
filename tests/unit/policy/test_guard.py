"""The guard holds speculation off where it loses, and nowhere else; every clock here is made up."""

import math

import numpy as np
import pytest

from adaspec.policy.guard import HOLD, KEEP, PLAN, PROBE, Guard

PLAIN_S = 0.01


class Engine:
    """Steps under a guard: without speculation they take as long as plain_s says.

    Those that read prompts take longer than it says, by what leaving a CUDA graph takes.
    """

    def __init__(self, seed=0, lag=1, believed=1.0, jitter=0.0, hiccup=0.0, warm=True):
        def plain_s(rows, context_tokens, prompt_tokens):
            return believed * PLAIN_S * (1 + rows / 100 + prompt_tokens / 1000)

        self.guard = Guard(plain_s, lag)
        self.chance = np.random.default_rng(seed)
        self.jitter, self.hiccup = jitter, hiccup
        self.states = []
        if warm:  # no verdict falls before that
            self.run(200, 4096, 1.0, 0.0)
            self.states.clear()

    def run(self, steps, rows, slower, accepted, context=1000, prompts=0.0, slower_prompts=None):
        """The rate over that without speculation; a plan takes `slower` times as long, and each row
        emits `accepted` more tokens on average, in bursts of 6 or so.

        A share of the steps reads `prompts`; there it takes `slower_prompts` times as long.
        """
        seconds = without = 0.0
        for _ in range(steps):
            reads = bool(self.chance.random() < prompts)
            tokens = int(self.chance.integers(50, 1000)) if reads else 0
            decision = self.guard.decide(rows, rows * context, tokens)
            self.states.append(decision.state)
            step_s = PLAIN_S * (1 + rows / 100)
            took = plain_s = step_s + (PLAIN_S * (1 + tokens / 1000) if reads else 0.0)
            emitted = rows
            if decision.state == PLAN:
                took *= slower_prompts if reads and slower_prompts else slower
                drafts = self.chance.random(rows) < accepted / 6
                emitted += int(drafts @ self.chance.integers(1, 12, rows))
            seconds += took
            without += plain_s + (emitted - rows) * step_s / rows
            if self.jitter:
                took *= math.exp(self.jitter * self.chance.standard_normal())
            if self.hiccup and self.chance.random() < self.hiccup:
                took *= 10
            self.guard.note(decision, took, emitted, rows)
        return without / seconds

    def share(self, state, last=None):
        states = self.states[-last:] if last else self.states
        return states.count(state) / len(states)


LOADS = (1, 32)


@pytest.mark.parametrize("rows", LOADS)
@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize(
    ("slower", "accepted", "prompts", "steps", "least"),
    [
        *((slower, 0.0, 0.0, 4000, 0.98) for slower in (1.05, 3.0)),
        # It is slow only where prompts are read.
        *((1.0, 0.3, prompts, 6000, 0.93) for prompts in (0.3, 1.0)),
    ],
)
def test_a_plan_that_loses_is_held_off_before_it_costs_much(
    rows, lag, slower, accepted, prompts, steps, least
):
    engine = Engine(lag=lag, jitter=0.05 if prompts else 0.0)
    found = engine.run(steps, rows, slower, accepted, prompts=prompts, slower_prompts=2.5)
    assert found >= least
    assert engine.share(HOLD, steps // 3) > 0.9


@pytest.mark.parametrize("rows", LOADS)
@pytest.mark.parametrize("believed", [1 / 3, 1.0, 3.0])
def test_a_plan_that_gains_is_left_alone(rows, believed):
    engine = Engine(believed=believed)
    unguarded = (1 + 0.95) / 1.3
    assert engine.run(6000, rows, 1.3, 0.95) >= 0.97 * unguarded  # of which 2% is chance
    assert engine.share(HOLD) < 0.02
    assert 0 < engine.share(PROBE) < 0.03
    # Rates are tokens per second.
    with_s, without_s = engine.guard.rates(engine.guard.decide(rows, rows * 1000))
    plain_s = PLAIN_S * (1 + rows / 100)
    assert without_s == pytest.approx(rows / plain_s, rel=0.01)
    assert with_s == pytest.approx(rows * 1.95 / (1.3 * plain_s), rel=0.25)


@pytest.mark.parametrize("rows", LOADS)
def test_it_holds_off_when_acceptance_collapses_and_comes_back_by_itself(rows):
    engine = Engine()
    assert engine.run(3000, rows, 1.3, 1.2) > 1.5
    assert engine.run(6000, rows, 1.3, 0.0) >= 0.97
    assert engine.share(HOLD, 2000) > 0.95
    engine.run(4000, rows, 1.3, 1.2)
    assert engine.share(PLAN, 1000) > 0.95


def test_a_load_that_jumps_does_not_make_it_swing():
    engine, rates = Engine(), {}
    for _ in range(6):
        for rows, accepted in ((1, 1.2), (128, 0.0)):
            rates.setdefault(rows, []).append(engine.run(1500, rows, 1.3, accepted))
    assert min(rates[1]) > 1.35
    assert min(rates[128]) > 0.98
    # Where it was held off, it is from the first step of the next jump on.
    assert engine.states[-1500:].count(PLAN) < 30
    # A load that is new borrows from its neighbour.
    engine.run(30, 182, 1.3, 0.0)
    assert engine.share(KEEP, 30) == 1


@pytest.mark.parametrize("rows", LOADS)
def test_a_noisy_clock_with_hiccups_misleads_it_little(rows):
    good, bad = (Engine(seed, jitter=0.3, hiccup=0.01) for seed in (1, 2))
    assert good.run(6000, rows, 1.3, 0.95) >= 0.98 * 1.95 / 1.3
    assert bad.run(6000, rows, 1.3, 0.0) >= 0.98


def test_nothing_is_held_off_in_the_first_forty_steps_that_speculate():
    engine = Engine(warm=False)
    engine.run(150, 8, 3.0, 0.0)
    before = engine.states[: engine.states.index(KEEP)]
    assert 40 <= before.count(PLAN) < 80
    # The drafter reads on in the first holds.
    engine.run(2000, 8, 3.0, 0.0)
    first = engine.states.index(HOLD)
    assert 32 <= engine.states[:first].count(KEEP) == engine.states.count(KEEP)


def test_when_everything_gets_slower_it_learns_so():
    engine = Engine()
    engine.run(3000, 8, 1.3, 1.2)
    engine.guard._plain_s = lambda *shape: PLAIN_S * 1.08 / 8
    engine.run(4000, 8, 1.3, 1.2)
    assert engine.share(PLAN, 1000) > 0.95
    *_, without_s = engine.guard.rates(engine.guard.decide(8, 8000))
    assert without_s == pytest.approx(8 / (PLAIN_S * 1.08), rel=0.02)


def test_a_clock_that_stands_still_goes_back_or_says_nonsense_changes_nothing():
    engine = Engine()
    engine.run(500, 8, 1.3, 1.2)
    decision = engine.guard.decide(8, 8000)
    before = engine.guard.rates(decision)
    for seconds in (math.nan, math.inf, -math.inf, -1.0, 0.0) * 20:
        engine.guard.note(decision, seconds, 8, 8)
    assert engine.guard.rates(decision) == before


@pytest.mark.parametrize("rows", LOADS)
@pytest.mark.parametrize("prompts", [0.3, 1.0])
def test_a_plan_that_pays_where_prompts_are_read_is_left_alone(rows, prompts):
    engine = Engine(1, jitter=0.1, hiccup=0.01, warm=False)
    engine.run(6000, rows, 1.3, 0.95, prompts=prompts, slower_prompts=1.1)
    assert engine.share(HOLD) < 0.02
    assert engine.share(PROBE) < 0.05


def test_steps_that_read_prompts_are_not_judged_by_steps_that_do_not():
    guard = Guard(lambda rows, context_tokens, prompt_tokens: 1.0)
    for step in range(2000):
        decision = guard.decide(8, 8000)
        if decision.speculates and step % 3 == 0:
            decision = decision._replace(reads_prompts=True)  # every probe falls on other steps
        took = 30.0 if decision.reads_prompts else 1.0
        guard.note(decision, took, 8 + 8 * decision.speculates, 8)
        assert decision.state != HOLD


def test_what_was_served_otherwise_blurs_the_steps_behind_it():
    engine = Engine()
    engine.run(100, 8, 1.3, 1.2)
    engine.guard.interrupt()
    assert [engine.guard.decide(8, 8000).is_timed for _ in range(2)] == [False, True]

"""When a policy is switched off: for failing now, or too often; never for its age."""

import pytest

from adaspec.vllm.breaker import (
    MAX_IN_A_ROW,
    MAX_OUTSTANDING,
    STEPS_PER_FAULT,
    CircuitBreaker,
)
from adaspec.vllm.events import Observers


def breaker_after(pattern):
    """A breaker, and at which of these steps (True: it fails) it switched off; None if never."""
    breaker = CircuitBreaker("a policy", Observers())
    for step, fails in enumerate(pattern):
        if fails:
            breaker.fault("plan", ValueError("injected"), rows=1)
            if breaker.off:
                return breaker, step
        else:
            breaker.step_succeeded()
    return breaker, None


def every(gap, steps):
    return ((step + 1) % gap == 0 for step in range(steps))


def test_failures_in_a_row_switch_off():
    assert breaker_after([True] * 20)[1] == MAX_IN_A_ROW - 1
    assert breaker_after(([True] * (MAX_IN_A_ROW - 1) + [False]) * 3)[1] is None


def test_a_rare_failure_never_switches_off_however_long_the_server_runs():
    breaker, at = breaker_after(every(STEPS_PER_FAULT + 1, 5000 * STEPS_PER_FAULT))
    assert at is None
    assert breaker.counts["plan"] > 20 * MAX_OUTSTANDING


@pytest.mark.parametrize("gap", [2, 3, 10, STEPS_PER_FAULT // 2])
def test_a_failure_too_often_does_at_last(gap):
    breaker, at = breaker_after(every(gap, 100_000))
    assert at is not None
    # Each failure counts one, less what the steps since the last have made up for.
    gain = 1 - (gap - 1) / STEPS_PER_FAULT
    assert breaker.counts["plan"] == pytest.approx(MAX_OUTSTANDING / gain, abs=2)


def test_steps_that_succeeded_before_are_no_credit():
    pattern = [False] * 100_000 + [True, False] * 200
    assert breaker_after(pattern)[1] == 100_000 + breaker_after([True, False] * 200)[1]


def test_a_breaker_that_is_off_logs_no_more_whatever_still_fails(caplog):
    breaker = CircuitBreaker("fixed:ngram:8:2", Observers())
    for _ in range(3 * MAX_IN_A_ROW):
        breaker.fault("batch", IndexError("lost"), 1)
    assert breaker.off
    assert breaker.counts["batch"] == 3 * MAX_IN_A_ROW
    said = [each for each in caplog.records if "is switched off" in each.message]
    assert len(said) == 1

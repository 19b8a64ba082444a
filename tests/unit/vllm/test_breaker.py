import pytest

from adaspec.vllm.events import MAX_IN_A_ROW, STEPS_PER_FAULT, CircuitBreaker, Observers


def breaker_after(pattern):
    """A breaker, and at which of these steps (True: it fails) it switched off; None if never."""
    breaker, off = CircuitBreaker("a policy", Observers()), None
    for step, fails in enumerate(pattern):
        if fails:
            breaker.fault("plan", ValueError("injected"))
        else:
            breaker.step_succeeded()
        if off is None and breaker.off:
            off = step
    return breaker, off


OFTEN = [True, False] * 200


@pytest.mark.parametrize(
    ("pattern", "off"),
    [
        ([True] * 20, MAX_IN_A_ROW - 1),
        (([True] * (MAX_IN_A_ROW - 1) + [False]) * 3, None),
        # Steps that succeeded before are no credit.
        ([False] * 100_000 + OFTEN, 100_000 + breaker_after(OFTEN)[1]),
        # A rare failure never does, however long the server runs.
        (([False] * STEPS_PER_FAULT + [True]) * 3000, None),
    ],
)
def test_failures_in_a_row_or_too_often_switch_off_which_is_said_once_and_are_counted_on(
    pattern, off, caplog
):
    breaker, found = breaker_after(pattern)
    assert found == off
    assert breaker.off == (off is not None)
    assert breaker.counts == {"plan": sum(pattern)}
    assert caplog.text.count("is switched off") == breaker.off

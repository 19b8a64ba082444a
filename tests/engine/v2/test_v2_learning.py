"""A V2 engine learns while it serves what its steps take; outputs stay what they were."""

import pytest
from costly_steps import CostlySteps
from wandering import Wanderer, check_sound

TOKENS = 64


@pytest.mark.parametrize("head", [pytest.param(None, marks=pytest.mark.thorough), "eagle3"])
def test_what_verified_tokens_take_is_learned(served, truth, prompts, head):
    expected = truth(TOKENS)
    engine = served(head, config={"guard": True})
    worker = Wanderer(engine, evidence=head is not None).worker
    with CostlySteps(engine, "V2", worker) as steps:
        for _ in range(3):
            assert engine.greedy(prompts, TOKENS) == expected
        assert steps.token_over_step > 1.3
    check_sound(worker)

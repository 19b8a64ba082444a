"""The guard of a V2 engine holds speculation off where it is slow, and lets it back in."""

import pytest
from guarded_engine import SlowSteps
from heard import Heard
from wandering import Wanderer, check_sound

TOKENS = 64


@pytest.mark.parametrize("trims", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_speculation_is_held_off_while_it_is_slow_and_comes_back(served, truth, prompts, trims):
    expected, asked = truth(TOKENS)[:2], prompts[:2]
    engine = served("eagle3", trims=trims, config={"guard": True})
    session = Wanderer(engine).session
    heard = Heard(session)
    with SlowSteps(engine, "V2", 15.0) as steps:
        for _ in range(12):  # nothing is held off in the first steps
            assert engine.greedy(asked, TOKENS) == expected
            if steps.words.count("hold") > steps.words.count("plan"):
                break
        assert {"plan", "probe", "hold"} == {each.state for each in heard["guarded"]}
        assert steps.words.count("hold") > steps.words.count("plan")
        assert not session.keeps_alive
        before, steps.slow_s = heard.total("drafted"), 0.1
        for _ in range(12):
            steps.words = []
            assert engine.greedy(asked, TOKENS) == expected
            if steps.words.count("plan") > 2 * steps.words.count("hold"):
                break
        assert heard.total("drafted") > before
        assert steps.words.count("plan") > steps.words.count("hold")
    check_sound(session)

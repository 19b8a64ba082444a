"""The guard of a V2 engine holds speculation off where it is slow, and lets it back in."""

import pytest
from guarded_engine import check_guard
from wandering import Wanderer, check_sound

TOKENS = 64


@pytest.mark.parametrize("trims", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_speculation_is_held_off_while_it_is_slow_and_comes_back(
    served, truth, prompts, trims, monkeypatch
):
    expected = truth(TOKENS)[:2]
    engine = served("eagle3", trims=trims, config={"guard": True})
    session = Wanderer(engine).session

    def ask():
        assert engine.greedy(prompts[:2], TOKENS) == expected

    check_guard(engine, session, "V2", ask, monkeypatch)
    check_sound(session)

"""Requests that must not stop yet say what they say without speculation."""

import pytest
from test_outputs import asked, check_sound

from adaspec.vllm.events import Observer
from policies import Wanderer

LEAST = (6, 15, 27)


@pytest.fixture(scope="module")
def stops(truth):
    """For each prompt a token of its greedy output, which comes again and again."""
    return [max(set(one), key=one.count) for one in truth(tokens=64)]


def said(engine, prompts, stops, least):
    """Outputs where the first prompt's request may not stop before so many tokens, and so on."""
    from vllm import SamplingParams

    params = [
        SamplingParams(
            temperature=0,
            max_tokens=64,
            min_tokens=least + at % 4,
            stop_token_ids=[stop],
            ignore_eos=True,
        )
        for at, stop in enumerate(stops)
    ]
    return [one[0] for one in engine.outputs(prompts, params)]


@pytest.fixture(scope="module")
def expected(engines, prompts, stops):
    """What is said without speculation, by the length before which nobody may stop."""
    engine = engines()
    return {least: said(engine, prompts, stops, least) for least in LEAST}


class Listener(Observer):
    """Counts how often a draft was wanted and not taken."""

    barred = 0

    def proposed(self, proposed):
        if proposed.room is not None:
            self.barred += int((proposed.room <= 0).sum())


@pytest.mark.parametrize(
    ("head", "policy"),
    [
        (None, "fixed:ngram:8:1"),
        ("eagle", "fixed:neural:4"),
        ("eagle", "hybrid-splice:4:20:3:2:5"),
        ("eagle", "wanderer"),
    ],
)
def test_requests_that_may_not_stop_yet_say_what_they_say_without_speculation(
    engines, prompts, stops, expected, head, policy
):
    assert any(len(one) < 64 for one in expected[27])
    engine = engines(asked(head, "hybrid-splice" if head else "fixed:ngram:8:1"))
    session = engine.put(Wanderer() if policy == "wanderer" else policy)
    listener = Listener()
    session.observers.add(listener)
    engine.judged.clear()
    for least in LEAST:
        assert said(engine, prompts, stops, least) == expected[least]
    assert listener.barred
    assert any(accepted for one in engine.judged.values() for _, accepted in one)
    check_sound(session)

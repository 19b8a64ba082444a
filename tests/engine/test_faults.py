"""Whatever fails in a policy, the output stays, the engine goes on and the counters say it."""

import time

import pytest

from adaspec.vllm.breaker import MAX_IN_A_ROW
from adaspec.vllm.events import MAX_OBSERVER_FAILURES, Observer
from adaspec.vllm.session import SLOW_S
from policies import Failing, Wanderer

FAULTS = [
    ("admit", "raises", 5),
    ("keep", "raises", 3),
    ("plan", "raises", 3),
    ("plan", "nan", 3),
    ("proceed", "raises", 2),
    ("settle", "raises", 3),
    ("settle", "nan lengths", 3),
    ("settle", "shape", 3),
    ("settle", "too many", 3),
    ("learn", "raises", 3),
    ("release", "raises", 2),
]


def served(engines, policy, stop_if_slow=False):
    engine = engines({"method": "adaspec", "model": "eagle", "num_speculative_tokens": 24})
    return engine, engine.put(policy, stop_if_slow)


@pytest.mark.parametrize(("stage", "how", "every"), FAULTS)
def test_a_fault_now_and_then_costs_only_its_step(engines, prompts, truth, stage, how, every):
    expected = truth()
    engine, session = served(engines, Failing(stage, how, every))
    assert engine.greedy(prompts, 48) == expected
    assert engine.greedy(prompts[:2], 8) == [one[:8] for one in expected[:2]]
    assert session.breaker.counts[stage] > 0
    assert set(session.breaker.counts) == {stage}
    assert not session.breaker.off


@pytest.mark.parametrize(("stage", "how"), [("plan", "raises"), ("settle", "shape")])
def test_a_policy_that_always_fails_is_switched_off(engines, prompts, truth, stage, how):
    expected = truth()
    engine, session = served(engines, Failing(stage, how))
    assert engine.greedy(prompts, 48) == expected
    assert session.breaker.off
    engine.judged.clear()
    assert engine.greedy(prompts, 48) == expected
    assert not engine.judged


def test_a_slow_policy_is_counted_and_still_lossless(engines, prompts, truth, monkeypatch):
    expected = truth()
    engine, session = served(engines, Wanderer(), stop_if_slow=True)
    monkeypatch.setattr("adaspec.vllm.session.SLOW_S", -1.0)
    assert engine.greedy(prompts, 48) == expected
    assert session.breaker.counts["time"] > 0
    assert session.breaker.off


@pytest.mark.thorough
def test_a_policy_that_truly_sleeps_makes_steps_slow_until_it_is_switched_off(
    engines, prompts, truth
):
    class Sleeper(Wanderer):
        calls = 0

        def settle(self, batch, drafts):
            Sleeper.calls += 1
            time.sleep(SLOW_S + 0.05)
            return super().settle(batch, drafts)

    expected = truth()
    engine, session = served(engines, Sleeper(), stop_if_slow=True)
    assert engine.greedy(prompts, 48) == expected
    assert session.breaker.off
    assert session.breaker.counts == {"time": MAX_IN_A_ROW}
    assert Sleeper.calls == MAX_IN_A_ROW


def test_an_index_that_fails_is_built_anew(engines, prompts, truth):
    expected = truth()
    engine, session = served(engines, "hybrid-splice")
    engine.greedy(prompts[:1], 2)
    calls = [0]
    whole = type(session)._new_step

    def new_step(self, rows):
        calls[0] += 1
        if calls[0] % 4 == 0:
            raise MemoryError("injected")
        return whole(self, rows)

    session._new_step = new_step.__get__(session)
    assert engine.greedy(prompts, 48) == expected
    assert session.breaker.counts["look-up"] > 0


def test_an_observer_that_fails_is_dropped_and_costs_nothing(engines, prompts, truth):
    class Broken(Observer):
        calls = 0

        def proposed(self, proposed):
            Broken.calls += 1
            raise OSError("injected")

    expected = truth()
    engine, session = served(engines, "hybrid-splice")
    session.observers.add(Broken())
    assert engine.greedy(prompts, 48) == expected
    assert Broken.calls == MAX_OBSERVER_FAILURES
    assert not session.breaker.counts

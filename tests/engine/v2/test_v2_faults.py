"""On V2, too, a fault of ours costs a draft and never an output."""

import pytest
from wandering import Wanderer, check_sound, random_policy, without_numbers

from adaspec.vllm.breaker import MAX_IN_A_ROW
from adaspec.vllm.v2.attachment import serve_by

PLACES = [
    ("host", "holds_drafter"),
    ("host", "decide"),
    ("host", "note"),
    ("host", "learn"),
    ("host", "budget"),
    ("drafting", "begin"),
    ("drafting", "revise"),
    ("drafting", "finish"),
]


def breaking(worker, part, name, every):
    """Let every so many calls fail; returns the list of those that did."""
    owner, failed, calls = getattr(worker, part), [], [0]
    original = getattr(owner, name)

    def broken(*args, **kwargs):
        calls[0] += 1
        if calls[0] % every == 0:
            failed.append(calls[0])
            raise RuntimeError(f"{name} is broken")
        return original(*args, **kwargs)

    setattr(owner, name, broken)
    return failed


@pytest.mark.parametrize(("part", "name"), PLACES)
def test_a_fault_now_and_then_costs_only_its_step(served, prompts, truth, part, name):
    engine = served("eagle3")
    worker = Wanderer(engine).worker
    failed = breaking(worker, part, name, 3)
    assert engine.greedy(prompts[:3], 16) == truth(16)[:3]
    assert failed
    assert sum(worker.breaker.counts.values()) >= len(failed)
    assert not worker.breaker.off


def test_what_always_fails_is_switched_off_and_serving_goes_on(served, prompts, truth):
    engine = served("eagle3")
    worker = Wanderer(engine).worker
    breaking(worker, "drafting", "finish", 1)
    for _ in range(2):
        assert engine.greedy(prompts, 24) == truth(24)
        assert worker.breaker.off
        assert sum(worker.breaker.counts.values()) == MAX_IN_A_ROW


class Broken:
    """An observer of which nothing works."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def test_a_model_that_says_nan_and_an_observer_that_fails_harm_nothing(served, prompts, truth):
    engine = served("eagle3")
    worker = serve_by(engine.runner, without_numbers(random_policy(1, True)))
    worker.observers.add(Broken())
    assert engine.greedy(prompts, 24) == truth(24)
    check_sound(worker)


def test_a_slow_policy_is_counted_and_still_lossless(served, prompts, truth, monkeypatch):
    engine = served("eagle3")
    worker = Wanderer(engine).worker
    monkeypatch.setattr("adaspec.vllm.v2.worker.SLOW_S", -1.0)
    assert engine.greedy(prompts, 24) == truth(24)
    assert worker.breaker.counts["time"] > 0
    assert worker.breaker.off

"""Whatever fails in a policy or around it, outputs stay, serving goes on and counters say it."""

import itertools
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tiny_models import document, ids_of

from adaspec.vllm.breaker import MAX_IN_A_ROW
from adaspec.vllm.events import MAX_OBSERVER_FAILURES, Observer
from adaspec.vllm.metrics import Counters, MetricsObserver
from policies import Failing

sys.path.append(str(Path(__file__).parent / "v2"))

from wandering import CAP, random_policy, without_numbers, written_policy

FAULTS = [
    ("holds_drafter", "raises", 5),
    ("forwards", "raises", 3),
    ("forwards", "nan", 3),
    ("decide", "raises", 3),
    ("decide", "nan lengths", 3),
    ("decide", "shape", 3),
    ("decide", "too many", 3),
    ("learn", "raises", 3),
]
STAGES = {
    "holds_drafter": {"admit", "keep"},
    "forwards": {"plan", "proceed"},
    "decide": {"settle"},
    "learn": {"learn"},
}
"""The stages of a step in which a policy's method is asked."""


@pytest.mark.parametrize(("method", "how", "every"), FAULTS)
def test_a_fault_now_and_then_costs_only_its_step(serve, prompts, truth, method, how, every):
    engine, session = serve("eagle", Failing(method, how, every))
    assert engine.greedy(prompts[:8], 32) == truth(32)[:8]
    assert engine.greedy(prompts[:2], 8) == truth(8)[:2]
    assert session.breaker.counts
    assert set(session.breaker.counts) <= STAGES[method]
    assert not session.breaker.off


@pytest.mark.parametrize(("method", "how"), [("forwards", "raises"), ("decide", "shape")])
def test_a_policy_that_always_fails_is_switched_off(serve, prompts, truth, method, how):
    engine, session = serve("eagle", Failing(method, how))
    assert engine.greedy(prompts, 48) == truth()
    assert session.breaker.off
    engine.judged.clear()
    assert engine.greedy(prompts, 48) == truth()
    assert not engine.judged


@pytest.mark.parametrize("evidence", [True, False])
def test_a_model_that_says_nan_is_counted_and_switched_off(serve, prompts, truth, evidence):
    engine, session = serve("eagle", without_numbers(random_policy(1, evidence)))
    assert engine.greedy(prompts, 48) == truth()
    assert session.breaker.counts == {"settle": MAX_IN_A_ROW}
    assert session.breaker.off


def test_a_clock_that_jumps_back_and_forth(serve, prompts, truth, monkeypatch):
    engine, session = serve("eagle", random_policy(2, True))
    counters = Counters(None, {})
    session.observers.add(MetricsObserver(counters))
    jumps, clock = itertools.cycle([0.0, -3600.0, 7200.0, -7200.0, 1e6]), time.perf_counter
    monkeypatch.setattr("adaspec.vllm.session.perf_counter", lambda: clock() + next(jumps))
    assert engine.greedy(prompts, 48) == truth()
    assert not session.breaker.off
    assert set(session.breaker.counts) <= {"time"}
    seconds = counters["clocked_step_seconds/short"] + counters["clocked_step_seconds/long"]
    assert np.isfinite(seconds)


class Broken(Observer):
    """Fails whenever something is proposed."""

    calls = 0

    def proposed(self, proposed):
        self.calls += 1
        raise OSError("injected")


def test_an_index_and_an_observer_that_fail_cost_no_output(serve, prompts, truth):
    engine, session = serve("eagle")
    observer, calls, whole = Broken(), [0], type(session)._new_step
    session.observers.add(observer)

    def new_step(*facts):
        calls[0] += 1
        if calls[0] % 4 == 0:
            raise MemoryError("injected")
        return whole(session, *facts)

    session._new_step = new_step
    assert engine.greedy(prompts, 48) == truth()
    assert session.breaker.counts.keys() == {"look-up"}
    assert observer.calls == MAX_OBSERVER_FAILURES


def test_a_policy_that_changes_on_disk_while_it_serves_goes_on(engines, prompts, truth, tmp_path):
    folder = Path(written_policy(tmp_path / "policy"))
    config = {"method": "adaspec", "model": "eagle", "policy": str(folder)}
    engine = engines({**config, "num_speculative_tokens": CAP})
    policy = engine.session.policy

    def truncate():
        for each in folder.iterdir():
            each.write_bytes(each.read_bytes()[:20])

    def replace():
        shutil.rmtree(folder)
        written_policy(folder, memory=True)

    for change in (truncate, replace, lambda: shutil.rmtree(folder)):
        change()
        engine.judged.clear()
        assert engine.greedy(prompts, 24) == truth(24)
        assert engine.judged, "it still drafts"
    assert engine.session.policy is policy
    assert not engine.session.breaker.counts


@pytest.mark.thorough
def test_a_request_of_a_hundred_thousand_tokens(engines):
    prompt = (ids_of(document(1, 400)) * 400)[:100_000]
    arguments = {
        "max_model_len": 100_100,
        "hf_overrides": {"max_position_embeddings": 100_100},
        "max_num_batched_tokens": 4096,
        "num_gpu_blocks_override": 2000,
    }
    expected = engines(None, **arguments).greedy([prompt, prompt[:50]], 24)
    engine = engines({"method": "adaspec", "num_speculative_tokens": 12}, **arguments)
    assert engine.greedy([prompt, prompt[:50]], 24) == expected
    assert engine.judged
    assert not engine.session.breaker.counts

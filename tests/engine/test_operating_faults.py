"""What goes wrong around a server: changed files, models that say NaN, clocks, huge requests."""

import itertools
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tiny_models import document, ids_of

from adaspec.vllm.breaker import MAX_IN_A_ROW

sys.path.append(str(Path(__file__).parent / "v2"))

from wandering import random_policy, without_numbers, written_policy

HEAD = {"method": "adaspec", "model": "eagle", "num_speculative_tokens": 12}


@pytest.mark.parametrize("evidence", [True, False])
def test_a_model_that_says_nan_is_counted_and_switched_off(engines, prompts, truth, evidence):
    expected = truth()
    engine = engines(HEAD)
    session = engine.put(without_numbers(random_policy(1, evidence)))
    assert engine.greedy(prompts, 48) == expected
    assert session.breaker.counts == {"settle": MAX_IN_A_ROW}
    assert session.breaker.off


def replaced(folder):
    other = written_policy(folder.parent / "other", memory=True)
    shutil.rmtree(folder)
    shutil.move(other, folder)


def truncated(folder):
    for each in folder.iterdir():
        each.write_bytes(each.read_bytes()[:20])


@pytest.mark.parametrize("change", [shutil.rmtree, replaced, truncated])
def test_a_policy_that_changes_on_disk_while_it_serves(engines, prompts, truth, tmp_path, change):
    expected = truth()
    folder = Path(written_policy(tmp_path / "policy"))
    engine = engines({**HEAD, "policy": str(folder)})
    assert engine.greedy(prompts[:3], 48) == expected[:3]
    change(folder)
    engine.judged.clear()
    assert engine.greedy(prompts, 48) == expected
    assert sum(len(each) for each in engine.judged.values()) > 0, "it still drafts"
    assert not engine.session.breaker.counts


def test_a_clock_that_jumps_back_and_forth(engines, prompts, truth, monkeypatch, tmp_path):
    from adaspec.vllm.metrics import Counters, MetricsObserver

    expected = truth()
    engine = engines(HEAD)
    session = engine.put(random_policy(2, True), stop_if_slow=False)
    counters = Counters(None, {})
    session.observers.add(MetricsObserver(counters))
    jumps = itertools.cycle([0.0, -3600.0, 7200.0, -7200.0, 1e6])
    clock = time.perf_counter
    monkeypatch.setattr("adaspec.vllm.session.perf_counter", lambda: clock() + next(jumps))
    assert engine.greedy(prompts, 48) == expected
    assert not session.breaker.off
    assert set(session.breaker.counts) <= {"time"}
    seconds = counters["clocked_step_seconds/short"] + counters["clocked_step_seconds/long"]
    assert np.isfinite(seconds)


@pytest.mark.thorough
def test_a_request_of_a_hundred_thousand_tokens(engines):
    prompt = (ids_of(document(1, 400)) * 400)[:100_000]
    arguments = {
        "max_model_len": 100_100,
        "hf_overrides": {"max_position_embeddings": 100_100},
        "max_num_batched_tokens": 4096,
        "gpu_memory_utilization": 0.5,
    }
    expected = engines(None, **arguments).greedy([prompt, prompt[:50]], 24)
    engine = engines({"method": "adaspec", "num_speculative_tokens": 12}, **arguments)
    began_s = time.perf_counter()
    assert engine.greedy([prompt, prompt[:50]], 24) == expected
    print(f"\n{time.perf_counter() - began_s:.0f} s")
    assert engine.judged
    assert not engine.session.breaker.counts

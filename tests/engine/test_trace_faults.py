"""Whatever happens to a trace, outputs stay, the engine goes on, and lost rows are counted."""

import os
import shutil
import time
from pathlib import Path

import pytest
from test_recording import finished, observer_of

POLICY = {"method": "adaspec", "model": "eagle", "policy": "hybrid-splice:4:20:3:2:5"}


@pytest.fixture
def engine(engines, truth, tmp_path):
    """Engines that write live traces, all of one kind so that one is loaded once."""
    truth()
    return engines({**POLICY, "trace_dir": str(tmp_path / "unused")})


def watched(engine, tmp_path, **more):
    """The engine's session from here on, with a recorder of its own."""
    from adaspec.vllm.metrics import Counters
    from adaspec.vllm.options import Options
    from adaspec.vllm.tracing import recorder_of

    session = engine.put(POLICY["policy"])
    counters = Counters(None, {})
    options = Options(model="eagle", trace_dir=str(tmp_path / "live"), **more)
    recorder = recorder_of(options, session.serving, counters)
    session.observers.add(recorder)
    return recorder, counters


def test_a_folder_deleted_while_serving(engine, prompts, truth, tmp_path, monkeypatch):
    monkeypatch.setattr("adaspec.vllm.tracing.FLUSH_S", 0.0)
    _, counters = watched(engine, tmp_path)
    assert engine.greedy(prompts, 48) == truth()
    engine.greedy(prompts[:1], 1)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "live").rglob("part-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    shutil.rmtree(tmp_path / "live")
    assert engine.greedy(prompts, 48) == truth()
    finished(engine)
    assert counters["dropped_rows/disk"] > 0
    assert not engine.session.breaker.counts


def test_a_full_disk(engine, prompts, truth, tmp_path, monkeypatch):
    monkeypatch.setattr("adaspec.vllm.tracing.FLUSH_S", 0.0)
    _, counters = watched(engine, tmp_path)
    whole = os.fsync

    def full(descriptor):
        if "part-" in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise OSError(28, "No space left on device")
        return whole(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert engine.greedy(prompts, 48) == truth()
    finished(engine)
    assert counters["dropped_rows/disk"] > 0


def test_a_limit_that_is_reached_at_once(engine, prompts, truth, tmp_path):
    _, counters = watched(engine, tmp_path, max_trace_bytes=1)
    assert engine.greedy(prompts, 48) == truth()
    finished(engine)
    assert counters["dropped_rows/limit"] > 0
    assert not list((tmp_path / "live").rglob("part-*"))


def test_a_queue_that_is_full(engine, prompts, truth, tmp_path, monkeypatch):
    recorder, counters = watched(engine, tmp_path)
    recorder._max_queued = 0
    assert engine.greedy(prompts, 48) == truth()
    finished(engine)
    assert counters["dropped_rows/queue"] >= len(prompts)
    assert observer_of(engine, "Recorder") is recorder

"""Whatever happens to a trace, outputs stay, the engine goes on, and lost rows are counted."""

import os
import shutil
import time
from pathlib import Path

import pytest
from test_recording import finished

from adaspec.vllm.metrics import Counters
from adaspec.vllm.options import Options
from adaspec.vllm.tracing import recorder_of


@pytest.fixture
def recorded(serve, tmp_path, monkeypatch):
    """An engine, a recorder of what it does and the counters; the folder is written at once."""
    monkeypatch.setattr("adaspec.vllm.tracing.FLUSH_S", 0.0)

    def make(**more):
        engine, session = serve("eagle")
        counters = Counters(None, {})
        options = Options(model="eagle", trace_dir=str(tmp_path / "live"), **more)
        recorder = recorder_of(options, session.serving, counters)
        session.observers.add(recorder)
        return engine, recorder, counters

    return make


def test_a_folder_deleted_while_serving(recorded, prompts, truth, tmp_path):
    engine, recorder, counters = recorded()
    assert engine.greedy(prompts, 24) == truth(24)
    engine.greedy(prompts[:1], 1)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "live").rglob("part-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    shutil.rmtree(tmp_path / "live")
    assert engine.greedy(prompts, 24) == truth(24)
    finished(engine, recorder)
    assert counters["dropped_rows/disk"] > 0
    assert not engine.session.breaker.counts


def no_space_left(monkeypatch):
    """Let no part of a trace be written whole."""
    whole = os.fsync

    def full(descriptor):
        if "part-" in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise OSError(28, "No space left on device")
        return whole(descriptor)

    monkeypatch.setattr(os, "fsync", full)


@pytest.mark.parametrize("why", ["disk", "limit", "queue"])
def test_rows_that_find_no_room_are_counted(recorded, prompts, truth, tmp_path, monkeypatch, why):
    engine, recorder, counters = recorded(**({"max_trace_bytes": 1} if why == "limit" else {}))
    if why == "disk":
        no_space_left(monkeypatch)
    elif why == "queue":
        recorder._max_queued = 0
    assert engine.greedy(prompts, 24) == truth(24)
    finished(engine, recorder)
    assert counters[f"dropped_rows/{why}"] > 0
    if why != "disk":
        assert not list((tmp_path / "live").rglob("part-*"))
    assert not engine.session.breaker.counts

"""Whatever happens to a trace, outputs stay, the engine goes on, and lost rows are counted."""

import shutil
import time

import pytest
from test_recording import finished

from adaspec.vllm.metrics import Counters
from adaspec.vllm.options import Options
from adaspec.vllm.tracing import recorder_of


@pytest.mark.parametrize("why", ["disk", "limit", "queue"])
def test_rows_that_find_no_room_are_counted(serve, prompts, truth, tmp_path, monkeypatch, why):
    monkeypatch.setattr("adaspec.vllm.tracing.FLUSH_S", 0.0)
    engine, session = serve("eagle")
    counters, live = Counters(None, {}), tmp_path / "live"
    limit = {"max_trace_bytes": 1} if why == "limit" else {}
    options = Options(model="eagle", trace_dir=str(live), **limit)
    recorder = recorder_of(options, session.serving, counters)
    session.observers.add(recorder)
    if why == "queue":
        recorder._max_queued = 0
    assert engine.greedy(prompts, 24) == truth(24)
    if why == "disk":  # the folder is deleted meanwhile
        engine.greedy(prompts[:1], 1)
        deadline = time.monotonic() + 60
        while not list(live.rglob("part-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        shutil.rmtree(live)
        assert engine.greedy(prompts, 24) == truth(24)
    finished(engine, recorder)
    assert counters[f"dropped_rows/{why}"] > 0
    assert not list(live.rglob("part-*"))
    assert not session.breaker.counts

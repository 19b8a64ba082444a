from collections import Counter

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from random_recordings import NEURAL_CAP, random_requests
from scripted_engine import engine_of, params_of
from test_trace_output import output_in

from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES, Manifest
from adaspec.vllm.recorder import Recorder, engine_id
from adaspec.vllm.session.requests import RunningRequest

DRAFTED = Manifest(neural_cap=NEURAL_CAP, draft_cap=NEURAL_CAP, confidences=CONFIDENCES)


def recorder_in(tmp_path, manifest=DRAFTED):
    lost = Counter()
    return Recorder(output_in(tmp_path, lost, manifest=manifest)), lost


@pytest.mark.parametrize("ends", [{"eos_token_id": 9}, {"stop_token_ids": [9]}])
def test_it_is_known_how_a_request_ended(tmp_path, ends):
    recorder, _ = recorder_in(tmp_path, Manifest())
    for sample, output in enumerate(([5, 9], [5, 6, 7], [5, 6], [5, -1, 6])):
        name = engine_id("chat", str(sample))
        params = params_of()
        params.max_tokens = 3
        vars(params).update(ends)
        prompt = np.arange(4, dtype=np.int32)
        recorder.admitted(RunningRequest(name, prompt, output, params, None, recorded=True))
        recorder.left([name])
    recorder.close()
    kept = [
        (each.output_tokens.tolist(), each.is_cut_off)
        for each in TraceReader(tmp_path / "trace").requests()
    ]
    # By a token that ends it, by its limit, by an abort, and by a fault.
    assert kept == [([5, 9], False), ([5, 6, 7], True), ([5, 6], True), ([5], True)]


def test_a_request_of_which_a_full_queue_dropped_a_step_is_counted_and_not_written(
    tmp_path, monkeypatch
):
    requests = random_requests(8, 3, tokens=True, output_tokens=(9, 20))
    engine = engine_of("fixed:ngram:8:1", requests, record_fraction=1.0)
    recorder, lost = recorder_in(tmp_path)
    engine.session.observers.add(recorder)
    for step in range(20):
        monkeypatch.setattr("adaspec.vllm.recorder.MAX_QUEUED", 0 if step == 3 else 1 << 10)
        engine.run(1)
    recorder.close()
    assert not (tmp_path / "trace").exists()
    assert lost == {"queue": 3, "incomplete": 3}

"""Requests that are recorded beside others, without an engine: what is drafted, shown and kept."""

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from random_recordings import NEURAL_CAP, random_requests
from scripted_engine import engine_of, params_of
from test_trace_output import LOGGED, output_in

from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.metrics import LENGTHS
from adaspec.vllm.recorder import Recorder
from adaspec.vllm.request_record import engine_id

DENSE = Manifest(kind="dense", neural_cap=NEURAL_CAP, draft_cap=NEURAL_CAP, confidences=CONFIDENCES)


def recorder_in(tmp_path, manifest, *sessions):
    """Records what sessions tell from here on; and the rows that it lost, by reason."""
    lost = Counter()
    output = output_in(tmp_path, lost, manifest=manifest)
    outputs = (output, None) if manifest.kind == "dense" else (None, output)
    recorder = Recorder(*outputs, lambda why, rows: lost.update({why: rows}))
    for session in sessions:
        session.observers.add(recorder)
    return recorder, lost


@pytest.mark.parametrize("mode", ["serve", "shadow"])
def test_logged_steps_and_figures_are_what_the_session_told(tmp_path, mode):
    requests = random_requests(9, 5, tokens=True, output_tokens=(10, 24))
    engine = engine_of("hybrid-splice:2:8:3:1:5", requests, mode=mode)
    heard, counters = engine.heard, engine.counters
    for params in engine.params.values():
        params.max_tokens = 60
    recorder, lost = recorder_in(tmp_path, LOGGED, engine.session)
    engine.run()
    recorder.close()
    assert not lost
    steps = list(TraceReader(tmp_path / "trace").steps())
    for step in steps:  # only a request's first step holds its text
        texts = (step.prompt_tokens, step.output_tokens, step.max_tokens)
        assert [text is None for text in texts] == [step.step > 0] * 3
    drafted = heard.total("drafted")
    decisions = sum(len(step.requests) for step in heard["proposed"])
    assert sum(counters[f"draft_len/{bound}"] for bound in (*LENGTHS, "inf")) == decisions
    if mode == "serve":
        assert drafted > 0
        assert sum(step.draft_len for step in steps) == drafted
        assert sum(step.accepted for step in steps) == heard.total("accepted")
    else:
        assert drafted == 0
        # Of drafts that reach past the text's end nobody knows what would have come.
        assert 0.7 * decisions < len(steps) < decisions
        assert sum(step.accepted for step in steps) > 0
        for step in steps:
            came = requests[int(step.id[1:])].output[step.position : step.output_len]
            same = [token == other for token, other in zip(came, step.drafted_tokens, strict=False)]
            assert step.accepted == [*same, False].index(False)
            assert step.accepted < len(came) or step.accepted == step.draft_len


def test_of_greedy_requests_a_log_holds_what_nobody_verified(tmp_path):
    """The drafter runs as far as any row wants it, so others have longer drafts than they use."""
    requests = random_requests(9, 8, tokens=True, output_tokens=(10, 24))
    engine = engine_of("hybrid-agree:1:8:4:1:4", requests)
    recorder, _ = recorder_in(tmp_path, LOGGED, engine.session)
    for at in range(len(requests)):
        engine.params[at] = params_of(temperature=0 if at else 1)
    engine.run()
    recorder.close()
    longer = 0
    for step in TraceReader(tmp_path / "trace").steps():
        at = int(step.id[1:])
        assert (step.unverified_tokens is None) >= (at == 0)
        if step.unverified_tokens is not None:
            drafted = requests[at].drafted[step.position][step.neural_len :]
            assert step.unverified_tokens.tolist() == drafted[: len(step.unverified_tokens)]
            longer += len(step.unverified_tokens) > 0
    assert longer > 3


def test_requests_of_one_name_are_all_kept_under_names_of_their_own(tmp_path):
    recorder, _ = recorder_in(tmp_path, Manifest(kind="dense"))
    for sample in range(3):
        name = f"{sample}_{engine_id('chat', '7')}"
        recorder.admitted(name, np.arange(4, dtype=np.int32), True, None, False)
        recorder._records[name].output = [sample]
        recorder.left([name])
    recorder.close()
    kept = {
        each.id: each.output_tokens.tolist() for each in TraceReader(tmp_path / "trace").requests()
    }
    assert kept == {"7": [0], "7~2": [1], "7~3": [2]}


@pytest.mark.parametrize("manifest", [DENSE, LOGGED])
def test_steps_that_a_full_queue_drops_are_counted_and_cost_no_text(tmp_path, manifest):
    requests = random_requests(8, 3, tokens=True, output_tokens=(9, 20))
    engine = engine_of("fixed:ngram:8:1", requests, record_fraction=float(manifest is DENSE))
    recorder, lost = recorder_in(tmp_path, manifest, engine.session)
    for step in range(20):
        recorder._max_queued = 0 if step == 3 else 1 << 10
        engine.run(1)
    recorder.close()
    if manifest is DENSE:
        assert not (tmp_path / "trace").exists()
        assert lost == {"queue": 3, "incomplete": 3}
        return
    assert lost == {"queue": 6}  # a verdict on the step before, too
    steps = TraceReader(tmp_path / "trace").steps()
    texts = {step.id: step.output_tokens for step in steps if step.step == 0}
    for at, request in enumerate(requests):
        text = texts[f"r{at}"].tolist()
        assert text == request.output[: len(text)]
        assert len(text) > 6

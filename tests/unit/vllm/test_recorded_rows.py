"""Requests that are recorded beside others, without an engine: what is drafted, shown and kept."""

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from heard import Heard
from scripted_engine import (
    NEURAL_CAP,
    ScriptedEngine,
    params_of,
    random_requests,
    session_of,
)

from adaspec.policy.spec import parse_policy
from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.metrics import LENGTHS, Counters, MetricsObserver
from adaspec.vllm.recorder import Recorder
from adaspec.vllm.request_record import engine_id
from adaspec.vllm.trace_output import TraceOutput

DENSE = Manifest(kind="dense", neural_cap=NEURAL_CAP, draft_cap=NEURAL_CAP, confidences=CONFIDENCES)

LOGGED = Manifest(kind="logged")


def recording(policy, rows, fraction, mode="serve"):
    return session_of(policy, rows, mode, record_fraction=fraction)


@pytest.fixture
def recorded(tmp_path):
    """Records what a session tells from here on; the recorder, and what ends it and reads the
    trace."""

    def record(session, manifest):
        lost = Counter()

        def lose(why, rows):
            lost[why] += rows

        output = TraceOutput(tmp_path / "trace", tmp_path, manifest, 1 << 30, 60.0, lose)
        outputs = (output, None) if manifest.kind == "dense" else (None, output)
        recorder = Recorder(*outputs, lose)
        session.observers.add(recorder)

        def ended():
            recorder.close()
            path = tmp_path / "trace"
            return TraceReader(path) if path.exists() else None, lost

        return recorder, ended

    return record


@pytest.mark.parametrize("name", ["none", "fixed:neural:3", "hybrid-splice:2:8:3:1:5"])
def test_recorded_rows_are_drafted_for_in_full_and_proposed_nothing(name):
    session = recording(parse_policy(name), 6, 0.5)
    proposals = Heard(session)["proposed"]
    ScriptedEngine(random_requests(4, 6, tokens=True), session).run()
    assert not session.breaker.counts
    assert any(step.recorded.any() for step in proposals)
    for step in proposals:
        for row in np.flatnonzero(step.recorded):
            assert step.proposed[row] == []
            assert (step.drafts.drafted[row] >= 0).all()
        if step.recorded.any():
            assert step.drafts.drafted.shape[1] == NEURAL_CAP
        assert step.forwards <= (0 if name == "none" else 3)


@pytest.mark.parametrize("mode", ["serve", "shadow"])
def test_logged_steps_and_figures_are_what_the_session_told(recorded, mode):
    requests = random_requests(9, 5, tokens=True, output_tokens=(10, 24))
    session = session_of(parse_policy("hybrid-splice:2:8:3:1:5"), 5, mode)
    heard, counters = Heard(session), Counters(None, {})
    _, ended = recorded(session, LOGGED)
    session.observers.add(MetricsObserver(counters))
    ScriptedEngine(requests, session).run()
    reader, lost = ended()
    assert not lost
    steps = list(reader.steps())
    drafted = heard.total("drafted")
    timed = [event for event in heard["verified"] if event.took_s is not None]
    assert timed
    kinds = ("none", "short", "long")
    assert sum(counters[f"clocked_steps/{kind}"] for kind in kinds) == len(timed)
    assert bool(counters["clocked_steps/short"] + counters["clocked_steps/long"]) == (
        mode == "serve"
    )
    for figure, told in (
        ("clocked_step_seconds", sum(event.took_s for event in timed)),
        ("clocked_step_modelled_seconds", sum(event.step.step_s for event in timed)),
    ):
        assert sum(counters[f"{figure}/{kind}"] for kind in kinds) == pytest.approx(told)
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


def test_of_greedy_requests_a_log_holds_what_nobody_verified(recorded):
    """The drafter runs as far as any row wants it, so others have longer drafts than they use."""
    requests = random_requests(9, 8, tokens=True, output_tokens=(10, 24))
    session = session_of(parse_policy("hybrid-agree:1:8:4:1:4"), 8)
    _, ended = recorded(session, LOGGED)
    engine = ScriptedEngine(requests, session)
    for at in range(len(requests)):
        engine.params[at] = params_of(temperature=0 if at else 1)
    engine.run()
    longer = 0
    for step in ended()[0].steps():
        at = int(step.id[1:])
        assert (step.unverified_tokens is None) >= (at == 0)
        if step.unverified_tokens is not None:
            drafted = requests[at].drafted[step.position][step.neural_len :]
            assert step.unverified_tokens.tolist() == drafted[: len(step.unverified_tokens)]
            longer += len(step.unverified_tokens) > 0
    assert longer > 3


def test_requests_of_one_name_are_all_kept_under_names_of_their_own(tmp_path):
    output = TraceOutput(tmp_path / "trace", tmp_path, Manifest(kind="dense"), 1 << 30, 60.0, None)
    recorder = Recorder(output, None, None)
    for sample in range(3):
        name = f"{sample}_{engine_id('chat', '7')}"
        recorder.admitted(name, np.arange(4, dtype=np.int32), True, None, False)
        recorder._records[name].output = [sample]
        recorder.left([name])
    recorder.close()
    kept = {each.id: each.output_tokens.tolist() for each in TraceReader(output.folder).requests()}
    assert kept == {"7": [0], "7~2": [1], "7~3": [2]}


@pytest.mark.parametrize("manifest", [DENSE, LOGGED])
def test_steps_that_a_full_queue_drops_are_counted_and_cost_no_text(recorded, manifest):
    requests = random_requests(8, 3, tokens=True, output_tokens=(9, 20))
    session = recording(parse_policy("fixed:ngram:8:1"), 3, float(manifest is DENSE))
    recorder, ended = recorded(session, manifest)
    engine = ScriptedEngine(requests, session)
    for step in range(20):
        recorder._max_queued = 0 if step == 3 else 1 << 10
        engine.run(1)
    reader, lost = ended()
    if manifest is DENSE:
        assert reader is None
        assert lost == {"queue": 3, "incomplete": 3}
        return
    assert lost == {"queue": 6}  # a verdict on the step before, too
    texts = {step.id: step.output_tokens for step in reader.steps() if step.step == 0}
    for at, request in enumerate(requests):
        text = texts[f"r{at}"].tolist()
        assert text == request.output[: len(text)]
        assert len(text) > 6

"""Requests that are recorded beside others, without an engine: what is drafted, shown and kept."""

from __future__ import annotations

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
from adaspec.vllm.request_limits import is_chosen
from adaspec.vllm.trace_output import TraceOutput

DENSE = Manifest(kind="dense", neural_cap=NEURAL_CAP, draft_cap=NEURAL_CAP, confidences=CONFIDENCES)

LOGGED = Manifest(kind="logged")


def recording(policy, rows, fraction, mode="serve"):
    return session_of(policy, rows, mode, record_fraction=fraction, record_cap=NEURAL_CAP)


@pytest.fixture
def recorded(tmp_path):
    """Records what a session tells from here on; returns what ends it and reads the trace."""

    def record(session, manifest):
        lost = Counter()

        def lose(why, rows):
            lost[why] += rows

        output = TraceOutput(tmp_path / "trace", tmp_path, manifest, 1 << 30, 60.0, lose)
        outputs = (output, None) if manifest.kind == "dense" else (None, output)
        recorder = Recorder(*outputs, session.serving, lose)
        session.observers.add(recorder)

        def ended():
            recorder.close()
            assert not lost
            return TraceReader(tmp_path / "trace")

        return ended

    return record


def test_the_fraction_is_kept_and_hangs_on_the_id_alone():
    chosen = [is_chosen(f"request-{at}", 0.2) for at in range(5000)]
    assert chosen == [is_chosen(f"request-{at}", 0.2) for at in range(5000)]
    assert abs(np.mean(chosen) - 0.2) < 0.03
    assert not any(is_chosen(str(at), 0.0) for at in range(100))
    assert all(is_chosen(str(at), 1.0) for at in range(100))


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
            assert (step.drafted[row] >= 0).all()
        if step.recorded.any():
            assert step.drafted.shape[1] == NEURAL_CAP
        assert step.forwards <= (0 if name == "none" else 3)


def test_a_recorded_request_is_what_the_drafter_and_the_target_said(recorded):
    requests = random_requests(8, 5, tokens=True, output_tokens=(6, 20))
    session = recording(parse_policy("none"), 5, 1.0)
    ended = recorded(session, DENSE)
    ScriptedEngine(requests, session).run()
    found = {each.id: each for each in ended().requests()}
    for at, request in enumerate(requests):
        kept = found[f"r{at}"]
        # The scripted engine's last step never comes to us, as a real one's does.
        length = len(kept.output_tokens)
        assert length >= len(request.output) - 1
        assert kept.output_tokens.tolist() == request.output[:length]
        assert kept.prompt_tokens.tolist() == request.prompt
        for position in range(1, length):
            assert kept.drafted_tokens[position].tolist() == request.drafted[position]
            expected = min(request.accepted[position], length - position)
            assert kept.neural_accepted[position] == expected


@pytest.mark.parametrize("mode", ["serve", "shadow"])
def test_logged_steps_and_figures_are_what_the_session_told(recorded, mode):
    requests = random_requests(9, 5, tokens=True, output_tokens=(10, 24))
    session = session_of(parse_policy("hybrid-splice:2:8:3:1:5"), 5, mode)
    heard, counters = Heard(session), Counters(None, {})
    ended = recorded(session, LOGGED)
    session.observers.add(MetricsObserver(counters))
    ScriptedEngine(requests, session).run()
    steps = list(ended().steps())
    drafted = sum(int(event.drafted.sum()) for event in heard["verified"])
    accepted = sum(int(event.accepted.sum()) for event in heard["verified"])
    sources = ("ngram", "neural", "splice")
    assert sum(counters[f"drafted_tokens/{source}"] for source in sources) == drafted
    assert sum(counters[f"accepted_tokens/{source}"] for source in sources) == accepted
    timed = [event for event in heard["verified"] if event.took_s is not None]
    assert timed
    kinds = ("none", "short", "long")
    assert sum(counters[f"clocked_steps/{kind}"] for kind in kinds) == len(timed)
    assert bool(counters["clocked_steps/short"] + counters["clocked_steps/long"]) == (
        mode == "serve"
    )
    for figure, told in (
        ("clocked_step_seconds", "took_s"),
        ("clocked_step_modelled_seconds", "step_s"),
    ):
        counted = sum(counters[f"{figure}/{kind}"] for kind in kinds)
        assert counted == pytest.approx(sum(getattr(event, told) for event in timed))
    decisions = sum(len(step.requests) for step in heard["proposed"])
    assert sum(counters[f"draft_len/{bound}"] for bound in (*LENGTHS, "inf")) == decisions
    if mode == "serve":
        assert drafted > 0
        assert sum(step.draft_len for step in steps) == drafted
        assert sum(step.accepted for step in steps) == accepted
    else:
        assert drafted == 0
        # Of drafts that reach past the text's end nobody knows what would have come.
        assert 0.7 * decisions < len(steps) < decisions
        assert sum(step.accepted for step in steps) > 0
        for step in steps:
            judged = step.draft_len if step.accepted == step.draft_len else step.accepted + 1
            assert step.position + judged <= step.output_len


def test_of_greedy_requests_a_log_holds_what_nobody_verified(recorded):
    """The drafter runs as far as any row wants it, so others have longer drafts than they use."""
    requests = random_requests(9, 8, tokens=True, output_tokens=(10, 24))
    session = session_of(parse_policy("hybrid-agree:1:8:4:1:4"), 8)
    ended = recorded(session, LOGGED)
    engine = ScriptedEngine(requests, session)
    for at in range(len(requests)):
        engine.params[at] = params_of(temperature=0 if at else 1)
    engine.run()
    longer = 0
    for step in ended().steps():
        at = int(step.id[1:])
        assert (step.unverified_tokens is None) >= (at == 0)
        if step.unverified_tokens is not None:
            drafted = requests[at].drafted[step.position][step.neural_len :]
            assert step.unverified_tokens.tolist() == drafted[: len(step.unverified_tokens)]
            longer += len(step.unverified_tokens) > 0
    assert longer > 3

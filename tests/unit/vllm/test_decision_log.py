"""A line of the decision log says of a step what was decided and why."""

import dataclasses
import json
import logging

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from scripted_engine import engine_of, params_of, repetitive, report_of

from adaspec.vllm.decision_log import MAX_ROWS, PREFIX, DecisionLog, document_of


@pytest.fixture
def lines(caplog):
    """The documents that were logged."""
    caplog.set_level(logging.INFO, "vllm.adaspec")

    def documents():
        texts = [each.getMessage() for each in caplog.records]
        return [json.loads(text[len(PREFIX) :]) for text in texts if text.startswith(PREFIX)]

    return documents


def test_a_line_tells_of_every_request_why_it_was_decided_so(lines):
    engine = engine_of("learned", repetitive(3))
    engine.session.observers.add(DecisionLog(1e9))
    engine.run(4)
    assert len(lines()) == 4
    for line, event in zip(lines(), engine.heard["proposed"], strict=True):
        assert line["running"] == 3
        assert line["price"] >= 0
        assert line["proposes"] is True
        assert [each["request"] for each in line["requests"]] == ["r0", "r1", "r2"]
        assert [each["neural_len"] for each in line["requests"]] == event.neural_len.tolist()
        assert [each["ngram_len"] for each in line["requests"]] == event.ngram_len.tolist()
        for each in line["requests"]:
            curve = each["survival"]
            assert len(curve) >= each["neural_len"] + each["ngram_len"]
            assert curve == sorted(curve, reverse=True)
            assert all(0 <= chance <= 1 for chance in curve)
            assert each["expected_accepted"] >= 0
    assert not engine.session.breaker.counts


def test_few_steps_are_logged_and_few_requests_of_each(lines):
    engine = engine_of("hybrid-splice:2:8:3:1:5", repetitive(12))
    engine.session.observers.add(DecisionLog(1e-3))
    engine.run()
    (line,) = lines()
    assert line["running"] == 12
    assert len(line["requests"]) == MAX_ROWS


def test_a_request_for_which_nothing_is_drafted_has_the_reason():
    engine = engine_of("none", repetitive(3))
    engine.params[0] = params_of(adaspec="off")
    engine.step()
    (drafted,) = engine.heard["proposed"]

    def reasons(**changes):
        event = dataclasses.replace(drafted, recorded=np.array([False, True, False]), **changes)
        return [each["reason"] for each in document_of(event)["requests"]]

    assert reasons() == ["limited", "recorded", "policy"]
    weighed = report_of([[0.53, 0.2]] * 3, [0] * 3)
    assert reasons(report=weighed, price=0.61) == [
        "limited",
        "recorded",
        "policy: likeliest token 0.53, price 0.61",
    ]

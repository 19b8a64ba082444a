"""A line of the decision log says of a step what was decided and why."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from test_session import CAP, Heard, ScriptedEngine, asking, repetitive, session_of

sys.path.append(str(Path(__file__).parents[1] / "policy"))
sys.path.append(str(Path(__file__).parent / "v2"))

from random_models import random_model
from v2_fakes import no_tables

from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.spec import parse_policy
from adaspec.predict.features import BEFORE
from adaspec.vllm.decision_log import MAX_ROWS, PREFIX, DecisionLog, _reason


def learned(seed=5):
    return LearnedPolicy("random", random_model(seed, no_tables(), evidence=True), CAP, 4)


@pytest.fixture
def lines(caplog):
    """The documents that were logged."""
    caplog.set_level(logging.INFO, "vllm.adaspec")

    def documents():
        texts = [each.getMessage() for each in caplog.records]
        return [json.loads(text[len(PREFIX) :]) for text in texts if text.startswith(PREFIX)]

    return documents


def test_a_line_tells_of_every_request_why_it_was_decided_so(lines):
    session = session_of(learned(), 3)
    session.observers.add(DecisionLog(1e9))
    events = Heard(session)["proposed"]
    engine = ScriptedEngine(repetitive(3), session)
    for _ in range(4):
        engine.step()
    assert len(lines()) == 4
    for line, event in zip(lines(), events, strict=True):
        assert line["running"] == 3
        assert line["price"] >= 0
        assert line["proposes"] is True
        assert [each["request"] for each in line["requests"]] == ["r0", "r1", "r2"]
        assert [each["neural_len"] for each in line["requests"]] == event.cut.neural_len.tolist()
        assert [each["ngram_len"] for each in line["requests"]] == event.cut.ngram_len.tolist()
        for each in line["requests"]:
            assert set(each["features"]) == set(BEFORE)
            assert len(each["survival_ngram"]) == 8
            assert len(each["survival_neural"]) == 4
            curve = each["survival_ngram"]
            assert curve == sorted(curve, reverse=True)
            assert all(0 <= chance <= 1 for chance in curve)
            assert each["expected_accepted"] >= 0
    assert not session.breaker.counts


def test_a_policy_without_a_model_gives_no_reasons_and_few_steps_are_logged(lines):
    session = session_of(parse_policy("hybrid-splice:2:8:3:1:5"), 12)
    session.observers.add(DecisionLog(1e-3))
    ScriptedEngine(repetitive(12), session).run()
    (line,) = lines()
    assert line["running"] == 12
    assert len(line["requests"]) == MAX_ROWS
    assert "price" not in line
    assert "features" not in line["requests"][0]


def test_a_request_for_which_nothing_is_drafted_has_the_reason(lines):
    for policy, asked, reason in (
        (learned(), {"adaspec": "off"}, "limited"),
        (parse_policy("none"), {}, "policy"),
    ):
        session = session_of(policy, 3)
        session.observers.add(DecisionLog(1e9))
        asking(ScriptedEngine(repetitive(3), session), **asked).step()
        assert lines()[-1]["requests"][0]["reason"] == reason
    curves = {"survival_ngram": [0.53, 0.2], "survival_neural": [0.4]}
    said = _reason("none/policy", 0.61, curves)
    assert said == "policy: likeliest token 0.53, price 0.61"
    assert _reason("none/recorded", 0.61, curves) == "recorded"


class Shortening(LearnedPolicy):
    """Keeps what was expected before and after a request's cap cut its draft."""

    def shortened(self, proposal, neural_len, ngram_len):
        before = self.planner.memory.expected.copy()
        super().shortened(proposal, neural_len, ngram_len)
        after = self.planner.memory.expected
        self.cuts.append((proposal, neural_len.copy(), ngram_len.copy(), before, after.copy()))


@pytest.mark.parametrize("seed", range(4))
def test_of_a_draft_that_a_request_cut_only_what_is_left_is_expected(seed):
    policy = Shortening("random", random_model(seed, no_tables(), evidence=True), CAP, 4)
    policy.cuts = []
    session = session_of(policy, 3)
    engine = asking(ScriptedEngine(repetitive(3), session), adaspec_cap=1)
    engine.run(8)
    assert not session.breaker.counts
    assert policy.cuts
    for proposal, neural, ngram, before, after in policy.cuts:
        whole = (neural == proposal.neural_len) & (ngram == proposal.ngram_len)
        assert np.array_equal(before[:3][whole], after[:3][whole])
        assert (after <= before).all()
        assert (neural + ngram)[0] <= 1
        assert after[0].sum() <= 1 + 1e-9

"""What the replay does not let a policy ask or propose, refused in one clear line each."""

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from random_recordings import NEURAL_CAP, random_cost, random_requests, recording_of
from refusals import refusal

from adaspec.errors import AdaspecError, PolicyFault
from adaspec.policy.base import BasePolicy
from adaspec.policy.protocol import Batch, Policy, Proposal
from adaspec.replay.closed_loop import Result
from adaspec.replay.loop import run_policy

COST = random_cost(np.random.default_rng(7))


class Deciding(BasePolicy):
    """Drafts two tokens, then decides as the test says."""

    name = "crooked"

    def __init__(self, decide: Callable[[Batch], Any], forwards: object = 2) -> None:
        self._decide, self._forwards = decide, forwards

    def forwards(self, batch: Batch) -> int:
        return self._forwards  # type: ignore[return-value]

    def decide(self, batch: Batch) -> Proposal:
        return self._decide(batch)


def drive(policy: Policy, *, tokens: bool = True) -> Result:
    recording = recording_of(random_requests(1, 4, tokens=tokens, output_tokens=(6, 12)))
    return run_policy(recording, policy, np.arange(4, dtype=np.int32), 2, COST, 9)


def proposed(neural: object, ngram: object, start: object = None) -> Callable[..., Proposal]:
    where = None if start is None else np.array(start)
    return lambda batch: Proposal(np.array(neural), np.array(ngram), where)


ILLEGAL = {
    "more than drafted": (proposed([3, 0], [0, 0]), r"more neural tokens than were drafted \(2\)"),
    "negative neural": (proposed([-1, 0], [0, 0]), "negative length"),
    "negative ngram": (proposed([0, 0], [0, -1]), "negative length"),
    "one row": (proposed([1], [0]), r"neural_len of shape \(1,\).* each of 2 running rows"),
    "a matrix": (proposed([[1, 1]], [0, 0]), r"shape \(1, 2\)"),
    "NaN": (proposed([0, 0], [np.nan, 0]), "type float64"),
    "words": (proposed(["a", "b"], [0, 0]), "one whole number"),
    "booleans": (proposed([True, False], [0, 0]), "type bool"),
    "just beyond the text": (
        lambda b: Proposal(np.zeros(2, int), np.ones(2, int), b.context_tokens),
        "beyond the known text",
    ),
    "before the text": (proposed([0, 0], [1, 1], [-2, 0]), "-1 is the most recent match"),
    "another place to splice": (proposed([1, 0], [1, 1], [0, 0]), "no other can be named"),
    "starts of one row": (proposed([0, 0], [1, 1], [0]), r"ngram_start of shape \(1,\)"),
    "huge": (proposed([2**32 + 1, 0], [0, 0]), "more neural tokens than were drafted"),
    "nothing": (lambda b: None, "decides on None, not on a Proposal"),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_proposals_are_refused_in_one_line(case):
    decide, said = ILLEGAL[case]
    fault = refusal(PolicyFault, drive, Deciding(decide))
    assert "'crooked'" in fault
    assert re.search(said, fault)


def test_illegal_numbers_of_forwards_are_refused_in_one_line():
    for forwards in (-1, NEURAL_CAP + 1, 1.5, np.nan, "2", None):
        with pytest.raises(PolicyFault, match=r"'crooked' asks for .* forwards"):
            drive(Deciding(proposed([0, 0], [0, 0]), forwards))


@pytest.mark.parametrize(
    ("stage", "method", "said"),
    [
        ("start", Mock(side_effect=KeyError("table")), "failed in start: KeyError: 'table'"),
        ("forwards", Mock(side_effect=SystemExit(0)), "failed in forwards: SystemExit: 0"),
        ("holds_drafter", lambda load: "maybe", "answers holds_drafter with 'maybe': True or"),
    ],
)
def test_a_policy_that_fails_is_named_with_the_stage(stage, method, said):
    policy = Deciding(proposed([0, 0], [0, 0]))
    setattr(policy, stage, method)
    with pytest.raises(PolicyFault, match=f"policy 'crooked' {said}"):
        drive(policy)


ASKED: dict[str, Callable[[Batch], object]] = {
    "tail of -1": lambda b: b.context.tail(-1),
    "tail of half": lambda b: b.context.tail(0.5),  # type: ignore[arg-type]
    "candidate of nothing": lambda b: b.context.candidate(None),  # type: ignore[arg-type]
    "behind 3 of 2": lambda b: b.drafts.splice_match(np.array([3, 0])),
    "behind -1": lambda b: b.drafts.splice_match(np.array([-1, 0])),
    "behind one row": lambda b: b.drafts.splice_match(np.array([1])),
    "behind NaN": lambda b: b.drafts.splice_match(np.array([np.nan, 1])),  # type: ignore[arg-type]
    "behind a number": lambda b: b.drafts.splice_match(1),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("tokens", [False, True], ids=["without tokens", "with tokens"])
@pytest.mark.parametrize("case", ASKED)
def test_illegal_questions_are_refused_in_one_line(case, tokens):
    assert refusal(AdaspecError, drive, Deciding(ASKED[case]), tokens=tokens)


def test_nothing_is_drafted_nor_looked_up_where_no_drafter_is_held():
    def ask(batch: Batch) -> Proposal:
        assert (batch.drafts.tokens[1] == -1).all()
        batch.drafts.splice_match(np.array([0, 1]))
        raise AssertionError("was answered")

    for answers, said in (
        ([True, False], "rows that hold the drafter"),
        ([False, False], "no request holds the neural drafter"),
    ):
        policy = Deciding(ask)
        policy.holds_drafter = Mock(side_effect=[*answers, *[True] * 9])
        with pytest.raises(PolicyFault, match=said):
            drive(policy)


def test_nothing_is_looked_up_behind_drafted_tokens_that_the_trace_lacks():
    def look(batch: Batch) -> Proposal:
        batch.drafts.splice_match(np.array([2, 1]))
        return Proposal(np.array([2, 1]), np.array([3, 3]))

    drive(Deciding(look), tokens=True)
    with pytest.raises(PolicyFault, match="which this trace lacks"):
        drive(Deciding(look), tokens=False)
    drive(Deciding(proposed([2, 1], [3, 3])), tokens=False)

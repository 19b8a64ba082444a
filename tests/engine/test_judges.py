"""What the judges of losslessness complain of: of long runs (eval/soak), and on GPUs (eval/gpu)."""

import sys
from dataclasses import replace

import pytest
from checkout import CHECKOUT, need

need("eval")
sys.path += [str(CHECKOUT / "eval" / each) for each in ("soak", "gpu")]

from long_judge import Output, complaint  # noqa: E402
from long_requests import Asked  # noqa: E402
from lossless import compared, verdict  # noqa: E402

GREEDY = Asked("r0", [5, 6], {"temperature": 0, "max_tokens": 8}, 0)
SAMPLED = replace(GREEDY, params={"temperature": 0.8, "max_tokens": 8, "n": 2})
TRUTH = Output([7, 8, 9], "length", [-0.1, -0.2, -0.3])


@pytest.mark.parametrize(
    ("asked", "found", "says"),
    [
        (SAMPLED, [TRUTH, Output([1], "stop")], None),
        (replace(GREEDY, abort_after=3), [Output([7, 8], None)], None),
        (GREEDY, [Output([7, 8, 1], "length")], "differs from token 2"),
        (GREEDY, [Output([7, 8], None)], "never ended"),
        (GREEDY, [Output([7, 8, 9], "length", [-0.1, -0.2, -0.9])], "log-probability"),
        (SAMPLED, [TRUTH, Output([500], "stop")], "vocabulary"),
    ],
)
def test_an_output_that_is_wrong_is_a_complaint_and_no_other(asked, found, says):
    said = complaint(asked, TRUTH if asked.greedy else None, found)
    assert said is None if says is None else says in said


def test_only_nearly_tied_tokens_may_differ():
    likely = [{1: -0.1, 2: -3.0}, {5: -0.7, 6: -0.7001}, {3: -0.1}]
    expected = [([1, 5, 3], likely)] * 4
    found = [([1, 5, 3], []), ([1, 6, 9], []), ([2, 5, 3], []), ([1, 5], [])]
    result = compared(expected, found, 1e-3)
    assert (result["equal"], result["near_tie"], result["different"]) == (1, 1, 2)
    assert [each["place"] for each in result["differences"]] == [0, 2]


def test_a_check_that_saw_nothing_is_no_success():
    taken = {"ngram": 3, "neural": 3, "splice": 3}
    good = {"seed": 1, "equal": 9, "near_tie": 0, "different": 0, "taken": taken, "faults": {}}
    assert verdict([good])["problems"] == []
    assert verdict([good, {"faults": {"plan": 3}}])["problems"] == []
    bad = [{"different": 1}, {"faults": {"plan": 1}}, {"taken": taken | {"splice": 0}}]
    for rounds in ([good, {"faults": {}}], *([good | each] for each in bad)):
        assert len(verdict(rounds)["problems"]) == 1

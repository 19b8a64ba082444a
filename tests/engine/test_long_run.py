"""What the long run complains of."""

import sys
from dataclasses import replace

import pytest
from checkout import CHECKOUT, need

need("eval")
sys.path.append(str(CHECKOUT / "eval" / "soak"))

from long_judge import Output, complaint  # noqa: E402
from long_requests import Asked  # noqa: E402

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

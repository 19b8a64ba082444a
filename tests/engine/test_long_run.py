"""The long run itself: what it draws is varied and repeatable, and what is wrong is found."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "eval" / "soak"
if not FOLDER.is_dir():
    pytest.skip("needs eval/, which a source distribution leaves out", allow_module_level=True)
sys.path.append(str(FOLDER))

import long_v1  # noqa: E402
from long_faults import LOSSES  # noqa: E402
from long_judge import Output, complaint  # noqa: E402
from long_requests import Asked  # noqa: E402
from long_run import plans_of, waves_of  # noqa: E402

GREEDY = Asked("r0", [5, 6], {"temperature": 0, "max_tokens": 8}, 0)
SAMPLED = replace(GREEDY, params={"temperature": 0.8, "max_tokens": 8, "n": 2})
TRUTH = Output([7, 8, 9], "length", [-0.1, -0.2, -0.3])


@pytest.mark.parametrize(
    ("asked", "found", "says"),
    [
        (GREEDY, [TRUTH], None),
        (SAMPLED, [TRUTH, Output([1], "stop")], None),
        (replace(GREEDY, abort_after=3), [Output([7, 8], None)], None),
        (GREEDY, [Output([7, 8, 1], "length")], "differs from token 2"),
        (GREEDY, [Output([7, 8], None)], "never ended"),
        (GREEDY, [Output([7, 8, 9], "length", [-0.1, -0.2, -0.9])], "log-probability"),
        (SAMPLED, [TRUTH, Output([500], "stop")], "vocabulary"),
        (replace(GREEDY, abort_after=2), [Output([7, 1], None)], "differs from token 1"),
    ],
)
def test_an_output_that_is_wrong_is_a_complaint_and_no_other(asked, found, says):
    said = complaint(asked, TRUTH if asked.greedy else None, found)
    assert said is None if says is None else says in said


def test_every_fault_is_put_into_a_wave_that_can_have_it():
    sizes = waves_of(2000, long_v1.SHAPES)
    assert sum(map(sum, sizes)) == 2000
    plans = plans_of(np.random.default_rng(0), sizes, long_v1)
    assert {fault for one in plans for fault in one} == {None, *long_v1.FAULTS, *LOSSES}
    for shape, one in zip(long_v1.SHAPES, plans, strict=True):
        assert shape.head is not None or not set(one) & set(long_v1.NEEDS_HEAD)

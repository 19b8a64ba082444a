"""Where an output of the recorded target is a loop."""

import sys

import pytest
from checkout import CHECKOUT, need

need("training")
sys.path.insert(0, str(CHECKOUT / "training" / "reference_pair"))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (list(range(80)), 0),
        ([*range(40), *[7] * 33], 32),
        ([*range(40), *[7] * 32], 0),  # 31 of them repeat the first
        ([*range(40), *[1, 2, 3] * 14], 39),
        ([*range(40), *range(20), *range(20)], 0),  # said twice is no loop
        ([*range(40), *[*range(20)] * 3], 40),
        ([*[1, 2, 3] * 20, 99], 0),  # it got out again
        ([5], 0),
        ([], 0),
    ],
)
def test_a_loop_repeats_itself_to_the_end(output, expected):
    from loops import looping_tokens

    assert looping_tokens(output) == expected

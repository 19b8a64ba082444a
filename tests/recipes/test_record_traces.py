"""What the recording recipe does without an engine: turns, loops, and what is kept."""

import sys
from pathlib import Path

import numpy as np
import pytest

from adaspec.trace.manifest import Manifest
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import CONFIDENCES, Request
from adaspec.trace.writer import TraceWriter

RECIPE = Path(__file__).parents[2] / "training" / "reference_pair"
pytestmark = pytest.mark.skipif(
    not RECIPE.is_dir(), reason="training/ is not here: a source distribution leaves it out"
)
sys.path.insert(0, str(RECIPE))


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


def test_loops_go_apart_and_short_ones_nowhere_whatever_the_order(tmp_path):
    from record_traces import sort_out, write

    manifest = Manifest(
        kind="dense", drafter="head", draft_cap=2, neural_cap=2, confidences=CONFIDENCES
    )
    outputs = {"c": [7] * 70, "b": list(range(70)), "a": list(range(90)), "d": list(range(10))}

    def request(name):
        size = len(outputs[name])
        drafted = np.full((size, 2), 1, np.int32)
        confidences = np.full((size, 2, 3), -0.123456, np.float32)
        confidences[..., 1:] = 0.123456
        drafted[0], confidences[0] = -1, np.nan
        return Request(
            "w",
            name,
            prompt_tokens=np.arange(3, dtype=np.int32),
            output_tokens=np.array(outputs[name], np.int32),
            neural_accepted=np.array([-1, *[0] * (size - 1)], np.int16),
            drafted_tokens=drafted,
            confidences=confidences,
        )

    with TraceWriter(tmp_path / "raw", manifest) as writer:
        for name in outputs:
            writer.add(request(name))
    found = sort_out(TraceReader(tmp_path / "raw"), 64)
    named = {what: [each.id for each in requests] for what, requests in found.items()}
    assert named == {"kept": ["a", "b"], "looping": ["c"], "short": ["d"]}
    write(found["kept"], manifest, tmp_path / "kept")
    (first, _) = TraceReader(tmp_path / "kept").requests()
    assert np.unique(first.confidences[1:] * 256 % 1).tolist() == [0.0]

"""What a runner's requests allow of a draft."""

import types

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

from adaspec.vllm.session.requests import RunningRequest
from adaspec.vllm.v1.attachment import UNLIMITED, room_of


def states(*asked):
    """Requests by their min_tokens and the tokens that end them; None has no parameters."""
    return [
        types.SimpleNamespace(
            sampling_params=each
            and types.SimpleNamespace(min_tokens=each[0], all_stop_token_ids=each[1])
        )
        for each in asked
    ]


@pytest.mark.parametrize(
    ("asked", "output", "room"),
    [
        # A draft ends before the length from which a request may stop.
        ([(6, {2})] * 4, [0, 4, 5, 6], [5, 1, 0, UNLIMITED]),
        ([(6, {2}), (0, {2}), (6, set()), None], [0] * 4, [5, *[UNLIMITED] * 3]),
        # Where nobody must go on, nothing is limited.
        ([(0, {2}), (3, {2}), (9, set()), None], [0, 3, 0, 0], None),
        ([], [], None),
    ],
)
def test_a_draft_has_the_room_that_its_request_leaves_it(asked, output, room):
    found = room_of(states(*asked), np.array(output, np.int32))
    assert (None if found is None else found.tolist()) == room


def test_a_request_ends_at_the_models_longest_length_whatever_it_asks_for():
    prompt = np.arange(10, dtype=np.int32)
    params = types.SimpleNamespace(max_tokens=100, min_tokens=0, ignore_eos=True)
    for count, is_whole in ((5, False), (6, True)):
        request = RunningRequest("one", prompt, [7] * count, params, None, max_model_len=16)
        assert request.is_whole == is_whole

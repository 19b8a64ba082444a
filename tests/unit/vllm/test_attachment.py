"""What a runner's requests allow of a draft."""

import types

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

from adaspec.vllm.attachment import room_of
from adaspec.vllm.options import MAX_VERIFIED


def states(*asked, max_tokens=None):
    """Requests by their min_tokens and the tokens that end them; None has no parameters."""
    return [
        types.SimpleNamespace(
            sampling_params=each
            and types.SimpleNamespace(
                min_tokens=each[0], all_stop_token_ids=each[1], max_tokens=max_tokens
            )
        )
        for each in asked
    ]


def test_a_draft_ends_before_the_length_from_which_a_request_may_stop():
    asked = states((6, {2}), (6, {2}), (6, {2}), (6, {2}), (0, {2}), (6, set()), None)
    room = room_of(asked, np.array([0, 4, 5, 6, 0, 0, 0], np.int32))
    assert room[:3].tolist() == [5, 1, 0]
    assert (room[3:] == MAX_VERIFIED).all()


def test_a_draft_ends_where_the_output_ends_at_the_latest():
    asked = states((0, {2}), (0, {2}), (0, set()), (6, {2}), None, max_tokens=9)
    room = room_of(asked, np.array([0, 7, 8, 3, 0], np.int32))
    assert room.tolist() == [8, 1, 0, 2, MAX_VERIFIED]
    far = states((0, {2}), max_tokens=MAX_VERIFIED + 1)
    assert room_of(far, np.zeros(1, np.int32)) is None


def test_where_nobody_must_go_on_nothing_is_limited():
    asked = states((0, {2}), (3, {2}), (9, set()), None)
    assert room_of(asked, np.array([0, 3, 0, 0], np.int32)) is None
    assert room_of([], np.zeros(0, np.int32)) is None

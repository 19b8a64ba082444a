from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from adaspec.errors import TraceError
from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import Request
from adaspec.trace.scramble import scramble_ids, scramble_request, unscramble_ids
from adaspec.trace.soundness import check_request

SECRET = b"sixteen bytes or more"


def test_scrambling_is_a_permutation_of_the_whole_vocabulary() -> None:
    scrambled = scramble_ids(np.arange(5000), SECRET, 5000)
    assert scrambled.dtype == np.int32
    assert sorted(scrambled) == list(range(5000))
    assert (scrambled == np.arange(5000)).mean() < 0.01


def test_scrambling_is_the_same_on_every_machine_and_release() -> None:
    assert scramble_ids(np.arange(4), SECRET, 128_256).tolist() == PINNED


PINNED = [51138, 34047, 76532, 124248]


def test_another_secret_gives_another_permutation() -> None:
    one, other = (scramble_ids(np.arange(1000), SECRET + end, 1000) for end in (b"", b"!"))
    assert (one == other).mean() < 0.02


def test_null_stays_null() -> None:
    assert scramble_ids(np.array([-1, 3, -1]), SECRET, 10)[[0, 2]].tolist() == [-1, -1]


def test_a_scrambled_request_keeps_what_a_replay_reads(
    dense: Manifest, request_of: Callable[..., Request]
) -> None:
    request = request_of()
    scrambled = scramble_request(request, SECRET, 300)
    check_request(scrambled, dense, "scrambled")
    assert not np.array_equal(scrambled.output_tokens, request.output_tokens)
    assert scrambled.id == request.id
    assert scrambled.confidences is request.confidences
    tokens = np.concatenate([request.prompt_tokens, request.output_tokens])
    hidden = np.concatenate([scrambled.prompt_tokens, scrambled.output_tokens])
    assert np.array_equal(hidden[:, None] == hidden, tokens[:, None] == tokens)
    np.testing.assert_array_equal(unscramble_ids(hidden, SECRET, 300), tokens)


@pytest.mark.parametrize("token", [-2, 10])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(TraceError, match=f"token id {token} is outside the vocabulary of 10"):
        scramble_ids(np.array([1, token]), SECRET, 10)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(TraceError, match="has 5 bytes, at least 16"):
        scramble_ids(np.array([1]), b"guess", 10)

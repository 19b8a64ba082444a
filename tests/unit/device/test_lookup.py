"""The scan finds what the index finds, in the text and behind drafted tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaspec.draft.index import Matches, NgramIndex

torch = pytest.importorskip("torch", reason="torch is not installed")

from adaspec.device.lookup import Match, append, copies, look_up, read_text, tail  # noqa: E402


def assert_same(found: Match, wanted: Matches) -> None:
    for name in ("length", "start", "agree", "seen", "available"):
        np.testing.assert_array_equal(getattr(found, name).numpy(), getattr(wanted, name), name)


def assert_found(texts: list[np.ndarray], drafts: np.ndarray, rng: np.random.Generator) -> None:
    """What the index says of these texts and behind these drafts, said of a buffer of slots."""
    rows, depths = drafts.shape
    slots = rng.permutation(rows + 2)[:rows]
    width = max(len(text) for text in texts) + int(rng.integers(0, 9))
    # What is left over from other requests must not be read.
    buffer = rng.choice(np.concatenate(texts), (rows + 2, width)).astype(np.int32)
    lengths = np.full(rows + 2, width, np.int32)
    for slot, text in zip(slots, texts, strict=True):
        buffer[slot, : len(text)], lengths[slot] = text, len(text)
    index = NgramIndex()
    opened = [index.open(text) for text in texts]
    read = read_text(
        torch.from_numpy(buffer), torch.from_numpy(lengths), torch.from_numpy(slots), depths
    )
    wanted, last, copied = index.survey(opened, 3, 8)
    found = look_up(read)
    assert_same(found, wanted)
    np.testing.assert_array_equal(tail(read, 3).numpy(), last)
    np.testing.assert_array_equal(copies(read, found.start, 8).numpy(), copied)
    np.testing.assert_array_equal(found.follower.numpy(), copied[:, 0])
    for depth in range(1, depths + 1):
        read = append(read, torch.from_numpy(drafts[:, depth - 1].copy()))
        behind, drafted = look_up(read), [depth] * rows
        wanted = index.lookup_behind(opened, drafts, drafted)
        assert_same(behind, wanted)
        first = index.propose(opened, wanted.start, [1] * rows, drafts, drafted)
        np.testing.assert_array_equal(behind.follower.numpy(), first[:, 0])


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_it_finds_the_indexs_matches_in_random_texts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alphabet, rows = int(rng.integers(1, 6)), int(rng.integers(1, 7))
    longest = int(rng.choice([1, 3, 12, 80, 200]))
    texts = [
        rng.integers(0, alphabet, rng.integers(1, longest, endpoint=True)).astype(np.int32)
        for _ in range(rows)
    ]
    drafts = rng.integers(0, alphabet, (rows, rng.integers(0, 9))).astype(np.int32)
    assert_found(texts, drafts, rng)


def test_a_match_of_more_tokens_than_the_bound_counts_as_the_bound() -> None:
    span = np.arange(100, 150, dtype=np.int32)
    text = np.concatenate([span, [1], span])
    assert_found([text], np.array([[1, 100]], np.int32), np.random.default_rng(0))

"""The ring of ended answers, against a plain search through the last tokens of all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ring_match

from adaspec.draft.chains import IN_RING
from adaspec.draft.index import NgramIndex
from adaspec.draft.ring import Ring, read_ring, ring_of, write_ring
from adaspec.errors import DraftError

CAPACITY = 1024


def found(ring: Ring | None, text: list[int]):
    """Whether the match of a text is in the ring, and its facts."""
    index = NgramIndex(1, ring)
    index.open(0, np.array(text, np.int32))
    matches, _, copied = index.survey(np.arange(1), 1, 1)
    start = int(matches.start[0])
    facts = (matches.votes[0], matches.occurrences[0], matches.available[0])
    return start >= IN_RING, (matches.length[0], [copied[0, 0]] if start >= 0 else [], *facts)


ANSWERS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=90), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(ANSWERS, st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(1, 4))
def test_the_ring_is_searched_as_a_scan_of_its_last_tokens_would(answers, text, times) -> None:
    ring, stored = Ring(CAPACITY), []
    for answer in answers * times:  # so that the tokens move to the front, too
        ring.append(answer)
        stored += [*answer, -1]
    stored = stored[-CAPACITY:]
    np.testing.assert_array_equal(ring.tokens[-CAPACITY:], stored)
    own, (match, votes, occurrences) = found(None, text)[1], ring_match(stored, text)
    facts = (match.length, match.copy[:1], votes, occurrences, len(match.copy))
    assert found(ring, text) == ((True, facts) if match.length > own[0] else (False, own))


def test_an_answer_is_kept_as_far_as_it_is_known_and_fits() -> None:
    ring = ring_of([[5, 6, -1, 7], [], [-1, 8]])
    assert ring.tokens.tolist() == [5, 6, -1]
    ring = Ring(CAPACITY)
    ring.append(np.arange(3 * CAPACITY))
    assert ring.tokens[0] == 2 * CAPACITY + 1 and len(ring.tokens) == CAPACITY


def test_a_file_holds_what_was_searched_and_is_its_owners_alone(tmp_path) -> None:
    ring, path = ring_of([[1, 2, 3]] * 900, CAPACITY), tmp_path / "ring"
    write_ring(path, ring.searched, "v")
    assert path.stat().st_mode & 0o777 == 0o600
    again = ring_of(read_ring(path, "v", 4), CAPACITY)
    np.testing.assert_array_equal(again.searched, ring.searched)
    for vocabulary, size, why in (("w", 4, "of another vocabulary"), ("v", 3, "of 3")):
        with pytest.raises(DraftError, match=why):
            read_ring(path, vocabulary, size)
    path.write_bytes(path.read_bytes()[:90])
    with pytest.raises(DraftError, match="holds no ring"):
        read_ring(path, "v", 4)

"""What a ring of ended answers holds, in memory and in a file."""

import numpy as np
import pytest

from adaspec.draft.matches import Ring, read_ring, ring_of, write_ring
from adaspec.errors import DraftError

CAPACITY = 1024


def test_an_answer_is_kept_as_far_as_it_is_known_and_fits():
    ring = ring_of([[5, 6, -1, 7], [], [-1, 8]])
    assert ring.tokens.tolist() == [5, 6, -1]
    ring = Ring(CAPACITY)
    ring.append(np.arange(3 * CAPACITY))
    assert ring.tokens[0] == 2 * CAPACITY + 1 and len(ring.tokens) == CAPACITY


def test_a_file_holds_what_was_searched_and_is_its_owners_alone(tmp_path):
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

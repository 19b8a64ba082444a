"""What a match is: its facts, and how far texts are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled

Ints = NDArray[np.int32]

LENGTH, START, VOTES, OCCURRENCES, AVAILABLE, MATCH_FIELDS = range(6)
"""The fields of `Matches` as rows of an array, and how many there are."""
LONGEST_MATCH = 32
"""So many tokens before two places are compared."""
MOST_OCCURRENCES = 8
"""So many of the latest occurrences count."""
IN_RING = 1 << 30
"""A match in the ring starts at IN_RING + its place there; contexts end below."""


@dataclass(slots=True)
class Matches:
    """The match of each context in question; every array has one entry per slot.

    An occurrence is an earlier end of the context's longest repeated suffix, which it may overlap.
    """

    length: Ints
    """The length in tokens of the longest match of the context's suffix, 0 to `LONGEST_MATCH`."""
    start: Ints
    """The index of the token that follows the most recent occurrence, -1 if none.

    Where the match is in the ring, `IN_RING` + its place there."""
    votes: Ints
    """How many of the latest 8 occurrences are followed by the same token as the most recent."""
    occurrences: Ints
    """The number of occurrences that `votes` is about, 0 to 8."""
    available: Ints
    """The number of known tokens from `start` on, 0 if there is no match."""


@compiled
def common_end(tokens: Ints, place: int, text: Ints, known: int, most: int) -> int:
    """How many tokens before a place are the last of a text's `known` tokens, up to `most`."""
    length, most = 0, min(most, place, known)
    while length < most and tokens[place - 1 - length] == text[known - 1 - length]:
        length += 1
    return length

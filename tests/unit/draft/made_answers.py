"""Earlier answers at random."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from adaspec.draft.answers import BYTES_PER_TOKEN, AnswerIndex

CAPACITY = 1_500
"""Tokens, of which random answers fill the room more than once."""
OWNERS = 4
"""Owners are below it; 0 is nobody."""


def empty_index() -> AnswerIndex:
    """An index with room for `CAPACITY` tokens."""
    return AnswerIndex(CAPACITY * BYTES_PER_TOKEN)


def random_answers(
    rng: np.random.Generator, alphabet: int, count: int = 120
) -> Iterator[tuple[np.ndarray, int]]:
    """So many answers with their owners, many of which begin alike."""
    given: list[np.ndarray] = []
    for _ in range(count):
        answer = rng.integers(0, alphabet, rng.integers(1, 60)).astype(np.int32)
        if given and rng.random() < 0.5:
            before = given[rng.integers(len(given))]
            answer = np.append(before[: rng.integers(1, 40)], answer[:9])
        given.append(answer)
        yield answer, int(rng.integers(1, OWNERS))

"""The ring: the last tokens of ended answers, searched as a request's own text is.

Answers lie one behind another in a text of `chains`, with -1 behind each, so that no match reaches
from one answer into another. A look-up reads the last `capacity` tokens; there is room for twice as
many, and when that is full, those move to the front. A request searches the ring as well as its own
text, and takes the ring's match where its own is shorter, all counted as `TIMES` says. Where
occurrences in the ring disagree on what comes next, they vote: here the latest is no likelier.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adaspec.draft.chains import (
    AVAILABLE,
    IN_RING,
    LENGTH,
    LONGEST_MATCH,
    MOST_OCCURRENCES,
    OCCURRENCES,
    START,
    TEXT,
    VOTES,
    Ints,
    append,
    latest_places,
    new_text,
    text_of,
    votes_for,
)
from adaspec.errors import DraftError
from adaspec.files import new_file
from adaspec.jit import compiled

RING_TOKENS = 1 << 16
"""So many tokens are searched unless somebody says otherwise."""
TIMES = 2
"""So many tokens that another's answer repeats say about as much of the next one as a single token
that the own text repeats: the length of a match in the ring is divided by this."""
LONGEST_COPY = 64
"""What can be copied from an answer is counted up to so many tokens."""


class Ring:
    """Ended answers, as many as fit; the oldest leave first."""

    def __init__(self, capacity: int = RING_TOKENS) -> None:
        """`capacity` counts the tokens that are searched, with one more for each answer."""
        self.capacity = capacity
        self.record = np.zeros(1, TEXT)
        """Where the tokens lie, for compiled code."""
        self._words = new_text(self.record[0], 2 * capacity)
        self.moves = 0
        """How often the tokens have moved to the front."""

    @property
    def tokens(self) -> Ints:
        """All tokens by place, -1 behind each answer; only the last `capacity` are searched."""
        return self._words[: self.record["known"][0]]

    @property
    def searched(self) -> Ints:
        """A copy of the tokens that are searched."""
        return self.tokens[-self.capacity :].copy()

    def append(self, answer: ArrayLike) -> None:
        """Take in an answer, as far as its tokens are known (-1: one that is not)."""
        tokens = np.asarray(answer, np.int32)
        unknown = np.flatnonzero(tokens < 0)
        tokens = tokens[: unknown[0]] if len(unknown) else tokens
        tokens = tokens[-(self.capacity - 1) :]
        if len(tokens) == 0:
            return
        if len(self.tokens) + len(tokens) + 1 > 2 * self.capacity:
            last = self.searched
            self._words[:] = 0
            self.record["known"] = 0
            self.moves += 1
            append_all(self.record[0], last)
        append_all(self.record[0], np.append(tokens, np.int32(-1)))


NO_RING = np.zeros(1, TEXT)
"""The record of a ring in which nothing is found."""


def write_ring(path: Path, tokens: Ints, vocabulary: str) -> None:
    """Write a ring's searched tokens, and of which vocabulary they are, for `read_ring`."""
    with new_file(path, DraftError, mode=0o600) as file:
        np.savez(file, tokens=tokens, vocabulary=np.array(vocabulary))


def read_ring(path: Path, vocabulary: str, size: int) -> list[Ints]:
    """The answers that a file holds, the first as far as it was searched.

    A `DraftError` where they are not of this vocabulary of so many tokens, or the file is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            tokens, written = file["tokens"], str(file["vocabulary"])
    except Exception as error:  # a damaged file fails in many ways
        raise DraftError(f"{path}: holds no ring: {error}") from error
    if written != vocabulary:
        raise DraftError(f"{path}: its tokens are of another vocabulary")
    sound = tokens.ndim == 1 and tokens.dtype == np.int32
    if not sound or not -1 <= tokens.min(initial=-1) <= tokens.max(initial=-1) < size:
        raise DraftError(f"{path}: its tokens are not of a vocabulary of {size:,}")
    return [part[part >= 0] for part in np.split(tokens, np.flatnonzero(tokens < 0))]


def ring_of(answers: Iterable[ArrayLike], capacity: int = RING_TOKENS) -> Ring:
    """A ring that holds the last of these answers."""
    ring = Ring(capacity)
    for answer in answers:
        ring.append(answer)
    return ring


@compiled
def append_all(record: Any, tokens: Ints) -> None:
    """Append tokens to a text, which has room for them."""
    text = text_of(record)
    for token in tokens:
        append(text, record.known, token)
        record.known += 1


@compiled
def search_ring(ring: Any, tokens: Ints, match: Ints) -> None:
    """Put the ring's match, if that is longer, in the place of the match of a text in itself."""
    known, least = len(tokens), TIMES * (match[LENGTH] + 1)
    if ring.known == 0 or least > min(known, LONGEST_MATCH):
        return
    text, places = text_of(ring), np.empty(MOST_OCCURRENCES, np.int32)
    first = max(ring.known - ring.room // 2, 0)
    longest, count = latest_places(text, first, tokens, known, least - 1, places)
    if count == 0:
        return
    match[LENGTH], match[VOTES], match[OCCURRENCES] = longest // TIMES, 0, count
    for place in places[:count]:
        votes, available = votes_for(text.tokens, places[:count], place), 0
        if votes > match[VOTES]:
            while available < LONGEST_COPY and text.tokens[place + available] >= 0:
                available += 1
            match[START], match[VOTES], match[AVAILABLE] = IN_RING + place, votes, available


@compiled
def copy_tokens(text: Ints, ring: Any, start: int, tokens: Ints) -> None:
    """Fill in the tokens from `start` on, -1 behind the end of the text or of the answer."""
    tokens[:] = -1
    said, place = text, start
    if start >= IN_RING:
        said, place = text_of(ring).tokens[: ring.known], start - IN_RING
    if place >= 0:
        for step in range(min(len(tokens), len(said) - place)):
            if said[place + step] < 0:
                return
            tokens[step] = said[place + step]

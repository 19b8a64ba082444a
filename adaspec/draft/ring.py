"""The ring: the last tokens of ended answers, searched as a request's own text is.

Answers lie one behind another in a text of `chains`, with -1 behind each, so that no match reaches
from one answer into another. A look-up reads the last `capacity` tokens; there is room for twice as
many, and when that is full, those move to the front. A request searches the ring as well as its own
text, and takes the ring's match where its own is shorter, all counted as `TIMES` says. Where
occurrences in the ring disagree on what comes next, they vote: here the latest is no likelier.

    header    the numbers below
    text      of 2 * capacity tokens, see `chains`
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from adaspec.draft.chains import (
    AVAILABLE,
    IN_RING,
    LENGTH,
    LEVELS,
    LONGEST_MATCH,
    MATCH_FIELDS,
    MOST_OCCURRENCES,
    SIZES,
    START,
    VOTES,
    Ints,
    Text,
    append,
    common_end,
    latest_places,
    search,
    take_back,
    text_at,
    words_at,
    words_for,
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
CAPACITY, KNOWN, HEADER_WORDS = range(3)
"""The words of the header: how many tokens are searched, and how many there are; their number."""


class Ring:
    """Ended answers, as many as fit; the oldest leave first."""

    def __init__(self, capacity: int = RING_TOKENS) -> None:
        """`capacity` counts the tokens that are searched, with one more for each answer."""
        self._words = np.zeros(HEADER_WORDS + words_for(2 * capacity), np.int32)
        self._words[CAPACITY] = capacity
        self.moves = 0
        """How often the tokens have moved to the front."""

    @property
    def address(self) -> int:
        """Where the ring lies, for compiled code."""
        return self._words.ctypes.data

    @property
    def capacity(self) -> int:
        """How many tokens are searched."""
        return int(self._words[CAPACITY])

    @property
    def tokens(self) -> Ints:
        """All tokens by place, -1 behind each answer; only the last `capacity` are searched."""
        known = int(self._words[KNOWN])
        return self._words[HEADER_WORDS : HEADER_WORDS + known]

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
            self._words[KNOWN] = 0
            self._words[HEADER_WORDS:] = 0
            self.moves += 1
            _extend(self.address, last)
        _extend(self.address, np.append(tokens, np.int32(-1)))


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
def _stored_at(address: int) -> tuple[Ints, Text]:
    """The header and the text of a ring."""
    header = words_at(address, HEADER_WORDS)
    return header, text_at(address + 4 * HEADER_WORDS, 2 * np.int64(header[CAPACITY]))


@compiled
def _extend(address: int, tokens: Ints) -> None:
    """Append answers, each with -1 behind it; there is room."""
    header, text = _stored_at(address)
    known = np.int64(header[KNOWN])
    for at in range(len(tokens)):
        if tokens[at] >= 0:
            append(text, known, tokens[at])
        else:  # nothing follows an answer's last token
            take_back(text, known)
            text.tokens[known] = -1
        known += 1
    header[KNOWN] = known


@compiled
def search_ring(address: int, tokens: Ints, match: Ints) -> None:
    """Put the ring's match, if that is longer, in the place of the match of a text in itself.

    `address` is the ring's, 0 where there is none.
    """
    known, least = len(tokens), TIMES * (match[LENGTH] + 1)
    if address == 0 or least > min(known, LONGEST_MATCH):
        return
    header, text = _stored_at(address)
    first = max(header[KNOWN] - header[CAPACITY], 0)
    begins, found = np.zeros(LEVELS, np.int32), np.zeros(MATCH_FIELDS, np.int32)
    latest_places(text, tokens, known, begins)
    search(text, begins, first, tokens, known, least - 1, found)
    if found[LENGTH] > 0:
        _let_them_vote(text, first, tokens, found)
        place, available = found[START], 0
        while available < LONGEST_COPY and text.tokens[place + available] >= 0:
            available += 1
        match[:] = found
        match[LENGTH] //= TIMES
        match[START], match[AVAILABLE] = IN_RING + place, available


@compiled
def _let_them_vote(text: Text, first: int, tokens: Ints, match: Ints) -> None:
    """Move a match to the latest place that says next what most of its occurrences say."""
    stored, level, count = text.tokens, LEVELS - 1, 0
    while SIZES[level] > match[LENGTH]:
        level -= 1
    place, places = match[START], np.empty(MOST_OCCURRENCES, np.int32)
    while place > first and count < MOST_OCCURRENCES:
        most = min(match[LENGTH], place - first)
        if common_end(stored, place, tokens, len(tokens), most) == match[LENGTH]:
            places[count] = place
            count += 1
        place = text.previous[place * LEVELS + level]
    match[VOTES] = 0
    for at in range(count):
        votes = 0
        for other in range(count):
            votes += stored[places[other]] == stored[places[at]]
        if votes > match[VOTES]:
            match[START], match[VOTES] = places[at], votes


@compiled
def copy_tokens(text: Ints, ring: int, start: int, tokens: Ints) -> None:
    """Fill in the tokens from `start` on, -1 behind the end of the text or of the answer."""
    tokens[:] = -1
    said, place = text, start
    if start >= IN_RING:
        said, place = _stored_at(ring)[1].tokens, start - IN_RING
    if place >= 0:
        for step in range(min(len(tokens), len(said) - place)):
            if start >= IN_RING and said[place + step] < 0:
                return
            tokens[step] = said[place + step]

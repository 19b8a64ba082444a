"""The answers of earlier requests, indexed by what they say: what followed the same tokens there.

Answers lie in a ring of tokens, one behind another; a new one overwrites the oldest. For some
numbers of tokens n, a table leads from the hash of n tokens to the latest place where they
occurred, and `previous` from there to the places before. A look-up takes the largest n that has an
occurrence, and reads at most `MOST_OCCURRENCES` of them. What a table says is always compared with
the tokens themselves, so a place that has been overwritten, or a hash that two texts share, does no
harm. An answer that is forgotten loses its owner alone: `previous` leads through its tokens to the
places before them, until they are overwritten as well.

    header    the numbers below
    tokens    -1 between answers
    owners    whose answer each token is: look-ups find those of their own owner alone; 0 between,
              and where an answer was forgotten
    previous  per n and place: the place before it with the same n tokens, or -1
    tables    per n: buckets of 2 places + 1, the later first; 0 is unused

A *place* is an index of the ring: that of the token that follows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adaspec.draft.match import (
    AVAILABLE,
    LENGTH,
    LONGEST_MATCH,
    MOST_OCCURRENCES,
    OCCURRENCES,
    START,
    VOTES,
    Ints,
    common_end,
)
from adaspec.draft.words import words_at
from adaspec.errors import DraftError
from adaspec.jit import compiled

Longs = NDArray[np.int64]

SIZES = (2, 4, 8)
"""The numbers of tokens that are hashed; the first is the shortest match."""
WALK = 2 * MOST_OCCURRENCES
"""A look-up leaves a chain after so many places, whoever's they are."""
LONGEST_COPY = 64
"""Continuations are compared, and offered, up to this length."""
IN_ANSWERS = 1 << 30
"""A look-up says IN_ANSWERS + place where its match is in an answer; contexts end below."""
AHEAD = 3
"""A match among the answers must be longer than one in the own text by more than so many tokens, if
its occurrences disagree. If they agree, it need only be longer."""
LEAST_OCCURRENCES = 2
"""The fewest occurrences that can agree: three quarters of them have to say the same token."""

CAPACITY, HEAD, STORED = range(3)
"""The words of the header: how many tokens fit, where the next answer goes, and how many there are
that were not forgotten."""
HEADER_WORDS = 16
WORDS_OF_BUCKET = 2
BYTES_PER_TOKEN = 4 * (2 + len(SIZES) * (1 + WORDS_OF_BUCKET))
LEAST_TOKENS = 1024
LEAST_BYTES = LEAST_TOKENS * BYTES_PER_TOKEN
MOST_BYTES = 1 << 33
"""Places and offsets, in words, are 32-bit numbers."""
MOST_OWNERS = 100_000
"""So many keys are told apart; where there are more, the answers of the oldest are lost."""


class Stored(NamedTuple):
    """Where an answer was stored; see `AnswerIndex.forget`."""

    first: int
    """The place of its first token."""
    tokens: int


class AnswerIndex:
    """Answers of earlier requests, as many as fit; the oldest leave first.

    Adding a token, and a look-up, take a bounded number of steps, however many answers there are;
    but a look-up also goes through the occurrences in answers that were forgotten.
    """

    def __init__(self, nbytes: int) -> None:
        """Room for about `nbytes` / `BYTES_PER_TOKEN` tokens; memory is taken as it fills."""
        capacity = nbytes // BYTES_PER_TOKEN
        if capacity < LEAST_TOKENS:
            raise DraftError(
                f"{nbytes} bytes hold {max(capacity, 0)} tokens of answers: give at least "
                f"{LEAST_BYTES}"
            )
        if nbytes > MOST_BYTES:
            raise DraftError(f"{nbytes} bytes of answers: give at most {MOST_BYTES}")
        # Zeros are not touched before they are written, so an empty index takes no memory.
        self.words = np.zeros(HEADER_WORDS + capacity * BYTES_PER_TOKEN // 4, np.int32)
        """All of it, laid out as the module says; not to be written to."""
        self.words[CAPACITY] = capacity
        self._owners: dict[object, int] = {}
        self._keys: dict[int, object] = {}
        self._last_owner = 0

    @property
    def address(self) -> int:
        """Where it lies, for compiled code."""
        return self.words.ctypes.data

    @property
    def _ring(self) -> _Ring:
        return _ring_at(self.address)

    @property
    def capacity(self) -> int:
        """The tokens that fit, with one between answers."""
        return int(self.words[CAPACITY])

    @property
    def tokens(self) -> int:
        """The tokens that are stored."""
        return int(self.words[STORED])

    def owner(self, key: object) -> int:
        """The number of whoever `key` stands for: answers are found under the same key alone."""
        if key not in self._owners:
            self._last_owner += 1
            self._owners[key], self._keys[self._last_owner] = self._last_owner, key
            if len(self._owners) > MOST_OWNERS:
                oldest = next(iter(self._owners))
                del self._keys[self._owners.pop(oldest)]
        return self._owners[key]

    def key_of(self, owner: int) -> object:
        """What a number of an owner stands for; None where it is not known any more."""
        return self._keys.get(owner)

    def add(self, tokens: ArrayLike, owner: int = 1) -> Stored | None:
        """Store an answer, or as much of its end as fits in half of the room.

        What is returned can be forgotten again; None where the answer is too short to be stored.
        """
        answer = np.ascontiguousarray(tokens, np.int32)[-(self.capacity // 2) :]
        if owner < 1 or answer.ndim != 1 or (len(answer) and answer.min() < 0):
            raise DraftError("an answer is a row of tokens >= 0, of an owner >= 1")
        if len(answer) <= SIZES[0]:  # nothing follows what is hashed
            return None
        _add(self._ring, answer, owner)
        return Stored(int(self.words[HEAD]) - len(answer) - 1, len(answer))

    def forget(self, stored: Stored) -> None:
        """Let no look-up find an answer any more, of which nothing was overwritten since."""
        forgotten = self._ring.owners[stored.first : stored.first + stored.tokens]
        self.words[STORED] -= np.count_nonzero(forgotten)
        forgotten[:] = 0

    def changed(self, head: int, stored: Stored) -> Longs:
        """The words that storing the latest answer changed, some more than once.

        `head` is the word HEAD as it was before, `stored` what `add` said.
        """
        return _changed(self._ring, head, stored.first)

    @property
    def stored(self) -> Ints:
        """The tokens by place, forgotten ones too, -1 between answers."""
        # Unlike a view by address, this keeps the memory for as long as somebody reads it.
        return self.words[HEADER_WORDS : HEADER_WORDS + self.capacity]


class _Ring(NamedTuple):
    """Views of an index's memory, as the module says."""

    header: Ints
    tokens: Ints
    owners: Ints
    previous: Ints
    tables: Ints


@compiled
def _ring_at(address: int) -> _Ring:
    """The index of answers that lies there."""
    header = words_at(address, HEADER_WORDS)
    capacity = np.int64(header[CAPACITY])
    words = words_at(address + 4 * HEADER_WORDS, capacity * (BYTES_PER_TOKEN // 4))
    tables = (2 + len(SIZES)) * capacity
    return _Ring(
        header,
        words[:capacity],
        words[capacity : 2 * capacity],
        words[2 * capacity : tables],
        words[tables:],
    )


@compiled
def _mixed(key: int) -> int:
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return int(np.int64(mixed ^ (mixed >> np.uint64(29))))


@compiled
def _keys(text: Ints, first: int, end: int, owner: int, keys: Longs) -> int:
    """Fill in the hash of an owner's tokens before `end` for each size; how many sizes there are.

    They are from `first` on.
    """
    key, levels = _mixed(owner), 0
    for back in range(min(end - first, SIZES[-1])):
        key = _mixed(key ^ text[end - 1 - back])
        if back + 1 == SIZES[levels]:
            keys[levels] = key
            levels += 1
    return levels


@compiled
def _bucket(ring: _Ring, level: int, key: int) -> int:
    """Where the bucket of a hash lies in the tables."""
    capacity = len(ring.tokens)
    spread = (np.uint64(key) >> np.uint64(32)) * np.uint64(capacity)
    return (level * capacity + int(spread >> np.uint64(32))) * WORDS_OF_BUCKET


@compiled
def _add(ring: _Ring, answer: Ints, owner: int) -> None:
    capacity, head = len(ring.tokens), int(ring.header[HEAD])
    if head + len(answer) >= capacity:
        # Answers are never cut in two: the end of the ring stays empty.
        _erase(ring, head, capacity)
        head = 0
    end = head + len(answer)
    _erase(ring, head, end + 1)
    ring.tokens[head:end] = answer
    ring.owners[head:end] = owner
    ring.header[STORED] += len(answer)
    # Look-ups must not take what was here before for a part of this answer, so it is whole first.
    keys = np.empty(len(SIZES), np.int64)
    for place in range(head + SIZES[0], end):
        for level in range(_keys(ring.tokens, head, place, owner, keys)):
            _link(ring, level, keys[level], place)
    ring.header[HEAD] = end + 1


@compiled
def _changed(ring: _Ring, head: int, first: int) -> Longs:
    capacity, end = len(ring.tokens), np.int64(ring.header[HEAD])
    levels, owner = len(SIZES), ring.owners[first]
    gone = capacity - head if first < head else 0
    written = np.concatenate((np.arange(first, end), np.arange(capacity - gone, capacity)))
    linked = np.empty((end - first) * levels * (1 + WORDS_OF_BUCKET), np.int64)
    keys, count = np.empty(levels, np.int64), 0
    for place in range(first, end):
        for level in range(_keys(ring.tokens, first, place, owner, keys)):
            bucket = (2 + levels) * capacity + _bucket(ring, level, keys[level])
            linked[count] = (2 + level) * capacity + place
            linked[count + 1], linked[count + 2] = bucket, bucket + 1
            count += 1 + WORDS_OF_BUCKET
    header = np.array([HEAD, STORED])
    stored = np.concatenate((written, capacity + written, linked[:count]))
    return np.concatenate((header, HEADER_WORDS + stored))


@compiled
def _erase(ring: _Ring, first: int, end: int) -> None:
    """Take what is stored at places away."""
    for place in range(first, end):
        ring.header[STORED] -= ring.owners[place] > 0
        ring.owners[place], ring.tokens[place] = 0, -1


@compiled
def _link(ring: _Ring, level: int, key: int, place: int) -> None:
    """Make a place the latest of the tokens before it."""
    tokens, bucket, size = ring.tokens, _bucket(ring, level, key), SIZES[level]
    later, earlier = ring.tables[bucket] - 1, ring.tables[bucket + 1] - 1
    before = -1
    if later >= 0 and common_end(tokens, later, tokens, place, size) == size:
        before = later
    else:
        if earlier >= 0 and common_end(tokens, earlier, tokens, place, size) == size:
            before = earlier
        ring.tables[bucket + 1] = later + 1
    ring.tables[bucket] = place + 1
    ring.previous[level * len(tokens) + place] = before


@compiled
def find_answer(answers: int, owner: int, text: Ints, least: int) -> tuple[int, int, int, int, int]:
    """What followed the last tokens of a text: (length, place, votes, occurrences, available).

    Of the latest occurrences of as many tokens as any occurrence has, the tokens that most of them
    say next are followed, one after another; the place is that of an occurrence that says them
    all, the latest of these. `votes` of all `occurrences` say the first. The length is 0, and the
    place -1, where nothing is found, or nothing that is longer than `least`.
    """
    ring, places = _ring_at(answers), np.empty(MOST_OCCURRENCES, np.int64)
    keys, occurrences = np.empty(len(SIZES), np.int64), 0
    level = _keys(text, 0, len(text), owner, keys)
    while level > 0 and occurrences == 0:
        level -= 1
        occurrences = _occurrences(ring, level, keys[level], owner, text, places)
    if occurrences == 0:
        return 0, -1, 0, 0, 0
    place, votes = _followed(ring.tokens, places, occurrences)
    length = common_end(ring.tokens, place, text, len(text), LONGEST_MATCH)
    if length <= least:
        return 0, -1, 0, 0, 0
    available = 0
    while available < LONGEST_COPY and ring.tokens[place + available] >= 0:
        available += 1
    return length, place, votes, occurrences, available


@compiled
def _occurrences(ring: _Ring, level: int, key: int, owner: int, text: Ints, places: Longs) -> int:
    """Fill `places` with the latest occurrences of a text's last tokens; how many there are."""
    tokens, bucket, size = ring.tokens, _bucket(ring, level, key), SIZES[level]
    place = np.int64(ring.tables[bucket]) - 1
    if place < 0 or common_end(tokens, place, text, len(text), size) < size:
        place = np.int64(ring.tables[bucket + 1]) - 1
    head, capacity = ring.header[HEAD], len(tokens)
    occurrences = age = walked = 0
    while place >= 0 and occurrences < MOST_OCCURRENCES and walked < WALK:
        # What has been overwritten may lead anywhere, but never to what is younger.
        earlier = head - place if place < head else head - place + capacity
        if earlier <= age or common_end(tokens, place, text, len(text), size) < size:
            break
        age = earlier
        whose = ring.owners[place]
        if whose == owner:
            places[occurrences] = place
            occurrences += 1
        walked += whose != 0  # what is forgotten does not count
        place = np.int64(ring.previous[level * capacity + place])
    return occurrences


@compiled
def _followed(tokens: Ints, places: Longs, occurrences: int) -> tuple[int, int]:
    """The place whose tokens most occurrences say, one after another, and how many say the first.

    Where as many say one token as another, the later occurrence decides.
    """
    votes, alive = 0, occurrences
    for step in range(LONGEST_COPY):
        chosen, most = -1, 0
        for at in range(alive):
            token = tokens[places[at] + step]
            if token >= 0:
                count = 0
                for other in range(alive):
                    count += tokens[places[other] + step] == token
                if count > most:
                    chosen, most = token, count
        if chosen < 0:
            break
        kept = 0
        for at in range(alive):
            if tokens[places[at] + step] == chosen:
                places[kept] = places[at]
                kept += 1
        alive = kept
        if step == 0:
            votes = alive
        if alive == 1:
            break
    return places[0], votes


@compiled
def match_answers(text: Ints, answers: int, owner: int, match: Ints) -> None:
    """Put a match in earlier answers, if it is better, in the place of the text's own.

    `answers` is the address of their index, 0 where there is none.
    """
    if answers == 0 or match[LENGTH] >= LONGEST_MATCH:
        return
    length, place, votes, occurrences, available = find_answer(answers, owner, text, match[LENGTH])
    if length > 0 and is_better(match[LENGTH], length, votes, occurrences):
        match[LENGTH], match[START] = length, IN_ANSWERS + place
        match[VOTES], match[OCCURRENCES], match[AVAILABLE] = votes, occurrences, available


@compiled
def copy_tokens(text: Ints, answers: int, start: int, tokens: Ints) -> None:
    """Fill in the tokens from `start` on, -1 behind the end of the text or of the answer."""
    tokens[:] = -1
    if start >= IN_ANSWERS:
        said, place = _ring_at(answers).tokens, start - IN_ANSWERS
    else:
        said, place = text, start
    if place >= 0:
        for step in range(min(len(tokens), len(said) - place)):
            tokens[step] = said[place + step]
            if start >= IN_ANSWERS and tokens[step] < 0:
                return


@compiled
def is_better(own: int, length: int, votes: int, occurrences: int) -> bool:
    """Whether a match among the answers is taken where the own text's has so many tokens."""
    is_settled = occurrences >= LEAST_OCCURRENCES and 4 * votes >= 3 * occurrences
    return length > (own if is_settled or own == 0 else own + AHEAD)

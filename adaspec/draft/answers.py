"""The answers of earlier requests, indexed by what they say: what followed the same tokens there.

Answers lie in a ring of tokens, one behind another; a new one overwrites the oldest. For some
numbers of tokens n, a table leads from the hash of n tokens to the latest place where they
occurred, and `previous` from there to the places before. A look-up takes the largest n that has an
occurrence, and reads at most `OCCURRENCES` of them. What a table says is always compared with the
tokens themselves, so a place that has been overwritten, or a hash that two texts share, does no
harm. An answer that is forgotten loses its owner alone: `previous` leads through its tokens to the
places before them, until they are overwritten as well.

    header    the counts and offsets below
    tokens    -1 between answers
    owners    whose answer each token is: look-ups find those of their own owner alone; 0 between,
              and where an answer was forgotten
    previous  per n and place: the place before it with the same n tokens, or -1
    tables    per n: buckets of 2 places + 1, the later first; 0 is unused

A *place* is an index of the ring: that of the token that follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adaspec.draft.memory import load, store
from adaspec.errors import DraftError
from adaspec.jit import compiled

Ints = NDArray[np.int32]

SIZES = (2, 4, 8)
"""The numbers of tokens that are hashed."""
OCCURRENCES = 8
WALK = 2 * OCCURRENCES
"""A look-up leaves a chain after so many places, whoever's they are."""
LONGEST_COPY = 64
"""Continuations are compared, and offered, up to this length."""
LONGEST_MATCH = 32
IN_ANSWERS = 1 << 30
"""A look-up says IN_ANSWERS + place where its match is in an answer; contexts end below."""
AHEAD = 3
"""A match among the answers must be longer than one in the own text by more than so many tokens, if
its occurrences do not agree. If they do, it need only be longer."""
AGREEING = 2
"""The fewest occurrences that agree: they do if three quarters of them say the same next token."""

CAPACITY, HEAD, TOKENS, OWNERS, PREVIOUS, TABLES, STORED = range(7)
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

    round: int
    """How often the ring had been filled by then."""
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
        offsets = HEADER_WORDS + capacity * np.array([0, 1, 2, 2 + len(SIZES)])
        # Zeros are not touched before they are written, so an empty index takes no memory.
        self._words = np.zeros(HEADER_WORDS + capacity * BYTES_PER_TOKEN // 4, np.int32)
        self._words[[TOKENS, OWNERS, PREVIOUS, TABLES]] = offsets
        self._words[CAPACITY] = capacity
        self._owners: dict[object, int] = {}
        self._last_owner = 0
        self._round = 0

    @property
    def address(self) -> int:
        """Where it lies, for compiled code."""
        return self._words.ctypes.data

    @property
    def capacity(self) -> int:
        """The tokens that fit, with one between answers."""
        return int(self._words[CAPACITY])

    @property
    def tokens(self) -> int:
        """The tokens that are stored."""
        return int(self._words[STORED])

    @property
    def words(self) -> Ints:
        """All of it, laid out as the module says; not to be written to."""
        return self._words

    @property
    def nbytes(self) -> int:
        """Bytes when it is full."""
        return self._words.nbytes

    def owner(self, key: object) -> int:
        """The number of whoever `key` stands for: answers are found under the same key alone."""
        if key not in self._owners:
            self._last_owner += 1
            self._owners[key] = self._last_owner
            if len(self._owners) > MOST_OWNERS:
                del self._owners[next(iter(self._owners))]
        return self._owners[key]

    def add(self, tokens: ArrayLike, owner: int = 1) -> Stored | None:
        """Store an answer, or as much of its end as fits in half of the room.

        What is returned can be forgotten again; None where the answer is too short to be stored.
        """
        answer = np.ascontiguousarray(tokens, np.int32)[-(self.capacity // 2) :]
        if owner < 1 or answer.ndim != 1 or (len(answer) and answer.min() < 0):
            raise DraftError("an answer is a row of tokens >= 0, of an owner >= 1")
        if len(answer) <= SIZES[0]:  # nothing follows what is hashed
            return None
        head = int(self._words[HEAD])
        _add(self.address, answer, owner)
        first = int(self._words[HEAD]) - len(answer) - 1
        self._round += first != head
        return Stored(self._round, first, len(answer))

    def forget(self, stored: Stored) -> None:
        """Let no look-up find an answer any more; what was overwritten is gone already."""
        first, end = stored.first, stored.first + stored.tokens
        if stored.round < self._round:  # what lies before the head is younger
            first = max(first, int(self._words[HEAD]))
        if first < end and stored.round >= self._round - 1:
            owners = int(self._words[OWNERS])
            forgotten = self._words[owners + first : owners + end]
            self._words[STORED] -= np.count_nonzero(forgotten)
            forgotten[:] = 0

    def changed(self, head: int, stored: Stored) -> NDArray[np.int64]:
        """The words that storing the latest answer changed, some more than once.

        `head` is the word HEAD as it was before, `stored` what `add` said.
        """
        return _changed(self.address, head, stored.first)

    @property
    def keys(self) -> Mapping[object, int]:
        """The owners' numbers by key."""
        return self._owners

    def in_order(self) -> tuple[Ints, Ints]:
        """Copies of the tokens, the oldest first and -1 between answers, and whose each one is.

        Where a token is -1 it is nobody's: 0.
        """
        capacity, head = self.capacity, int(self._words[HEAD])
        first = int(self._words[TOKENS])
        both = self._words[first : first + 2 * capacity].reshape(2, capacity)
        tokens, owners = np.concatenate((both[:, head:], both[:, :head]), 1)
        # What was never written is 0 in both.
        written = (tokens != 0) | (owners != 0)
        return tokens[written], owners[written]

    @property
    def stored(self) -> Ints:
        """The tokens by place, forgotten ones too, -1 between answers."""
        first = int(self._words[TOKENS])
        return self._words[first : first + self.capacity]


@compiled
def _mixed(key: int) -> int:
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return int(np.int64(mixed ^ (mixed >> np.uint64(29))))


@compiled
def _bucket(answers: int, level: int, key: int) -> int:
    """The address of the bucket of a hash."""
    capacity = load(answers, CAPACITY)
    spread = (np.uint64(key) >> np.uint64(32)) * np.uint64(capacity)
    bucket = int(np.int64(spread >> np.uint64(32)))
    return answers + 4 * (load(answers, TABLES) + (level * capacity + bucket) * WORDS_OF_BUCKET)


@compiled
def _previous(answers: int, level: int) -> int:
    """The address of a level's chain."""
    return answers + 4 * (load(answers, PREVIOUS) + level * load(answers, CAPACITY))


@compiled
def _add(answers: int, answer: Ints, owner: int) -> None:
    capacity, head = load(answers, CAPACITY), load(answers, HEAD)
    tokens, owners = answers + 4 * load(answers, TOKENS), answers + 4 * load(answers, OWNERS)
    if head + len(answer) >= capacity:
        # Answers are never cut in two: the end of the ring stays empty.
        for place in range(head, capacity):
            _leave(answers, tokens, owners, place)
        head = 0
    for at in range(len(answer)):
        _leave(answers, tokens, owners, head + at)
        store(tokens, head + at, answer[at])
        store(owners, head + at, owner)
    _leave(answers, tokens, owners, head + len(answer))
    store(answers, STORED, load(answers, STORED) + len(answer))
    # Look-ups must not take what was here before for a part of this answer, so it is whole first.
    for at in range(SIZES[0], len(answer)):
        key = _mixed(owner)
        for back in range(min(at, SIZES[-1])):
            key = _mixed(key ^ answer[at - 1 - back])
            for level in range(len(SIZES)):
                if back + 1 == SIZES[level]:
                    _link(answers, tokens, level, key, head + at)
    store(answers, HEAD, head + len(answer) + 1)


@compiled
def _changed(answers: int, head: int, place: int) -> NDArray[np.int64]:
    capacity, end = load(answers, CAPACITY), load(answers, HEAD)
    tokens, owners = load(answers, TOKENS), load(answers, OWNERS)
    left = capacity - head if place < head else 0
    count, levels = end - place, len(SIZES)
    words = np.empty(2 + 2 * left + count * (2 + levels * (1 + WORDS_OF_BUCKET)), np.int64)
    words[0], words[1], at = HEAD, STORED, 2
    for gone in range(capacity - left, capacity):
        words[at], words[at + 1] = tokens + gone, owners + gone
        at += 2
    owner = load(answers + 4 * owners, place)
    for each in range(place, end):
        words[at], words[at + 1] = tokens + each, owners + each
        at += 2
        key, deep = _mixed(owner), 0
        for back in range(min(each - place, SIZES[-1])):
            key = _mixed(key ^ load(answers + 4 * tokens, each - 1 - back))
            if back + 1 == SIZES[deep]:
                words[at] = (_previous(answers, deep) - answers) // 4 + each
                bucket = (_bucket(answers, deep, key) - answers) // 4
                words[at + 1], words[at + 2] = bucket, bucket + 1
                at += 3
                deep += 1
    return words[:at]


@compiled
def _leave(answers: int, tokens: int, owners: int, place: int) -> None:
    """Take what is stored at a place away."""
    if load(owners, place) > 0:
        store(answers, STORED, load(answers, STORED) - 1)
    store(owners, place, 0)
    store(tokens, place, -1)


@compiled
def _link(answers: int, tokens: int, level: int, key: int, place: int) -> None:
    """Make a place the latest of the tokens before it."""
    bucket, size = _bucket(answers, level, key), SIZES[level]
    later, earlier = load(bucket, 0) - 1, load(bucket, 1) - 1
    before = -1
    if later >= 0 and _same(tokens, later, place, size):
        before = later
    else:
        if earlier >= 0 and _same(tokens, earlier, place, size):
            before = earlier
        store(bucket, 1, later + 1)
    store(bucket, 0, place + 1)
    store(_previous(answers, level), place, before)


@compiled
def _same(tokens: int, place: int, other: int, size: int) -> bool:
    """Whether the tokens before two places are the same."""
    if place < size:
        return False
    for back in range(1, size + 1):
        if load(tokens, place - back) != load(tokens, other - back):
            return False
    return True


@compiled
def _ends_alike(tokens: int, place: int, tail: Ints, known: int, most: int) -> int:
    """How many tokens before a place are those of a text's end; `tail` has the last first."""
    length = 0
    while length < min(known, most, place) and load(tokens, place - 1 - length) == tail[length]:
        length += 1
    return length


@compiled
def find_answer(
    answers: int, owner: int, tail: Ints, known: int, least: int
) -> tuple[int, int, int, int, int]:
    """What followed the last `known` tokens of a text: (length, place, agree, seen, available).

    `tail` has these tokens, the last one first. Of the latest occurrences of as many tokens as
    any occurrence has, the tokens that most of them say next are followed, one after another; the
    place is that of an occurrence that says them all, the latest of these. `agree` of the `seen`
    occurrences say the first. The length is 0, and the place -1, where nothing is found, or
    nothing that is longer than `least`.
    """
    tokens, owners = answers + 4 * load(answers, TOKENS), answers + 4 * load(answers, OWNERS)
    places = np.empty(OCCURRENCES, np.int64)
    keys = np.empty(len(SIZES), np.int64)
    key, deep = _mixed(owner), 0
    for back in range(min(known, SIZES[-1])):
        key = _mixed(key ^ tail[back])
        if back + 1 == SIZES[deep]:
            keys[deep] = key
            deep += 1
    seen = 0
    while deep > 0 and seen == 0:
        deep -= 1
        seen = _occurrences(answers, tokens, owners, deep, keys[deep], owner, tail, places)
    if seen == 0:
        return 0, -1, 0, 0, 0
    place, agree = _followed(tokens, places, seen)
    length = _ends_alike(tokens, place, tail, known, LONGEST_MATCH)
    if length <= least:
        return 0, -1, 0, 0, 0
    available = 0
    while available < LONGEST_COPY and load(tokens, place + available) >= 0:
        available += 1
    return length, place, agree, seen, available


@compiled
def _occurrences(
    answers: int,
    tokens: int,
    owners: int,
    level: int,
    key: int,
    owner: int,
    tail: Ints,
    places: NDArray[np.int64],
) -> int:
    """Fill `places` with the latest occurrences of a text's last tokens; how many there are."""
    bucket, size = _bucket(answers, level, key), SIZES[level]
    place = load(bucket, 0) - 1
    if place < 0 or _ends_alike(tokens, place, tail, size, size) < size:
        place = load(bucket, 1) - 1
    head, capacity = load(answers, HEAD), load(answers, CAPACITY)
    previous, seen, age, walked = _previous(answers, level), 0, 0, 0
    while place >= 0 and seen < OCCURRENCES and walked < WALK:
        # What has been overwritten may lead anywhere, but never to what is younger.
        earlier = head - place if place < head else head - place + capacity
        if earlier <= age or _ends_alike(tokens, place, tail, size, size) < size:
            break
        age = earlier
        whose = load(owners, place)
        if whose == owner:
            places[seen] = place
            seen += 1
        walked += whose != 0  # what is forgotten does not count
        place = load(previous, place)
    return seen


@compiled
def _followed(tokens: int, places: NDArray[np.int64], seen: int) -> tuple[int, int]:
    """The place whose tokens most occurrences say, one after another, and how many say the first.

    Where as many say one token as another, the later occurrence decides.
    """
    agree, alive = 0, seen
    for step in range(LONGEST_COPY):
        chosen, most = -1, 0
        for at in range(alive):
            token = load(tokens, places[at] + step)
            if token >= 0:
                count = 0
                for other in range(alive):
                    count += load(tokens, places[other] + step) == token
                if count > most:
                    chosen, most = token, count
        if chosen < 0:
            break
        kept = 0
        for at in range(alive):
            if load(tokens, places[at] + step) == chosen:
                places[kept] = places[at]
                kept += 1
        alive = kept
        if step == 0:
            agree = alive
        if alive == 1:
            break
    return places[0], agree


@compiled
def is_better(own: int, length: int, agree: int, seen: int) -> bool:
    """Whether a match among the answers is taken where the own text's has so many tokens."""
    agreed = seen >= AGREEING and 4 * agree >= 3 * seen
    return length > (own if agreed or own == 0 else own + AHEAD)


@compiled
def answer_token(answers: int, place: int, step: int) -> int:
    """The token `step` behind a place."""
    return load(answers + 4 * load(answers, TOKENS), place + step)

"""What can be copied: chains from what a text's last tokens are to where they came before.

A *place* is the index of the token that follows. For some numbers of tokens n, a table leads from
the hash of n tokens to the latest place behind tokens of that hash, and `previous` from there to
the places before. A look-up takes the largest n whose tokens came before, and compares what
precedes all places of its chain. So it finds what a scan of the whole text finds
(`kernels/scan.py`), and a hash that two texts share does no harm.

Appending a token writes the links of its place alone, and `take_back` undoes it: then every table
leads where it led before. So a look-up behind drafted tokens appends them, looks up and takes them
back.

The *ring* has the last tokens of ended answers in a text of its own, one answer behind another with
-1 behind each, so that no match reaches from one into another. A look-up reads the last `capacity`
tokens; there is room for twice as many, and when that is full, those move to the front. A request
searches the ring as well as its own text, and takes the ring's match where its own is shorter, all
counted as `TIMES` says. Where occurrences in the ring disagree on what comes next, they vote: here
the latest is no likelier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import carray, types
from numba.extending import intrinsic
from numpy.typing import ArrayLike, NDArray

from adaspec.errors import DraftError
from adaspec.files import new_file
from adaspec.jit import compiled

Ints = NDArray[np.int32]
Record = NDArray[Any]
"""Records of `TEXT`; compiled code reads and writes their fields by name."""

LENGTH, START, VOTES, OCCURRENCES, AVAILABLE, MATCH_FIELDS = range(6)
"""The fields of `Matches` as rows of an array, and how many there are."""
LONGEST_MATCH = 32
"""So many tokens before two places are compared."""
MOST_OCCURRENCES = 8
"""So many of the latest occurrences count."""
IN_RING = 1 << 30
"""A match in the ring starts at IN_RING + its place there; contexts end below."""
SIZES = (1, 2, 4)
"""The numbers of tokens that are hashed; the first is the shortest match. With 8 as well, the fewer
places that look-ups read save less than the longer appends take."""
LEVELS = len(SIZES)
_FACTORS = np.cumprod(np.full(SIZES[-1], 0x9E3779B97F4A7C15, np.uint64))
"""What each of them is multiplied by, the last one first."""
BUCKETS = 2
"""Hashes per token of room: fewer lead more look-ups to places of other tokens."""


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


TEXT = np.dtype([("address", "i8"), ("room", "i8"), ("known", "i8"), ("in_ring", "?")], align=True)
"""Where a text lies, how many tokens it has room for, how many it has, and whether it is looked up
in the ring as well."""


class Text(NamedTuple):
    """Views of a text's memory."""

    tokens: Ints
    previous: Ints
    """Per place and n: the place before it with the same hash, or 0."""
    latest: Ints
    """Per n and hash: the latest place, or 0."""


def new_text(record: Record, room: int) -> Ints:
    """Memory for so many tokens, none of which is known yet; the record says where it lies."""
    # Zeros are not touched before they are written: what is not used yet takes no memory.
    words = np.zeros(room + (room + BUCKETS * room) * LEVELS, np.int32)
    record["address"], record["room"], record["known"] = words.ctypes.data, room, 0
    return words


def _pointer_to(typingctx: Any, address: Any) -> Any:
    kind = types.CPointer(types.int32)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(types.int64), codegen


# The annotation is what compiled code sees; numba itself calls the function with types instead.
_pointer: Callable[[int], Any] = intrinsic(_pointer_to)


@compiled
def text_of(record: Any) -> Text:
    """The text of a record, whose memory is there as long as somebody holds `new_text`.

    Numba has no array of arrays: code that works on many texts at once gets their addresses.
    """
    room = record.room
    latest = room + room * LEVELS
    words = carray(_pointer(record.address), latest + BUCKETS * room * LEVELS)
    return Text(words[:room], words[room:latest], words[latest:])


@compiled
def append(text: Text, known: int, token: int) -> None:
    """Append a token to a text of so many, which has room for it; -1 is none that can follow."""
    text.tokens[known] = token
    for level in range(LEVELS):
        if token >= 0 and known >= SIZES[level]:
            at = _entry(text, text.tokens, known, level)
            text.previous[known * LEVELS + level], text.latest[at] = text.latest[at], known


@compiled
def take_back(text: Text, known: int) -> None:
    """Undo the latest `append`, after which the text has so many tokens."""
    for level in range(LEVELS):
        if text.tokens[known] >= 0 and known >= SIZES[level]:
            at = _entry(text, text.tokens, known, level)
            text.latest[at] = text.previous[known * LEVELS + level]


@compiled
def _entry(text: Text, tokens: Ints, known: int, level: int) -> int:
    """Where `latest` has the latest place behind what the last of other `known` tokens are."""
    buckets = BUCKETS * len(text.tokens)
    key = np.uint64(0)
    for back in range(SIZES[level]):
        key += np.uint64(tokens[known - 1 - back]) * _FACTORS[back]
    bucket = ((key >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)
    return level * buckets + int(bucket)


@compiled
def common_end(tokens: Ints, place: int, text: Ints, known: int, most: int) -> int:
    """How many tokens before a place are the last of a text's `known` tokens, up to `most`."""
    length, most = 0, min(most, place, known)
    while length < most and tokens[place - 1 - length] == text[known - 1 - length]:
        length += 1
    return length


@compiled
def latest_places(
    text: Text, first: int, tokens: Ints, known: int, least: int, places: Ints
) -> tuple[int, int]:
    """Fill in the latest places behind the longest of what the last of `known` tokens are.

    How long that is and how many places these are. Places count that repeat more than `least`
    tokens; nothing before `first` is compared.
    """
    stored, longest, count, most = text.tokens, least, 0, LONGEST_MATCH
    level = LEVELS
    while count == 0 and level > 0 and most > least:
        level -= 1
        shortest = max(SIZES[level], least + 1)
        longest = shortest - 1
        place = text.latest[_entry(text, tokens, known, level)] if known >= SIZES[level] else 0
        while place > first and (longest < most or count < MOST_OCCURRENCES):
            length, back = 0, max(longest, 1)
            # That far back is where most places that do not matter differ.
            if place - first >= back and stored[place - back] == tokens[known - back]:
                length = common_end(stored, place, tokens, known, min(most, place - first))
            if length > longest:
                longest, count = length, 0
            if length >= max(longest, shortest) and count < MOST_OCCURRENCES:
                places[count] = place
                count += 1
            place = text.previous[place * LEVELS + level]
        most = SIZES[level] - 1
    return longest, count


@compiled
def votes_for(stored: Ints, places: Ints, place: int) -> int:
    """How many places are followed by the same token as this one."""
    votes = 0
    for other in places:
        votes += stored[other] == stored[place]
    return votes


@compiled
def search(text: Text, known: int, match: Ints) -> None:
    """Fill in the facts about the match of a text's first `known` tokens in the text itself."""
    places = np.empty(MOST_OCCURRENCES, np.int32)
    longest, count = latest_places(text, 0, text.tokens, known, 0, places)
    match[:] = 0
    match[START] = -1
    if count > 0:
        start = places[0]
        match[LENGTH], match[START], match[AVAILABLE] = longest, start, known - start
        match[VOTES], match[OCCURRENCES] = votes_for(text.tokens, places[:count], start), count


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

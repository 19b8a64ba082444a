"""One request's text, and chains that lead from its end to where its last tokens came before.

A *place* is the index of the token that follows. For some numbers of tokens n, a table leads from
the hash of n tokens to the latest place behind tokens of that hash, and `previous` from there to
the places before. A look-up starts behind the last token, takes the largest n whose tokens came
before, and compares what precedes all places of its chain. So it finds what a scan of the whole
text finds (`kernels/scan.py`), and a hash that two texts share does no harm.

    tokens    the text
    previous  per place and n: the place before it with the same hash, or 0
    latest    per n and hash: the latest place, or 0

Appending a token writes its links alone, and `take_back` undoes it: then every table leads where it
led before. So a look-up behind drafted tokens appends them, looks up and takes them back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import carray, types
from numba.extending import intrinsic
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
SIZES = (1, 2, 4)
"""The numbers of tokens that are hashed; the first is the shortest match. With 8 as well, the fewer
places that look-ups read save less than the longer appends take."""
LEVELS = len(SIZES)
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


@compiled
def common_end(tokens: Ints, place: int, text: Ints, known: int, most: int) -> int:
    """How many tokens before a place are the last of a text's `known` tokens, up to `most`."""
    length, most = 0, min(most, place, known)
    while length < most and tokens[place - 1 - length] == text[known - 1 - length]:
        length += 1
    return length


class Text(NamedTuple):
    """Views of a text's memory, as the module says; how many tokens are known is kept elsewhere."""

    tokens: Ints
    previous: Ints
    latest: Ints


def new_words(room: int) -> Ints:
    """The memory of a text without a token yet, and with room for so many."""
    # Zeros are not touched before they are written: what is not used yet takes no memory.
    return np.zeros(words_for(room), np.int32)


@compiled
def words_for(room: int) -> int:
    """How many words the memory of a text has that has room for so many tokens."""
    return room + (room + 1) * LEVELS + room * BUCKETS * LEVELS


def _pointer_to(typingctx: Any, address: Any) -> Any:
    kind = types.CPointer(types.int32)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(types.int64), codegen


# The annotation is what compiled code sees; numba itself calls the function with types instead.
_pointer: Callable[[int], Any] = intrinsic(_pointer_to)


@compiled
def words_at(address: int, count: int) -> Ints:
    """The `count` words of memory from an address on; nothing checks that they are there.

    Numba has no array of arrays: code that works on many texts at once gets their addresses.
    """
    words: Ints = carray(_pointer(address), count)
    return words


@compiled
def text_at(address: int, room: int) -> Text:
    """The text whose memory lies there."""
    words, latest = words_at(address, words_for(room)), room + (room + 1) * LEVELS
    return Text(words[:room], words[room:latest], words[latest:])


@compiled
def append(text: Text, known: int, token: int) -> None:
    """Append a token to a text of so many, which has room for it."""
    text.tokens[known] = token
    _visit(text, known + 1, True)


@compiled
def take_back(text: Text, known: int) -> None:
    """Undo the latest `append`, after which the text had `known` tokens."""
    _visit(text, known, False)


@compiled
def _visit(text: Text, place: int, links: bool) -> None:
    """Link a place as the latest behind each number of tokens before it, or undo that."""
    tokens, previous, latest = text.tokens, text.previous, text.latest
    buckets = BUCKETS * len(tokens)
    key, factor, level = np.uint64(0), np.uint64(1), 0
    for back in range(min(place, SIZES[-1])):
        factor *= np.uint64(0x9E3779B97F4A7C15)
        key += np.uint64(tokens[place - 1 - back]) * factor
        if back + 1 == SIZES[level]:
            bucket = np.int64(((key >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32))
            at, link = level * buckets + bucket, place * LEVELS + level
            if links:
                previous[link], latest[at] = latest[at], place
            else:
                latest[at] = previous[link]
            level += 1
    if links:
        previous[place * LEVELS + level : (place + 1) * LEVELS] = 0


@compiled
def latest_places(text: Text, tokens: Ints, known: int, begins: Ints) -> None:
    """Fill in, per number of tokens, the latest place in a text behind the last of other tokens.

    That is a place behind tokens of their hash, or 0.
    """
    buckets = BUCKETS * len(text.tokens)
    key, factor, level = np.uint64(0), np.uint64(1), 0
    for back in range(min(known, SIZES[-1])):
        factor *= np.uint64(0x9E3779B97F4A7C15)
        key += np.uint64(tokens[known - 1 - back]) * factor
        if back + 1 == SIZES[level]:
            bucket = np.int64(((key >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32))
            begins[level] = text.latest[level * buckets + bucket]
            level += 1


@compiled
def search(
    text: Text, begins: Ints, first: int, tokens: Ints, known: int, least: int, match: Ints
) -> None:
    """Fill in the facts about the latest places where the last of `known` tokens stand in a text.

    Per number of tokens, `begins` has the latest place behind tokens of that hash. Places count
    that repeat more than `least` tokens; nothing before `first` is compared.
    """
    stored, previous = text.tokens, text.previous
    longest = votes = occurrences = 0
    start, level, most = -1, LEVELS, LONGEST_MATCH
    while start < 0 and level > 0 and most > least:
        level -= 1
        longest = max(SIZES[level] - 1, least)
        place = begins[level]
        while place > first and (longest < most or occurrences < MOST_OCCURRENCES):
            length, back = 0, max(longest, 1)
            # That far back is where most places that do not matter differ.
            if place - first >= back and stored[place - back] == tokens[known - back]:
                length = common_end(stored, place, tokens, known, min(most, place - first))
            if length > longest:
                longest, start, votes, occurrences = length, place, 0, 0
            if start >= 0 and length == longest and occurrences < MOST_OCCURRENCES:
                votes += stored[place] == stored[start]
                occurrences += 1
            place = previous[place * LEVELS + level]
        most = SIZES[level] - 1
    match[LENGTH] = longest if start >= 0 else 0
    match[START], match[VOTES], match[OCCURRENCES] = start, votes, occurrences
    match[AVAILABLE] = known - start if start >= 0 else 0

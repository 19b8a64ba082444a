"""The n-gram index of all running requests, and matches at every position of recorded ones.

The facts of matches (see `matches.py`) have a row per fact and a column per request.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.matches import (
    IN_RING,
    MATCH_FIELDS,
    NO_RING,
    START,
    TEXT,
    Ints,
    Record,
    Ring,
    append,
    append_all,
    copy_tokens,
    new_text,
    search,
    search_ring,
    take_back,
    text_of,
)
from adaspec.jit import compiled

Longs = NDArray[np.int64]


class NgramIndex:
    """Finds, for the request in each slot, what followed its last tokens earlier in its context."""

    def __init__(self, slots: int, ring: Ring | None = None) -> None:
        """The `ring`, if there is one, is searched as well."""
        self._ring = NO_RING if ring is None else ring.record
        self._words: list[Ints | None] = [None] * slots
        self._texts = np.zeros(slots, TEXT)

    def open(self, slot: int, tokens: Ints, room: int, in_ring: bool = True) -> None:
        """Index a request's text in a slot, with room for so many tokens, drafts included.

        `in_ring`: whether the ring is searched for it.
        """
        self._words[slot] = new_text(self._texts[slot], room)
        self._texts["in_ring"][slot] = in_ring
        append_all(self._texts[slot], tokens)

    def extend(self, slots: Longs, tokens: Ints, counts: Longs) -> None:
        """Append counts[i] of the concatenated `tokens` to slots[i]; slots are distinct."""
        _extend_rows(self._texts, slots, tokens, counts)

    def find(self, slots: Longs, tails: Ints, copied: int) -> tuple[Ints, Ints]:
        """The matches behind the first 0, 1, .. tokens of a tail, and the tokens that they copy.

        The facts are (facts, slots, 1 + longest tail); the tokens (slots, 1 + longest tail,
        `copied`), with -1 behind their end. Behind a tail's first -1 there is no match.
        """
        shape = len(slots), 1 + tails.shape[1]
        facts, tokens = _no_facts(*shape), np.full((*shape, copied), -1, np.int32)
        _find_rows(self._texts, self._ring, slots, tails, facts, tokens)
        return facts, tokens

    def follow(self, output: Ints, tails: Ints) -> Ints:
        """The facts behind slot 0 as it grows by each token of an output, and behind tails there.

        They are (facts, output tokens, 1 + longest tail).
        """
        facts = _no_facts(len(output), 1 + tails.shape[1])
        _follow(self._texts[0], self._ring, output, tails, facts)
        return facts


def _no_facts(rows: int, tokens: int) -> Ints:
    facts = np.zeros((MATCH_FIELDS, rows, tokens), np.int32)
    facts[START] = -1
    return facts


@compiled
def _extend_rows(texts: Record, slots: Longs, tokens: Ints, counts: Longs) -> None:
    taken = 0
    for row in range(len(slots)):
        append_all(texts[slots[row]], tokens[taken : taken + counts[row]])
        taken += counts[row]


@compiled
def _find(record: Any, ring: Record, tail: Ints, facts: Ints, copied: Ints) -> None:
    """Fill in the match of a text, and those behind the tokens of a tail."""
    text, first, known = text_of(record), record.known, record.known
    while True:
        said, match = text.tokens[:known], facts[:, known - first]
        search(text, known, match)
        if record.in_ring:
            search_ring(ring[0], said, match)
        copy_tokens(said, ring[0], match[START], copied[known - first])
        if known - first == len(tail) or tail[known - first] < 0:
            break
        append(text, known, tail[known - first])
        known += 1
    while known > first:
        known -= 1
        take_back(text, known)


@compiled
def _find_rows(
    texts: Record, ring: Record, slots: Longs, tails: Ints, facts: Ints, copied: Ints
) -> None:
    for row in range(len(slots)):
        _find(texts[slots[row]], ring, tails[row], facts[:, row], copied[row])


@compiled
def _follow(record: Any, ring: Record, output: Ints, tails: Ints, facts: Ints) -> None:
    copied = np.empty((1 + tails.shape[1], 0), np.int32)
    for at in range(len(output)):
        _find(record, ring, tails[at], facts[:, at], copied)
        append_all(record, output[at : at + 1])


def look_ups(
    text: Ints, prompt_tokens: int, drafted: Ints | None = None, ring: Ring | None = None
) -> Ints:
    """The facts of `Matches` at all positions of an output: (facts, positions, 1 + most drafted).

    Entry [:, p, K] knows the text up to position p, and the first K tokens that were drafted there.
    `drafted` is (positions, most drafted), with -1 for no token; there the match has length 0. All
    look-ups also search the `ring`, if there is one.
    """
    output = text[prompt_tokens:]
    tails = np.empty((len(output), 0), np.int32) if drafted is None else drafted
    index = NgramIndex(1, ring)
    index.open(0, text[:prompt_tokens], len(text) + tails.shape[1])
    return index.follow(output, np.ascontiguousarray(tails, np.int32))


@compiled
def accepted_runs(context: Ints, starts: Ints, prompt_tokens: int, ring: Ints) -> Ints:
    """How many tokens from starts[p] on are those from prompt_tokens + p on, per position p.

    It is 0 where starts[p] is -1, and a copy of the own text ends where that did at the position.
    `ring` has the ring's tokens by place, with -1 behind each answer.
    """
    runs = np.zeros(len(starts), np.int32)
    for position in range(len(starts)):
        start, at = starts[position], prompt_tokens + position
        said, most = context, len(context) - at
        if start >= IN_RING:
            said, start = ring, start - IN_RING
        else:
            most = min(most, at - start)
        length = 0
        while start >= 0 and length < most and said[start + length] == context[at + length]:
            length += 1
        runs[position] = length
    return runs

"""The n-gram index of all running requests, and matches at every position of recorded ones.

Compiled functions over rows take `requests`, with the fields below for every slot, and the wanted
slots. The facts of matches (see `chains.py`) have a row per fact and a column per request.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.chains import (
    IN_RING,
    LEVELS,
    MATCH_FIELDS,
    START,
    Ints,
    Matches,
    Text,
    append,
    new_words,
    search,
    take_back,
    text_at,
)
from adaspec.draft.ring import Ring, copy_tokens, search_ring
from adaspec.errors import DraftError
from adaspec.jit import compiled

Longs = NDArray[np.int64]

ADDRESS, ROOM, KNOWN, RING, FIELDS = range(5)
"""Where the text lies (0: there is none), how many tokens it has room for and how many it has,
and the address of the ring that is searched as well, 0 where none is."""

SPARE = 64
"""Room that a text has for tokens to come, besides half of what it has."""


class NgramIndex:
    """Finds, for the request in each slot, what followed its last tokens earlier in its context."""

    def __init__(self, slots: int, ring: Ring | None = None) -> None:
        """The `ring`, if there is one, is searched as well."""
        self._ring = ring
        self._words: list[Ints | None] = [None] * slots
        self._requests = np.zeros((slots, FIELDS), np.int64)

    def open(self, slot: int, tokens: Ints, in_ring: bool = True) -> None:
        """Index a request's text in a slot; `in_ring`: whether the ring is searched for it."""
        self.close(slot)
        if self._ring is not None and in_ring:
            self._requests[slot, RING] = self._ring.address
        self._make_room(slot, len(tokens))
        _append_all(self._requests[slot], tokens)

    def close(self, slot: int) -> None:
        """Forget the text in a slot and free its memory."""
        self._words[slot] = None
        self._requests[slot] = 0

    def extend(self, slots: Longs, tokens: Ints, counts: Longs) -> None:
        """Append counts[i] of the concatenated `tokens` to slots[i]; slots are distinct."""
        self._prepare(slots, counts)
        _extend_rows(self._requests, slots, tokens, counts)

    def survey(self, slots: Longs, tail: int, candidate: int) -> tuple[Matches, Ints, Ints]:
        """The matches, the last `tail` tokens, and the `candidate` tokens that the matches copy.

        Where there are fewer, -1 fills up: before the last tokens, and behind those copied.
        """
        self._prepare(slots, np.zeros_like(slots))
        facts = np.empty((MATCH_FIELDS, len(slots)), np.int32)
        tails = np.empty((len(slots), tail), np.int32)
        copied = np.empty((len(slots), candidate), np.int32)
        _survey_rows(self._requests, slots, facts, tails, copied)
        return Matches(*facts), tails, copied

    def splice_matches(self, slots: Longs, tails: Ints, lengths: Longs) -> tuple[Ints, Ints]:
        """The facts of the matches behind the first 1, 2, .. tokens of tails, and what they copy.

        They are (tokens, facts, slots) and (tokens, slots). There is no match behind a token of -1,
        and -1 is copied where there is none.
        """
        self._prepare(slots, lengths)
        facts = np.zeros((tails.shape[1], MATCH_FIELDS, len(slots)), np.int32)
        copied = np.full((tails.shape[1], len(slots)), -1, np.int32)
        facts[:, START] = -1
        _splice_matches(self._requests, slots, tails, lengths, facts, copied)
        return facts, copied

    def propose(
        self, slots: Longs, starts: Ints, counts: Longs, tails: Ints, lengths: Longs
    ) -> Ints:
        """The counts[i] tokens from starts[i] on, and -1 past the end of the context and tail."""
        self._prepare(slots, lengths)
        drafts = np.empty((len(slots), counts.max(initial=0)), np.int32)
        _propose_rows(self._requests, slots, starts, counts, tails, lengths, drafts)
        return drafts

    def _prepare(self, slots: Longs, more: Longs) -> None:
        """Make room for so many more tokens in each slot, which holds a text."""
        while (row := _first_unready(self._requests, slots, more)) >= 0:
            slot = int(slots[row])
            if self._words[slot] is None:
                raise DraftError(f"slot {slot} holds no text: `open` it first")
            self._make_room(slot, int(more[row]))

    def _make_room(self, slot: int, more: int) -> None:
        """Move a request to memory with room for so many more tokens, and for its growth."""
        request, older = self._requests[slot], self._words[slot]
        known = int(request[KNOWN])
        tokens = np.empty(0, np.int32) if older is None else older[:known]  # they come first
        room = (known + more) * 3 // 2 + SPARE
        words = self._words[slot] = new_words(room)
        request[ADDRESS], request[ROOM], request[KNOWN] = words.ctypes.data, room, 0
        _append_all(request, tokens)


@compiled
def _first_unready(requests: Longs, slots: Longs, more: Longs) -> int:
    """The first row whose slot holds no text or lacks room for so many more tokens, or -1."""
    for row in range(len(slots)):
        request = requests[slots[row]]
        if request[ADDRESS] == 0 or request[KNOWN] + more[row] > request[ROOM]:
            return row
    return -1


@compiled
def _text_of(request: Longs) -> Text:
    return text_at(request[ADDRESS], request[ROOM])


@compiled
def _append_all(request: Longs, tokens: Ints) -> None:
    text, known = _text_of(request), request[KNOWN]
    for at in range(len(tokens)):
        append(text, known + at, tokens[at])
    request[KNOWN] = known + len(tokens)


@compiled
def _extend_rows(requests: Longs, slots: Longs, tokens: Ints, counts: Longs) -> None:
    taken = 0
    for row in range(len(slots)):
        _append_all(requests[slots[row]], tokens[taken : taken + counts[row]])
        taken += counts[row]


@compiled
def find_match(text: Text, known: int, ring: int, match: Ints) -> None:
    """Fill in the facts about the match of a text, in itself or in the ring at that address."""
    begins = text.previous[known * LEVELS : (known + 1) * LEVELS]
    search(text, begins, 0, text.tokens, known, 0, match)
    search_ring(ring, text.tokens[:known], match)


@compiled
def _survey_rows(requests: Longs, slots: Longs, facts: Ints, tail: Ints, copied: Ints) -> None:
    width = tail.shape[1]
    for row in range(len(slots)):
        request, match = requests[slots[row]], facts[:, row]
        text, known = _text_of(request), request[KNOWN]
        find_match(text, known, request[RING], match)
        last = text.tokens[max(0, known - width) : known]
        tail[row, : width - len(last)] = -1
        tail[row, width - len(last) :] = last
        copy_tokens(text.tokens[:known], request[RING], match[START], copied[row])


@compiled
def _splice_matches(
    requests: Longs, slots: Longs, tails: Ints, lengths: Longs, facts: Ints, copied: Ints
) -> None:
    for row in range(len(slots)):
        request = requests[slots[row]]
        text = _text_of(request)
        for depth in range(lengths[row]):
            _append_all(request, tails[row, depth : depth + 1])
            if tails[row, depth] >= 0:
                match, known = facts[depth, :, row], text.tokens[: request[KNOWN]]
                find_match(text, request[KNOWN], request[RING], match)
                copy_tokens(known, request[RING], match[START], copied[depth, row : row + 1])
        for _ in range(lengths[row]):
            take_back(text, request[KNOWN])
            request[KNOWN] -= 1


@compiled
def _propose_rows(
    requests: Longs,
    slots: Longs,
    starts: Longs,
    counts: Longs,
    tails: Ints,
    lengths: Longs,
    drafts: Ints,
) -> None:
    for row in range(len(slots)):
        request = requests[slots[row]]
        tokens, known, length = _text_of(request).tokens, request[KNOWN], lengths[row]
        tokens[known : known + length] = tails[row, :length]
        drafts[row] = -1
        copy_tokens(
            tokens[: known + length], request[RING], starts[row], drafts[row, : counts[row]]
        )


def look_ups(
    text: Ints, prompt_tokens: int, drafted: Ints | None = None, ring: Ring | None = None
) -> Ints:
    """The facts of `Matches` at all positions of an output: (facts, positions, 1 + most drafted).

    Entry [:, p, K] knows the text up to position p, and the first K tokens that were drafted there.
    `drafted` is (positions, most drafted), with -1 for no token; there the match has length 0. All
    look-ups also search the `ring`, if there is one.
    """
    positions = len(text) - prompt_tokens
    drafts = np.empty((positions, 0), np.int32) if drafted is None else drafted
    facts = np.zeros((MATCH_FIELDS, positions, 1 + drafts.shape[1]), np.int32)
    facts[START] = -1
    address, room = 0 if ring is None else ring.address, len(text) + drafts.shape[1]
    words, drafts = new_words(room), np.ascontiguousarray(drafts, np.int32)
    _look_up_all(words.ctypes.data, room, text, prompt_tokens, drafts, address, facts)
    return facts


@compiled
def _look_up_all(
    words: int, room: int, context: Ints, prompt: int, drafts: Ints, ring: int, facts: Ints
) -> None:
    text = text_at(words, room)
    for known in range(len(context)):
        if known >= prompt:
            matches, tail, drafted = facts[:, known - prompt], drafts[known - prompt], 0
            find_match(text, known, ring, matches[:, 0])
            while drafted < len(tail) and tail[drafted] >= 0:
                append(text, known + drafted, tail[drafted])
                drafted += 1
                find_match(text, known + drafted, ring, matches[:, drafted])
            for taken in range(drafted):
                take_back(text, known + drafted - taken)
        append(text, known, context[known])


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

"""The n-gram index of all running requests.

Compiled functions over rows take `requests`, with the fields below for every slot, and the wanted
slots. They write the facts of matches to int32 arrays with a row per fact (see `match.py`) and a
column per request.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adaspec.draft.chains import LEVELS, Text, append, new_words, search, take_back, text_at
from adaspec.draft.match import MATCH_FIELDS, START, Ints, Matches
from adaspec.draft.ring import Ring, copy_tokens, search_ring
from adaspec.errors import DraftError
from adaspec.jit import compiled

Longs = NDArray[np.int64]

ADDRESS, ROOM, KNOWN, RING, FIELDS = range(5)
"""Where the text lies (0: the slot is closed), how many tokens it has room for and how many it has,
and the address of the ring that is searched as well, 0 where none is."""

SPARE = 64
"""Room that a text has for tokens to come, besides half of what it has."""


class NgramIndex:
    """Finds, for every running request, what followed the last tokens earlier in its context.

    A request is identified by the slot that `open` returned.
    """

    def __init__(self, ring: Ring | None = None) -> None:
        """The `ring`, if there is one, is searched as well."""
        self._ring = ring
        self._words: list[Ints | None] = []
        self._free: list[int] = []
        self._requests = np.zeros((16, FIELDS), np.int64)

    def open(self, tokens: ArrayLike, in_ring: bool = True) -> int:
        """Index a new request's prompt; returns its slot, which `close` frees again.

        `in_ring`: whether the ring is searched for it.
        """
        prompt = _row(tokens, np.int32)
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._words)
            self._words.append(None)
            if slot == len(self._requests):
                self._requests = np.concatenate([self._requests, np.zeros_like(self._requests)])
        request = self._requests[slot]
        request[KNOWN] = 0
        request[RING] = self._ring.address if self._ring is not None and in_ring else 0
        self._make_room(slot, len(prompt))
        _append_all(request, prompt)
        return slot

    def extend(self, slots: ArrayLike, tokens: ArrayLike, counts: ArrayLike) -> None:
        """Append counts[i] of the concatenated `tokens` to slots[i]; slots are distinct."""
        rows, run, lengths = _row(slots), _row(tokens, np.int32), _row(counts)
        total = len(run) if lengths.min(initial=0) >= 0 else -1
        if len(lengths) != len(rows) or lengths.sum() != total:
            raise DraftError(
                f"extend got {len(rows)} slots, {len(run)} tokens and {len(lengths)} counts"
                f" that add up to {lengths.sum()}: give one count >= 0 per slot"
            )
        self._prepare(rows, lengths)
        _extend_rows(self._requests, rows, run, lengths)

    def close(self, slot: int) -> None:
        """Forget a request and free its memory."""
        self._prepare(_row([slot]))
        self._words[slot] = None
        self._requests[slot] = 0
        self._free.append(slot)

    def survey(self, slots: ArrayLike, tail: int, candidate: int) -> tuple[Matches, Ints, Ints]:
        """The matches, the last `tail` tokens, and the `candidate` tokens that the matches copy.

        Where there are fewer, -1 fills up: before the last tokens, and behind those copied.
        """
        rows = _row(slots)
        self._prepare(rows)
        facts = np.empty((MATCH_FIELDS, len(rows)), np.int32)
        tails = np.empty((len(rows), tail), np.int32)
        copied = np.empty((len(rows), candidate), np.int32)
        _survey_rows(self._requests, rows, facts, tails, copied)
        return Matches(*facts), tails, copied

    def splice_matches(
        self, slots: ArrayLike, tails: ArrayLike, tail_lengths: ArrayLike
    ) -> tuple[Ints, Ints]:
        """The facts of the matches behind the first 1, 2, .. tokens of tails, and what they copy.

        They are (tokens, facts, slots) and (tokens, slots). There is no match behind a token of -1,
        and -1 is copied where there is none.
        """
        rows = _row(slots)
        extended, lengths = self._tails(rows, tails, tail_lengths)
        facts = np.zeros((extended.shape[1], MATCH_FIELDS, len(rows)), np.int32)
        copied = np.full((extended.shape[1], len(rows)), -1, np.int32)
        facts[:, START] = -1
        _splice_matches(self._requests, rows, extended, lengths, facts, copied)
        return facts, copied

    def propose(
        self,
        slots: ArrayLike,
        starts: ArrayLike,
        lengths: ArrayLike,
        tails: ArrayLike,
        tail_lengths: ArrayLike,
    ) -> Ints:
        """The lengths[i] tokens from starts[i] on, and -1 past the end of the context and tail."""
        rows, first, counts = _row(slots), _row(starts), _row(lengths)
        extended, known = self._tails(rows, tails, tail_lengths)
        drafts = np.empty((len(rows), counts.max(initial=0)), np.int32)
        _propose_rows(self._requests, rows, first, counts, extended, known, drafts)
        return drafts

    def _tails(self, rows: Longs, tails: ArrayLike, tail_lengths: ArrayLike) -> tuple[Ints, Longs]:
        """The tails and their lengths, checked, with room for them behind the texts."""
        extended, lengths = np.ascontiguousarray(tails, np.int32), _row(tail_lengths)
        if lengths.min(initial=0) < 0 or lengths.max(initial=0) > extended.shape[1]:
            raise DraftError(
                f"got tail lengths from {lengths.min()} to {lengths.max()}"
                f" for tails of {extended.shape[1]} tokens"
            )
        self._prepare(rows, lengths)
        return extended, lengths

    def _prepare(self, rows: Longs, more: Longs | None = None) -> None:
        """Check that slots are open, and make room for so many more tokens in each."""
        wanted = np.zeros(len(rows), np.int64) if more is None else more
        while (row := _first_unready(self._requests, rows, wanted)) >= 0:
            slot = int(rows[row])
            if not 0 <= slot < len(self._words) or self._words[slot] is None:
                raise DraftError(f"slot {slot} holds no request: use a slot that `open` returned")
            self._make_room(slot, int(wanted[row]))

    def _make_room(self, slot: int, more: int) -> None:
        """Move a request to memory with room for so many more tokens, and for its growth."""
        request, older = self._requests[slot], self._words[slot]
        known = int(request[KNOWN])
        tokens = np.empty(0, np.int32) if older is None else older[:known]  # they come first
        room = (known + more) * 3 // 2 + SPARE
        words = self._words[slot] = new_words(room)
        request[ADDRESS], request[ROOM], request[KNOWN] = words.ctypes.data, room, 0
        _append_all(request, tokens)


def _row(values: ArrayLike, dtype: type[np.integer[Any]] = np.int64) -> NDArray[Any]:
    row = np.ascontiguousarray(values, dtype)
    if row.ndim != 1:
        raise DraftError(f"got an array of shape {row.shape} where one row of numbers is needed")
    return row


@compiled
def _first_unready(requests: Longs, slots: Longs, more: Longs) -> int:
    """The first row whose slot is closed or lacks room for so many more tokens, or -1."""
    for row in range(len(slots)):
        slot = slots[row]
        if slot < 0 or slot >= len(requests) or requests[slot, ADDRESS] == 0:
            return row
        if requests[slot, KNOWN] + more[row] > requests[slot, ROOM]:
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

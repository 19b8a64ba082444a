"""The n-gram index of all running requests.

Compiled functions over rows take `requests`, with the fields below for every slot, and the wanted
slots. They write the facts of matches to int32 arrays with a row per fact (see `match.py`) and a
column per request.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adaspec.draft.answers import AnswerIndex, copy_tokens, match_answers
from adaspec.draft.chains import (
    Text,
    append,
    fetch,
    fetch_place,
    look_up,
    new_words,
    take_back,
    text_at,
)
from adaspec.draft.match import FACTS, START, Ints, Matches
from adaspec.errors import DraftError
from adaspec.jit import compiled

Longs = NDArray[np.int64]

ADDRESS, ROOM, KNOWN, OWNER, ANSWERS, FIELDS = range(6)
"""Where the text lies (0: the slot is closed), how many tokens it has room for and how many it has;
whose answers are looked up as well, and the address of all answers, 0 where there are none."""

SPARE = 64
"""Room that a text has for tokens to come, besides half of what it has."""
FETCHED = 4
"""Memory is waited for at each place that a look-up reads, and the texts of a large batch do not
fit the cache. So the first places are fetched for all rows before any row is looked up: with a
hundred requests that takes a third off a look-up."""


class NgramIndex:
    """Finds, for every running request, what followed the last tokens earlier in its context.

    A request is identified by the slot that `open` returned.
    """

    def __init__(self, answers: AnswerIndex | None = None) -> None:
        """`answers` of earlier requests, if any, are looked up as well."""
        self.answers = answers
        self._words: list[Ints | None] = []
        self._free: list[int] = []
        self._requests = np.zeros((16, FIELDS), np.int64)

    def open(self, tokens: ArrayLike, owner: int = 1) -> int:
        """Index a new request's prompt; returns its slot, which `close` frees again.

        It finds answers of the same owner alone.
        """
        prompt = _tokens(tokens)
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._words)
            self._words.append(None)
            if slot == len(self._requests):
                self._requests = np.concatenate([self._requests, np.zeros_like(self._requests)])
        request = self._requests[slot]
        request[KNOWN], request[OWNER] = 0, owner
        request[ANSWERS] = 0 if self.answers is None else self.answers.address
        self._make_room(slot, len(prompt))
        _append_all(request, prompt)
        return slot

    def extend(self, slots: ArrayLike, tokens: ArrayLike, counts: ArrayLike) -> None:
        """Append counts[i] of the concatenated `tokens` to slots[i]; slots are distinct."""
        rows, run, lengths = _rows(slots), _tokens(tokens), _rows(counts)
        if len(lengths) != len(rows) or not _add_up(lengths, len(run)):
            raise DraftError(
                f"extend got {len(rows)} slots, {len(run)} tokens and {len(lengths)} counts"
                f" that add up to {lengths.sum()}: give one count >= 0 per slot"
            )
        self._prepare(rows, lengths)
        _extend_rows(self._requests, rows, run, lengths)

    def close(self, slot: int) -> None:
        """Forget a request and free its memory."""
        self._prepare(_rows([slot]))
        self._words[slot] = None
        self._requests[slot] = 0
        self._free.append(slot)

    def survey(self, slots: ArrayLike, tail: int, candidate: int) -> tuple[Matches, Ints, Ints]:
        """The matches, `tail`, and `copies` of the matches in one call: decisions need all."""
        rows = _rows(slots)
        self._prepare(rows)
        facts = np.empty((FACTS, len(rows)), np.int32)
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
        rows = _rows(slots)
        behind, lengths = self._tails(rows, tails, tail_lengths)
        facts = np.zeros((behind.shape[1], FACTS, len(rows)), np.int32)
        copied = np.full((behind.shape[1], len(rows)), -1, np.int32)
        facts[:, START] = -1
        _splice_matches(self._requests, rows, behind, lengths, facts, copied)
        return facts, copied

    def splice_match(self, slots: ArrayLike, tails: ArrayLike, tail_lengths: ArrayLike) -> Matches:
        """The matches as if slots[i] were extended by tails[i, :tail_lengths[i]].

        There is none where that is no token, or -1 the last one.
        """
        lengths = _rows(tail_lengths)
        every, _ = self.splice_matches(slots, tails, lengths)
        facts = np.zeros((FACTS, len(lengths)), np.int32)
        facts[START] = -1
        drafted = np.flatnonzero(lengths)
        facts[:, drafted] = every[lengths[drafted] - 1, :, drafted].T
        return Matches(*facts)

    def propose(
        self,
        slots: ArrayLike,
        starts: ArrayLike,
        lengths: ArrayLike,
        tails: ArrayLike,
        tail_lengths: ArrayLike,
    ) -> Ints:
        """The lengths[i] tokens from starts[i] on, and -1 past the end of the context and tail."""
        rows = _rows(slots)
        first, counts = _rows(starts, len(rows)), _rows(lengths, len(rows))
        behind, known = self._tails(rows, tails, tail_lengths)
        width = max(0, max(counts.tolist(), default=0))
        drafts = np.empty((len(rows), width), np.int32)
        _propose_rows(self._requests, rows, first, counts, behind, known, drafts)
        return drafts

    def copies(self, slots: ArrayLike, starts: ArrayLike, k: int) -> Ints:
        """The k tokens from starts[i] on in each context; -1 past its end or if starts[i] is -1."""
        rows = _rows(slots)
        self._prepare(rows)
        tokens = np.empty((len(rows), k), np.int32)
        _copy_rows(self._requests, rows, _rows(starts, len(rows)), tokens)
        return tokens

    def tail(self, slots: ArrayLike, k: int) -> Ints:
        """The last k tokens of each context, flush right, with -1 on the left if it is shorter."""
        rows = _rows(slots)
        self._prepare(rows)
        tail = np.empty((len(rows), k), np.int32)
        _tail_rows(self._requests, rows, tail)
        return tail

    def _tails(self, rows: Longs, tails: ArrayLike, tail_lengths: ArrayLike) -> tuple[Ints, Longs]:
        """The tails and their lengths, checked, with room for them behind the texts."""
        behind, lengths = np.ascontiguousarray(tails, np.int32), _rows(tail_lengths, len(rows))
        if behind.ndim != 2 or len(behind) != len(rows):
            raise DraftError(f"got tails of shape {behind.shape}: {len(rows)} rows are needed")
        if not _all_within(lengths, behind.shape[1]):
            raise DraftError(
                f"got tail lengths from {lengths.min()} to {lengths.max()}"
                f" for tails of {behind.shape[1]} tokens"
            )
        self._prepare(rows, lengths)
        return behind, lengths

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
        request = self._requests[slot]
        known = int(request[KNOWN])
        tokens = np.empty(0, np.int32) if known == 0 else self.copies([slot], [0], known)[0]
        room = (known + more) * 3 // 2 + SPARE
        words = self._words[slot] = new_words(room)
        request[ADDRESS], request[ROOM], request[KNOWN] = words.ctypes.data, room, 0
        _append_all(request, tokens)


def _rows(values: ArrayLike, count: int | None = None) -> Longs:
    rows = np.ascontiguousarray(values, np.int64)
    if rows.ndim != 1 or len(rows) != (len(rows) if count is None else count):
        raise DraftError(f"got an array of shape {rows.shape} where one value per slot is needed")
    return rows


def _tokens(values: ArrayLike) -> Ints:
    tokens = np.ascontiguousarray(values, np.int32)
    if tokens.ndim != 1:
        raise DraftError(f"got tokens of shape {tokens.shape} where one row of them is needed")
    return tokens


@compiled
def _all_within(values: Longs, most: int) -> bool:
    """Whether all values are from 0 to `most`."""
    fits = True
    for value in values:
        fits &= 0 <= value <= most
    return fits


@compiled
def _add_up(counts: Longs, total: int) -> bool:
    """Whether counts >= 0 add up to the total."""
    return _all_within(counts, total) and counts.sum() == total


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
        _fetch(requests[slots[row]], tokens[taken : taken + counts[row]])
        taken += counts[row]
    taken = 0
    for row in range(len(slots)):
        _append_all(requests[slots[row]], tokens[taken : taken + counts[row]])
        taken += counts[row]


@compiled
def _fetch(request: Longs, tokens: Ints) -> None:
    text, known = _text_of(request), request[KNOWN]
    for at in range(len(tokens)):
        fetch(text, known + at, tokens[at])


@compiled
def _find_rows(requests: Longs, slots: Longs, facts: Ints) -> None:
    for ahead in range(FETCHED):
        for row in range(len(slots)):
            request = requests[slots[row]]
            fetch_place(_text_of(request), request[KNOWN], ahead)
    for row in range(len(slots)):
        request = requests[slots[row]]
        find_match(
            _text_of(request), request[KNOWN], request[OWNER], request[ANSWERS], facts[:, row]
        )


@compiled
def _take_back_rows(requests: Longs, slots: Longs, counts: Longs) -> None:
    for row in range(len(slots)):
        request = requests[slots[row]]
        text = _text_of(request)
        for _ in range(counts[row]):
            take_back(text, request[KNOWN])
            request[KNOWN] -= 1


@compiled
def find_match(text: Text, known: int, owner: int, answers: int, match: Ints) -> None:
    """Fill in the facts about the match of a text, in itself or in earlier answers."""
    look_up(text, known, match)
    match_answers(text.tokens[:known], answers, owner, match)


@compiled
def _copy_rows(requests: Longs, slots: Longs, starts: Longs | Ints, tokens: Ints) -> None:
    for row in range(len(slots)):
        request = requests[slots[row]]
        text = _text_of(request).tokens[: request[KNOWN]]
        copy_tokens(text, request[ANSWERS], starts[row], tokens[row])


@compiled
def _tail_rows(requests: Longs, slots: Longs, tail: Ints) -> None:
    width = tail.shape[1]
    for row in range(len(slots)):
        request = requests[slots[row]]
        text = _text_of(request).tokens[: request[KNOWN]]
        last = text[max(0, len(text) - width) :]
        tail[row, : width - len(last)] = -1
        tail[row, width - len(last) :] = last


@compiled
def _survey_rows(requests: Longs, slots: Longs, facts: Ints, tail: Ints, copied: Ints) -> None:
    _find_rows(requests, slots, facts)
    _tail_rows(requests, slots, tail)
    _copy_rows(requests, slots, facts[START], copied)


@compiled
def _splice_matches(
    requests: Longs, slots: Longs, tails: Ints, lengths: Longs, facts: Ints, copied: Ints
) -> None:
    for row in range(len(slots)):
        _fetch(requests[slots[row]], tails[row, : lengths[row]])
    for depth in range(tails.shape[1]):
        for row in range(len(slots)):
            if depth < lengths[row]:
                _append_all(requests[slots[row]], tails[row, depth : depth + 1])
        _find_rows(requests, slots, facts[depth])
        for row in range(len(slots)):
            if depth >= lengths[row] or tails[row, depth] < 0:
                facts[depth, :, row] = 0
                facts[depth, START, row] = -1
        _copy_rows(requests, slots, facts[depth, START], copied[depth].reshape(-1, 1))
    _take_back_rows(requests, slots, lengths)


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
            tokens[: known + length], request[ANSWERS], starts[row], drafts[row, : counts[row]]
        )

"""The texts of all running requests, and what can be copied in each of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adaspec.draft.answers import NO_ANSWERS, AnswerIndex
from adaspec.draft.match import FACTS, LONGEST_MATCH, Ints, Matches, earliest_match
from adaspec.draft.scan import (
    CLOSED,
    Texts,
    append_rows,
    closed_row,
    match_rows,
    propose_rows,
)
from adaspec.errors import DraftError

Longs = NDArray[np.int64]


class NgramIndex:
    """Finds, for every running request, what followed the last tokens earlier in its context.

    A request is identified by the slot that `open` returned.
    """

    def __init__(self, answers: AnswerIndex | None = None) -> None:
        """`answers` of earlier requests, if any, are looked up as well."""
        self.answers = answers
        self._free: list[int] = []
        self._tokens = np.zeros((0, 0), np.int32)
        self._known = np.zeros(0, np.int32)
        self._owners = np.zeros(0, np.int32)

    def open(self, tokens: ArrayLike, owner: int = 1) -> int:
        """Take in a new request's prompt; returns its slot, which `close` frees again.

        It finds answers of the same owner alone.
        """
        prompt = np.asarray(tokens, np.int32)
        if not self._free:
            slots = len(self._known)
            self._free = list(range(2 * slots + 15, slots - 1, -1))
            self._known = np.append(self._known, np.full(slots + 16, CLOSED, np.int32))
            self._owners = np.append(self._owners, np.zeros(slots + 16, np.int32))
        slot = self._free.pop()
        self._make_room(len(prompt))
        self._known[slot], self._owners[slot] = len(prompt), owner
        self._tokens[slot, : len(prompt)] = prompt
        return slot

    def extend(self, slots: ArrayLike, tokens: ArrayLike, counts: ArrayLike) -> None:
        """Append counts[i] of the concatenated `tokens` to slots[i]; slots are distinct."""
        rows, lengths = self._rows(slots), np.asarray(counts, np.int32)
        self._make_room(int((self._known[rows] + lengths).max(initial=0)))
        append_rows(self._tokens, self._known, rows, np.asarray(tokens, np.int32), lengths)

    def close(self, slot: int) -> None:
        """Forget a request."""
        self._rows([slot])
        self._known[slot] = CLOSED
        self._free.append(slot)

    def survey(self, slots: ArrayLike, tail: int, candidate: int) -> tuple[Matches, Ints, Ints]:
        """The matches, `tail`, and `copies` of the matches: decisions need all."""
        texts = self._texts(slots)
        count = len(texts.slots)
        facts = np.empty((FACTS, count), np.int32)
        copied = np.empty((count, candidate), np.int32)
        match_rows(texts, np.empty((count, 0), np.int32), np.zeros(count, np.int32), facts, copied)
        return Matches(*facts), self.tail(slots, tail), copied

    def lookup_behind(self, slots: ArrayLike, tails: ArrayLike, tail_lengths: ArrayLike) -> Matches:
        """The matches as if slots[i] were extended by tails[i, :tail_lengths[i]].

        There is none where that is no token, or -1 the last one.
        """
        behind, lengths = np.ascontiguousarray(tails, np.int32), np.asarray(tail_lengths, np.int32)
        facts = np.empty((FACTS, len(lengths)), np.int32)
        texts, copied = self._texts(slots, behind.shape[1]), np.empty((len(lengths), 0), np.int32)
        match_rows(texts, behind, np.where(lengths > 0, lengths, -1), facts, copied)
        return Matches(*facts)

    def lookup_behind_every(
        self, slots: ArrayLike, tails: ArrayLike, tail_lengths: ArrayLike
    ) -> tuple[Ints, Ints]:
        """The facts of the matches behind the first 1, 2, .. tokens of tails, and what they copy.

        They are (tokens, facts, slots) and (tokens, slots). There is no match behind a token of -1,
        and -1 is copied where there is none.
        """
        behind, lengths = np.ascontiguousarray(tails, np.int32), np.asarray(tail_lengths, np.int32)
        count, width = behind.shape
        texts = self._texts(slots, width)
        facts = np.empty((width, FACTS, count), np.int32)
        copied = np.empty((width, count, 1), np.int32)
        for at in range(width):
            depths = np.where(at < lengths, at + 1, -1).astype(np.int32)
            match_rows(texts, behind, depths, facts[at], copied[at])
        return facts, copied[:, :, 0].copy()

    def propose(
        self, slots: ArrayLike, starts: ArrayLike, ngram_len: Ints, tails: Ints, neural_len: Ints
    ) -> Ints:
        """The first tokens of each tail, then those from `starts` on; -1 behind them.

        What lies past the end of the context and tail is -1, too.
        """
        texts, first = self._texts(slots, tails.shape[1]), np.asarray(starts, np.int32)
        tokens = np.empty((len(first), int((neural_len + ngram_len).max(initial=0))), np.int32)
        propose_rows(texts, tails, first, neural_len, ngram_len, tokens)
        return tokens

    def copies(self, slots: ArrayLike, starts: ArrayLike, k: int) -> Ints:
        """The k tokens from starts[i] on in each context; -1 past its end or if starts[i] is -1."""
        first = np.asarray(starts, np.int32)
        none = np.zeros(len(first), np.int32)
        return self.propose(slots, first, none + k, np.empty((len(first), 0), np.int32), none)

    def tail(self, slots: ArrayLike, k: int) -> Ints:
        """The last k tokens of each context, flush right, with -1 on the left if it is shorter."""
        rows = self._rows(slots)[:, None]
        places = self._known[rows] + np.arange(-k, 0)
        return np.where(places >= 0, self._tokens[rows, np.maximum(places, 0)], np.int32(-1))

    def match_vllm(self, slots: ArrayLike, min_n: int, max_n: int) -> tuple[Ints, Ints]:
        """(start, length) of `earliest_match` per slot."""
        if not 1 <= min_n <= max_n <= LONGEST_MATCH:
            raise DraftError(
                f"vLLM's look-up was asked for min_n={min_n}, max_n={max_n}:"
                f" 1 <= min_n <= max_n <= {LONGEST_MATCH} is needed"
            )
        texts = [self._tokens[slot, : self._known[slot]] for slot in self._rows(slots)]
        found = [earliest_match(text, min_n, max_n) for text in texts]
        start, length = np.array(found, np.int32).reshape(-1, 2).T.copy()
        return start, length

    def _texts(self, slots: ArrayLike, draft: int = 0) -> Texts:
        """The texts in these slots, with room for a draft of so many tokens behind each."""
        rows = self._rows(slots)
        self._make_room(int(self._known[rows].max(initial=0)) + draft)
        words = NO_ANSWERS if self.answers is None else self.answers.words
        return Texts(rows, self._tokens, self._known, words, self._owners)

    def _rows(self, slots: ArrayLike) -> Longs:
        """The slots as an array; a `DraftError` if one is closed."""
        rows = np.asarray(slots, np.int64).reshape(-1)
        closed = closed_row(self._known, rows)
        if closed >= 0:
            raise DraftError(
                f"slot {rows[closed]} holds no request: use a slot that `open` returned"
            )
        return rows

    def _make_room(self, tokens: int) -> None:
        """Move all texts to memory with room for so many tokens in each slot, and some more."""
        slots, room = self._tokens.shape
        if slots < len(self._known) or room < tokens:
            # Zeros take no memory before they are written to.
            moved = np.zeros((len(self._known), max(room, tokens * 3 // 2)), np.int32)
            for slot in range(slots):
                known = max(self._known[slot], 0)
                moved[slot, :known] = self._tokens[slot, :known]
            self._tokens = moved

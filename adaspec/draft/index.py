"""The incremental n-gram index of all running requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from adaspec.draft import batch
from adaspec.draft.batch import Ints, Longs
from adaspec.draft.behind import lookup_behind_rows
from adaspec.draft.buffer import RequestBuffer, Slabs
from adaspec.draft.trie import MAX_MATCH_TOKENS, MAX_TOKENS
from adaspec.errors import DraftError


@dataclass(slots=True)
class Matches:
    """The match of each context in question; every array has one entry per slot.

    An occurrence is an earlier end of the context's longest repeated suffix, which it may overlap.
    """

    length: Ints
    """The length in tokens of the longest match of the context's suffix, 0 to `max_match`."""
    start: Ints
    """The index of the token that follows the most recent occurrence, -1 if none."""
    first: Ints
    """The index of the token that follows the earliest occurrence, -1 if none."""
    agree: Ints
    """How many of the latest 8 occurrences are followed by the same token as the most recent."""
    seen: Ints
    """The number of occurrences that `agree` is about, 0 to 8."""
    available: Ints
    """The number of known tokens from `start` on, 0 if there is no match."""

    @classmethod
    def of_facts(cls, facts: Ints) -> Matches:
        """Views of the rows that compiled code fills, which are in the order of the fields."""
        return cls(*facts)


class NgramIndex:
    """Finds, for every running request, what followed the last tokens earlier in its context.

    Appending a token takes a bounded number of steps, however long the context is, and a look-up
    reads what the append found. A request is identified by the slot that `open` returned.
    """

    def __init__(self, max_match: int = MAX_MATCH_TOKENS) -> None:
        if not 1 <= max_match <= MAX_MATCH_TOKENS:
            raise DraftError(f"max_match={max_match}: choose 1 to {MAX_MATCH_TOKENS}")
        self.max_match = max_match
        self._requests: list[RequestBuffer | None] = []
        self._bases = np.zeros(0, np.int64)
        self._free: list[int] = []
        self._slabs = Slabs()

    def open(self, tokens: ArrayLike) -> int:
        """Index a new request's prompt; returns its slot, which `close` frees again."""
        prompt = _tokens(tokens)
        request = RequestBuffer(len(prompt), self.max_match, self._slabs)
        request.append(prompt)
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._requests)
            self._requests.append(None)
            if slot == len(self._bases):
                self._bases = np.concatenate([self._bases, np.zeros(max(16, slot), np.int64)])
        self._requests[slot] = request
        self._bases[slot] = request.base
        return slot

    def extend(self, slots: ArrayLike, tokens: ArrayLike, counts: ArrayLike) -> None:
        """Append counts[i] of the concatenated `tokens` to slots[i]; slots are distinct."""
        rows, run, lengths = _rows(slots), _tokens(tokens), _rows(counts)
        while True:
            state, row = batch.extend_rows(self._bases, rows, run, lengths)
            if state == batch.READY:
                return
            if state == batch.MISCOUNTED:
                raise DraftError(
                    f"extend got {len(rows)} slots, {len(run)} tokens and {len(lengths)} counts"
                    f" that add up to {lengths.sum()}: give one count >= 0 per slot"
                )
            slot = int(rows[row])
            if state == batch.TWICE:
                raise DraftError(f"slot {slot} stands twice in one extend: merge its tokens")
            request = self._request(slot)
            request.grow(int(lengths[row]))
            self._bases[slot] = request.base

    def close(self, slot: int) -> None:
        """Forget a request and free its memory."""
        self._request(slot).free()
        self._requests[slot] = None
        self._bases[slot] = 0
        self._free.append(slot)

    def lookup(self, slots: ArrayLike) -> Matches:
        """The current match of each context."""
        rows = _rows(slots)
        facts = np.empty((batch.FACTS, len(rows)), np.int32)
        _check_open(rows, batch.lookup_rows(self._bases, rows, facts))
        return Matches.of_facts(facts)

    def survey(self, slots: ArrayLike, tail: int, candidate: int) -> tuple[Matches, Ints, Ints]:
        """`lookup`, `tail` and `copies` of the matches in one call, since decisions need all."""
        rows = _rows(slots)
        facts = np.empty((batch.FACTS, len(rows)), np.int32)
        tail_tokens, copied = _unknown(len(rows), tail), _unknown(len(rows), candidate)
        _check_open(rows, batch.survey_rows(self._bases, rows, facts, tail_tokens, copied))
        return Matches.of_facts(facts), tail_tokens, copied

    def lookup_behind(self, slots: ArrayLike, tails: ArrayLike, tail_lengths: ArrayLike) -> Matches:
        """What `lookup` would return after extending slots[i] by tails[i, :tail_lengths[i]]."""
        rows = _rows(slots)
        behind, lengths = _tails(tails, tail_lengths, len(rows))
        facts = np.empty((batch.FACTS, len(rows)), np.int32)
        _check_open(rows, lookup_behind_rows(self._bases, rows, behind, lengths, facts))
        return Matches.of_facts(facts)

    def propose(
        self,
        slots: ArrayLike,
        starts: ArrayLike,
        lengths: ArrayLike,
        tails: ArrayLike | None = None,
        tail_lengths: ArrayLike | None = None,
    ) -> Ints:
        """The lengths[i] tokens from starts[i] on, and -1 past the end of the context and tail."""
        rows = _rows(slots)
        first, counts = _rows(starts), _rows(lengths)
        if len(first) != len(rows) or len(counts) != len(rows):
            raise DraftError(
                f"propose got {len(rows)} slots, {len(first)} starts and {len(counts)} lengths:"
                " give one of each per slot"
            )
        if tails is None or tail_lengths is None:
            tails, tail_lengths = np.empty((len(rows), 0), np.int32), np.zeros(len(rows), np.int64)
        behind, known = _tails(tails, tail_lengths, len(rows))
        drafts = _unknown(len(rows), max(0, max(counts.tolist(), default=0)))
        closed = batch.propose_rows(self._bases, rows, first, counts, behind, known, drafts)
        _check_open(rows, closed)
        return drafts

    def copies(self, slots: ArrayLike, starts: ArrayLike, k: int) -> Ints:
        """The k tokens from starts[i] on in each context; -1 past its end or if starts[i] is -1."""
        rows, first = _rows(slots), _rows(starts)
        if len(first) != len(rows):
            raise DraftError(f"copies got {len(rows)} slots and {len(first)} starts: give one each")
        tokens = _unknown(len(rows), k)
        _check_open(rows, batch.copy_rows(self._bases, rows, first, tokens))
        return tokens

    def tail(self, slots: ArrayLike, k: int) -> Ints:
        """The last k tokens of each context, flush right, with -1 on the left if it is shorter."""
        rows = _rows(slots)
        tail = _unknown(len(rows), k)
        _check_open(rows, batch.tail_rows(self._bases, rows, tail))
        return tail

    def match_vllm(self, slots: ArrayLike, min_n: int, max_n: int) -> tuple[Ints, Ints]:
        """(start, length) of the match that vLLM's look-up uses, per slot; (-1, 0) if none.

        It is the earliest occurrence of the longest match of min_n to max_n tokens.
        """
        if not 1 <= min_n <= max_n <= self.max_match:
            raise DraftError(
                f"vLLM's look-up was asked for min_n={min_n}, max_n={max_n}:"
                f" 1 <= min_n <= max_n <= {self.max_match} is needed"
            )
        rows = _rows(slots)
        starts, lengths = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
        closed = batch.match_vllm_rows(self._bases, rows, min_n, max_n, starts, lengths)
        _check_open(rows, closed)
        return starts, lengths

    def nbytes(self, slot: int | None = None) -> int:
        """Bytes of one request's memory, or of all requests', holes between them included."""
        if slot is not None:
            return self._request(slot).nbytes
        return self._slabs.nbytes + self._bases.nbytes

    def _request(self, slot: int) -> RequestBuffer:
        request = self._requests[slot] if 0 <= slot < len(self._requests) else None
        if request is None:
            raise _closed(slot)
        return request


def _check_open(rows: Longs, closed: int) -> None:
    """Raise a `DraftError` if compiled code returned a row whose slot is not open, and not -1."""
    if closed >= 0:
        raise _closed(rows[closed])


def _closed(slot: int) -> DraftError:
    return DraftError(f"slot {slot} holds no request: use a slot that `open` returned")


def _unknown(rows: int, tokens: int) -> Ints:
    """An array of -1, made without np.full, which takes five times as long."""
    unknown = np.empty((rows, tokens), np.int32)
    unknown.fill(-1)
    return unknown


def _rows(values: ArrayLike) -> Longs:
    rows = np.ascontiguousarray(values, np.int64)
    if rows.ndim != 1:
        raise DraftError(f"got an array of shape {rows.shape} where one value per slot is needed")
    return rows


def _tokens(values: ArrayLike) -> Ints:
    tokens = np.ascontiguousarray(values, np.int32)
    if tokens.ndim != 1:
        raise DraftError(f"got tokens of shape {tokens.shape} where one row of them is needed")
    if len(tokens) > MAX_TOKENS:
        raise DraftError(f"got {len(tokens)} tokens: a context may have {MAX_TOKENS}")
    return tokens


def _tails(tails: ArrayLike, tail_lengths: ArrayLike, count: int) -> tuple[Ints, Longs]:
    behind, lengths = np.ascontiguousarray(tails, np.int32), _rows(tail_lengths)
    if behind.ndim != 2 or len(behind) != count or len(lengths) != count:
        raise DraftError(
            f"got tails of shape {behind.shape} and {len(lengths)} tail lengths for {count} slots:"
            " give one row and one length per slot"
        )
    if not batch.all_within(lengths, behind.shape[1]):
        raise DraftError(
            f"got tail lengths from {lengths.min()} to {lengths.max()}"
            f" for tails of {behind.shape[1]} tokens"
        )
    return behind, lengths

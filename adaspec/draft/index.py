"""The n-gram index of all running requests, and its matches at every position of recorded ones.

Both use the same compiled functions, so that offline and serving figures cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from adaspec.draft import batch
from adaspec.draft.answers import IN_ANSWERS, AnswerIndex
from adaspec.draft.batch import GROUP, Ints, Longs
from adaspec.draft.behind import lookup_behind_rows, read_behind
from adaspec.draft.buffer import RequestBuffer, Slabs
from adaspec.draft.trie import MAX_MATCH, MAX_TOKENS, append
from adaspec.errors import DraftError
from adaspec.jit import compiled


@dataclass(slots=True)
class Matches:
    """The match of each context in question; every array has one entry per slot.

    An occurrence is an earlier end of the context's longest repeated suffix, which it may overlap.
    """

    length: Ints
    """The length in tokens of the longest match of the context's suffix, 0 to `MAX_MATCH`."""
    start: Ints
    """The index of the token that follows the most recent occurrence, -1 if none.

    Where the match is in an earlier answer, `IN_ANSWERS` + its place there."""
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

    def __init__(self, answers: AnswerIndex | None = None) -> None:
        """`answers` of earlier requests, if any, are looked up as well."""
        self.answers = answers
        self._requests: list[RequestBuffer | None] = []
        self._bases = np.zeros(0, np.int64)
        self._free: list[int] = []
        self._slabs = Slabs()

    @property
    def bases(self) -> Longs:
        """Where each slot's request lies, for compiled code; another array once one more opens."""
        return self._bases

    def open(self, tokens: ArrayLike, owner: int = 1) -> int:
        """Index a new request's prompt; returns its slot, which `close` frees again.

        It finds answers of the same owner alone.
        """
        prompt = _tokens(tokens)
        address = 0 if self.answers is None else self.answers.address
        request = RequestBuffer(len(prompt), self._slabs, address, owner)
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
        tails: ArrayLike,
        tail_lengths: ArrayLike,
    ) -> Ints:
        """The lengths[i] tokens from starts[i] on, and -1 past the end of the context and tail."""
        rows = _rows(slots)
        first, counts = _rows(starts, len(rows)), _rows(lengths, len(rows))
        behind, known = _tails(tails, tail_lengths, len(rows))
        drafts = _unknown(len(rows), max(0, max(counts.tolist(), default=0)))
        _check_open(
            rows, batch.propose_rows(self._bases, rows, first, counts, behind, known, drafts)
        )
        return drafts

    def copies(self, slots: ArrayLike, starts: ArrayLike, k: int) -> Ints:
        """The k tokens from starts[i] on in each context; -1 past its end or if starts[i] is -1."""
        rows = _rows(slots)
        first = _rows(starts, len(rows))
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
        if not 1 <= min_n <= max_n <= MAX_MATCH:
            raise DraftError(
                f"vLLM's look-up was asked for min_n={min_n}, max_n={max_n}:"
                f" 1 <= min_n <= max_n <= {MAX_MATCH} is needed"
            )
        rows = _rows(slots)
        starts, lengths = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
        _check_open(rows, batch.match_vllm_rows(self._bases, rows, min_n, max_n, starts, lengths))
        return starts, lengths

    def nbytes(self) -> int:
        """Bytes of all requests' memory, holes between them included."""
        return self._slabs.nbytes + self._bases.nbytes

    def _request(self, slot: int) -> RequestBuffer:
        request = self._requests[slot] if 0 <= slot < len(self._requests) else None
        if request is None:
            raise closed(slot)
        return request


def _check_open(rows: Longs, first_closed: int) -> None:
    """Raise a `DraftError` if compiled code returned a row whose slot is not open, and not -1."""
    if first_closed >= 0:
        raise closed(int(rows[first_closed]))


def closed(slot: int) -> DraftError:
    """The error of a slot that is not open."""
    return DraftError(f"slot {slot} holds no request: use a slot that `open` returned")


def _unknown(rows: int, tokens: int) -> Ints:
    """An array of -1, made without np.full, which takes five times as long."""
    unknown = np.empty((rows, tokens), np.int32)
    unknown.fill(-1)
    return unknown


def _rows(values: ArrayLike, count: int | None = None) -> Longs:
    rows = np.ascontiguousarray(values, np.int64)
    if rows.ndim != 1 or len(rows) != (len(rows) if count is None else count):
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
    behind, lengths = np.ascontiguousarray(tails, np.int32), _rows(tail_lengths, count)
    if behind.ndim != 2 or len(behind) != count:
        raise DraftError(f"got tails of shape {behind.shape}: {count} rows of tokens are needed")
    if not batch.all_within(lengths, behind.shape[1]):
        raise DraftError(
            f"got tail lengths from {lengths.min()} to {lengths.max()}"
            f" for tails of {behind.shape[1]} tokens"
        )
    return behind, lengths


def match_positions(
    prompt: ArrayLike, output: ArrayLike, answers: AnswerIndex | None = None
) -> Matches:
    """The look-ups at all positions: entry p knows prompt + output[:p], up to len(output) - 1.

    All of them also know these `answers`, of owner 1.
    """
    request, tokens = _recorded(prompt, output, answers)
    facts = np.empty((batch.FACTS, len(tokens)), np.int32)
    _append_noting(request.base, tokens, facts)
    return Matches.of_facts(facts)


def vllm_positions(
    prompt: ArrayLike, output: ArrayLike, min_n: int, max_n: int
) -> tuple[Ints, Ints]:
    """(start, length) per position of the match that vLLM's look-up uses; (-1, 0) if none.

    It is the earliest occurrence of the longest match of min_n to max_n tokens.
    """
    request, tokens = _recorded(prompt, output)
    matches = np.empty((2, len(tokens)), np.int32)
    _append_vllm(request.base, tokens, min_n, max_n, matches)
    return matches[0], matches[1]


def matches_behind_drafts(
    prompt: ArrayLike, output: ArrayLike, drafted: ArrayLike, answers: AnswerIndex | None = None
) -> Matches:
    """The look-ups behind drafts; entry [p, K-1] is behind the first K drafted tokens at p.

    `drafted` is [len(output), most drafted], with -1 for no token; there the match has length 0.
    """
    request, tokens = _recorded(prompt, output, answers)
    drafts = np.ascontiguousarray(drafted, np.int32)
    facts = np.zeros((batch.FACTS, *drafts.shape), np.int32)
    facts[batch.START] = facts[batch.EARLIEST] = -1
    _append_behind(request.base, tokens, drafts, facts)
    return Matches.of_facts(facts)


def _recorded(
    prompt: ArrayLike, output: ArrayLike, answers: AnswerIndex | None = None
) -> tuple[RequestBuffer, Ints]:
    """A request with its prompt indexed and room for its output, and the output's tokens."""
    prompt_tokens, output_tokens = _tokens(prompt), _tokens(output)
    address = 0 if answers is None else answers.address
    request = RequestBuffer(len(prompt_tokens), Slabs(0), address, 1)
    request.append(prompt_tokens)
    request.grow(len(output_tokens))
    return request, output_tokens


@compiled
def copied_run(context: Ints, start: int, position: int) -> int:
    """How many tokens from `position` on equal those from `start` on; these end at `position`."""
    length = 0
    known = min(position - start, len(context) - position)
    while length < known and context[start + length] == context[position + length]:
        length += 1
    return length


@compiled
def accepted_runs(context: Ints, starts: Ints, prompt_tokens: int) -> Ints:
    """`copied_run` from starts[p] at prompt_tokens + p, per position p; 0 if starts[p] is -1."""
    runs = np.zeros(len(starts), np.int32)
    for position in range(len(starts)):
        if starts[position] >= 0:
            runs[position] = copied_run(context, starts[position], prompt_tokens + position)
    return runs


@compiled
def runs_of_answers(
    runs: Ints, context: Ints, starts: Ints, prompt_tokens: int, text: Ints
) -> None:
    """Set the runs of matches in earlier answers, whose tokens are `text`."""
    for position in range(len(starts)):
        place, at = starts[position] - IN_ANSWERS, prompt_tokens + position
        if place >= 0:
            length = 0
            while at + length < len(context) and text[place + length] == context[at + length]:
                length += 1
            runs[position] = length


@compiled
def _append_noting(base: int, tokens: Ints, facts: Ints) -> None:
    for position in range(len(tokens)):
        batch.read_facts(base, facts, position)
        append(base, tokens[position])


@compiled
def _append_vllm(base: int, tokens: Ints, min_n: int, max_n: int, matches: Ints) -> None:
    for position in range(len(tokens)):
        start, length = batch.earliest_at_most(base, min_n, max_n)
        matches[0, position], matches[1, position] = start, length
        append(base, tokens[position])


@compiled
def _append_behind(base: int, tokens: Ints, drafts: Ints, facts: Ints) -> None:
    width = drafts.shape[1]
    bases, lengths = np.full(width, base), np.arange(1, width + 1)
    for position in range(len(tokens)):
        drafted = 0
        while drafted < width and drafts[position, drafted] >= 0:
            drafted += 1
        rows = np.full(drafted, position)
        for first in range(0, drafted, GROUP):
            last = min(first + GROUP, drafted)
            read_behind(bases[first:last], drafts, rows, lengths[first:], facts[:, position], first)
        append(base, tokens[position])

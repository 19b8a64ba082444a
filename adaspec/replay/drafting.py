"""What the recorded drafter and target say, handed out a forward at a time."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from adaspec.draft import Matches, NgramIndex
from adaspec.errors import PolicyFault
from adaspec.policy.protocol import Drafts
from adaspec.replay.tape import Columns, Tape
from adaspec.trace.schema import CONFIDENCES

Ints = NDArray[np.int32]


class KnownText:
    """The `Context` of a batch: look-ups in the text as far as it has been emitted."""

    def __init__(self, index: NgramIndex, slots: Ints, matches: Matches) -> None:
        self._index, self._slots, self._matches = index, slots, matches

    def tail(self, count: int) -> Ints:
        """The last known tokens per row."""
        return self._index.tail(self._slots, count)

    def candidate(self, count: int) -> Ints:
        """What the most recent match would copy, padded with -1 to `count`."""
        lengths = np.minimum(self._matches.available, count).astype(np.int32)
        out = np.full((len(self._slots), count), -1, np.int32)
        if lengths.any():
            tokens = self._index.propose(self._slots, self._matches.start, lengths)
            out[:, : tokens.shape[1]] = tokens
        return out

    def vllm_match(self, min_match: int, max_match: int) -> tuple[Ints, Ints]:
        """Where vLLM's own look-up copies from, and the match's length."""
        return self._index.match_vllm(self._slots, min_match, max_match)


class Script:
    """The tape as a drafter: what it says at any position, one forward at a time."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        texts = [np.append(r.prompt_tokens, r.output_tokens) for r in tape.requests]
        self.text = np.concatenate(texts).astype(np.int32)
        """Prompt and output of every request."""
        self.start = np.concatenate([[0], np.cumsum([len(t) for t in texts])]).astype(np.int64)
        """Where each request's text starts."""

    def step(self, request: NDArray[np.int64], position: Ints, holds: NDArray[np.bool_]) -> Step:
        """The drafter at one engine step."""
        return Step(self._tape, request, position, holds)


class Step:
    """All that the drafter could say at one step; hands over only what has been drafted."""

    def __init__(
        self, tape: Tape, request: NDArray[np.int64], position: Ints, holds: NDArray[np.bool_]
    ) -> None:
        self._tape, self._request, self._position, self._holds = tape, request, position, holds

    def revealed(self, count: int, index: NgramIndex, indexed: Ints) -> Drafts:
        """The drafts after `count` forwards."""
        rows = len(self._request)
        tokens = np.full((rows, count), -1, np.int32)
        confidences = np.full((rows, count, len(CONFIDENCES)), np.nan, np.float32)
        if count and self._tape.shows_tokens:
            for row in np.flatnonzero(self._holds):
                request = self._tape.requests[self._request[row]]
                at = self._position[row]
                assert request.drafted_tokens is not None
                tokens[row] = request.drafted_tokens[at, :count]
                if request.confidences is not None:
                    confidences[row] = request.confidences[at, :count]
        if self._tape.shows_tokens:
            return Drafts(count, tokens, confidences, _BehindDrafts(index, indexed.copy(), tokens))
        behind = _BehindTruth(self._found_on_the_true_path(count))
        return Drafts(count, tokens, confidences, behind)

    def _found_on_the_true_path(self, count: int) -> Matches:
        """Look-ups behind the first 1..count tokens, where the recording lacks the drafted ones.

        The true text stands in for them: a splice behind a wrong draft is worth nothing either
        way, and is charged what this look-up gives. At the output's end it gives nothing.
        """
        columns, flat = self._tape.columns, self._tape.matches
        behind = self._position[:, None] + np.arange(1, count + 1)
        inside = behind < columns.length[self._request][:, None]
        at = np.where(inside, columns.offset[self._request][:, None] + behind, 0)

        def column(values: NDArray[np.int32], none: int) -> Ints:
            return np.where(inside, values[at], none).astype(np.int32)

        return Matches(
            length=column(flat.length, 0),
            start=column(flat.start, -1),
            first=column(flat.first, -1),
            agree=column(flat.agree, 0),
            seen=column(flat.seen, 0),
            available=column(flat.available, 0),
        )


class _BehindDrafts:
    """Look-ups behind drafted tokens, asked once per lengths."""

    def __init__(self, index: NgramIndex, slots: Ints, tokens: Ints) -> None:
        self._index, self._slots, self._tokens = index, slots, tokens
        self._last: tuple[bytes, Matches] | None = None

    def __call__(self, neural_len: Ints) -> Matches:
        lengths = _asked(neural_len, self._tokens.shape)
        key = lengths.tobytes()
        if self._last is None or self._last[0] != key:
            found = self._index.lookup_behind(self._slots, self._tokens, lengths)
            self._last = key, _blanked(found, lengths == 0)
        return self._last[1]


class _BehindTruth:
    """Look-ups behind tokens that the recording lacks."""

    def __init__(self, found: Matches) -> None:
        self._found = found

    def __call__(self, neural_len: Ints) -> Matches:
        lengths = _asked(neural_len, self._found.length.shape)
        rows, at = np.arange(len(lengths)), np.maximum(lengths - 1, 0)
        if self._found.length.shape[1] == 0:
            return _nothing(len(lengths))
        columns = (
            self._found.length,
            self._found.start,
            self._found.first,
            self._found.agree,
            self._found.seen,
            self._found.available,
        )
        return _blanked(Matches(*(column[rows, at] for column in columns)), lengths == 0)


def _asked(neural_len: Ints, shape: tuple[int, ...]) -> Ints:
    lengths = np.ascontiguousarray(neural_len, dtype=np.int32)
    if lengths.shape != shape[:1] or (lengths < 0).any() or (lengths > shape[1]).any():
        raise PolicyFault(
            f"a look-up behind {lengths.tolist()} neural tokens was asked, {shape[1]} are drafted"
        )
    return lengths


def _nothing(rows: int) -> Matches:
    zero, none = np.zeros(rows, np.int32), np.full(rows, -1, np.int32)
    return Matches(zero, none, none.copy(), zero.copy(), zero.copy(), zero.copy())


def _blanked(found: Matches, where: NDArray[np.bool_]) -> Matches:
    if where.any():
        for column in (found.length, found.agree, found.seen, found.available):
            column[where] = 0
        found.start[where] = found.first[where] = -1
    return found


@njit(cache=True, nogil=True)
def verify(
    text: Ints,
    text_start: NDArray[np.int64],
    columns: Columns,
    request: NDArray[np.int64],
    position: Ints,
    neural_len: Ints,
    ngram_len: Ints,
    start: Ints,
) -> tuple[Ints, Ints, Ints, Ints]:
    """What the target says: accepted, emitted counts and tokens, and tokens left, per row."""
    rows = request.shape[0]
    accepted = np.zeros(rows, np.int32)
    counts = np.zeros(rows, np.int32)
    left = np.zeros(rows, np.int32)
    most = 0
    for row in range(rows):
        r, p = request[row], position[row]
        left[row] = columns.length[r] - p
        base, end = text_start[r], text_start[r + 1]
        taken = 0
        if neural_len[row] > 0:
            taken = min(columns.neural[columns.offset[r] + p], neural_len[row])
        if taken == neural_len[row]:
            truth = base + columns.prompt[r] + p + taken
            copy = base + start[row]
            for j in range(ngram_len[row]):
                if truth + j >= end or text[copy + j] != text[truth + j]:
                    break
                taken += 1
        accepted[row] = taken
        counts[row] = min(taken + 1, left[row])
        most = max(most, counts[row])
    emitted = np.full((rows, most), -1, np.int32)
    for row in range(rows):
        truth = text_start[request[row]] + columns.prompt[request[row]] + position[row]
        for j in range(counts[row]):
            emitted[row, j] = text[truth + j]
    return accepted, counts, emitted, left

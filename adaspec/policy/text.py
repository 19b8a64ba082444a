"""What a policy may look up: the text of running requests, and what follows drafted tokens."""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.index import NgramIndex
from adaspec.draft.match import START, Matches
from adaspec.errors import PolicyFault
from adaspec.policy.protocol import Bools, Ints
from adaspec.predict.features import CANDIDATE, TAIL

Longs = NDArray[np.int64]

MAX_TOKENS = 1 << 12
"""Most tokens of the known text that a policy may ask for at once."""
_HUGE = 1 << 30
_INT32 = np.dtype(np.int32)


class KnownText:
    """The `Context` of a batch: look-ups in the text as far as it is known."""

    def __init__(
        self, index: NgramIndex, slots: Longs, start: Ints, tail: Ints, candidate: Ints
    ) -> None:
        """`start` says where the matches lie; no policy may hold any of these arrays.

        `tail` has the last `TAIL` tokens, `candidate` the first `CANDIDATE` that would be copied.
        """
        self._index, self._slots, self._start = index, slots, start
        self._tail, self._candidate = tail, candidate

    def tail(self, count: int) -> Ints:
        """The last `count` known tokens of every row, padded with -1 on the left."""
        tokens = _checked(count)
        return self._tail.copy() if tokens == TAIL else self._index.tail(self._slots, tokens)

    def candidate(self, count: int) -> Ints:
        """What every row's most recent match would copy, padded with -1."""
        tokens = _checked(count)
        if tokens <= CANDIDATE:
            return self._candidate[:, :tokens].copy()
        return self._index.copies(self._slots, self._start, tokens)

    def vllm_match(self, min_match: int, max_match: int) -> tuple[Ints, Ints]:
        """vLLM's own look-up per row: where copying starts (-1: nowhere), the match's length."""
        return self._index.match_vllm(self._slots, min_match, max_match)


class BehindDrafts:
    """Look-ups behind drafted tokens, answered once per lengths."""

    def __init__(
        self, index: NgramIndex, slots: Longs, tokens: Ints, count: int, holds: Bools
    ) -> None:
        """Of `tokens`, the first `count` per row are drafted; no policy may hold these arrays."""
        self._index, self._slots, self._tokens = index, slots, tokens
        self._count, self._holds = count, holds
        self._facts: Ints | None = None
        """What `every` found."""
        self._answered: bytes | None = None
        """The lengths that the matches below are of."""

    def __call__(self, neural_len: Ints) -> Matches:
        """The match behind each row's first `neural_len` drafted tokens; none where that is 0."""
        self._match(lengths_behind(neural_len, self._count, self._holds))
        return self._matches

    def every(self) -> tuple[Ints, Ints]:
        """The facts of the matches behind the first 1, 2, .. drafted tokens, and what they copy.

        They are (forwards, facts, rows) and (forwards, rows), -1 where nothing is copied.
        """
        lengths = np.where(self._holds, self._count, 0)
        tokens = self._tokens[:, : self._count]
        self._facts, copied = self._index.lookup_behind_every(self._slots, tokens, lengths)
        return self._facts, copied

    def copies(self, neural_len: Ints) -> tuple[Ints, Ints]:
        """Where copying behind `neural_len` tokens starts, and how many tokens there are to copy.

        It is the index's answer, whatever a policy has written into the matches since.
        """
        self._match(neural_len)
        return self._start, self._available

    def _match(self, lengths: Ints) -> None:
        if lengths.tobytes() == self._answered:
            return
        if self._facts is None:
            matches = self._index.lookup_behind(self._slots, self._tokens, lengths)
        else:
            facts = self._facts[lengths - 1, :, np.arange(len(lengths))].T.copy()
            facts[:, lengths == 0], facts[START, lengths == 0] = 0, -1
            matches = Matches(*facts)
        self._answered, self._matches = lengths.tobytes(), matches
        self._start, self._available = matches.start.copy(), matches.available.copy()


def lengths_behind(neural_len: object, drafted: int, holds: Bools) -> Ints:
    """The lengths that a policy asks to look behind, as our own array; a `PolicyFault` if not."""
    lengths = whole_numbers(neural_len, len(holds), "a look-up behind lengths")
    if (lengths < 0).any() or (lengths > drafted * holds).any():
        raise PolicyFault(
            f"a look-up behind {lengths.tolist()} neural tokens: {drafted} are drafted "
            f"for each of {int(holds.sum())} rows that hold the drafter"
        )
    return lengths


def whole_numbers(values: object, rows: int, what: str) -> Ints:
    """One whole number per row, as our own array; a `PolicyFault` otherwise."""
    numbers = np.array(values)
    if numbers.shape != (rows,) or numbers.dtype.kind not in "iu":
        raise PolicyFault(
            f"{what} of shape {numbers.shape} and type {numbers.dtype}: "
            f"one whole number for each of {rows} running rows is needed"
        )
    if numbers.dtype is _INT32:
        return numbers
    return numbers.clip(-_HUGE, _HUGE).astype(np.int32)


def _checked(count: int) -> int:
    try:
        tokens = operator.index(count)
    except TypeError:
        tokens = -1
    if not 0 <= tokens <= MAX_TOKENS:
        raise PolicyFault(
            f"{count!r:.60} tokens of the known text: 0..{MAX_TOKENS} may be asked for"
        )
    return tokens

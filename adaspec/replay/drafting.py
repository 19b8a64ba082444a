"""What the recorded drafter and target say, handed out a forward at a time."""

from __future__ import annotations

import operator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.draft import Matches, NgramIndex
from adaspec.errors import PolicyFault
from adaspec.jit import compiled
from adaspec.policy.protocol import Drafts
from adaspec.replay.tape import LONGEST, Columns, Tape
from adaspec.trace.schema import CONFIDENCES

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]

START, FIRST, AVAILABLE, FACTS = 1, 2, 5, 6
"""Facts of a match, in the order of `Matches`: length, start, first, agree, seen, available."""


class KnownText:
    """The `Context` of a batch: look-ups in the text as far as it has been emitted."""

    def __init__(self, index: NgramIndex, slots: Ints, start: Ints) -> None:
        """`start` of the matches is an array that no policy holds."""
        self._index, self._slots, self._start = index, slots, start

    def tail(self, count: int) -> Ints:
        """The last known tokens per row."""
        return self._index.tail(self._slots, _counted(count))

    def candidate(self, count: int) -> Ints:
        """What the most recent match would copy, padded with -1 to `count`."""
        return self._index.copies(self._slots, self._start, _counted(count))

    def vllm_match(self, min_match: int, max_match: int) -> tuple[Ints, Ints]:
        """Where vLLM's own look-up copies from, and the match's length."""
        return self._index.match_vllm(self._slots, min_match, max_match)

    def token_at(self, places: Ints) -> Ints:
        """The known token at a place of every row, -1 where there is none."""
        return self._index.copies(self._slots, places, 1)[:, 0]


def _counted(count: int) -> int:
    try:
        asked = operator.index(count)
    except TypeError:
        asked = -1
    if not 0 <= asked <= LONGEST:
        raise PolicyFault(f"{count!r} tokens of the known text were asked: 0..{LONGEST} may be")
    return asked


class Script:
    """The tape as a drafter and a target: what they say at any position."""

    def __init__(self, tape: Tape, cap: int) -> None:
        self.tape, self.cap = tape, cap
        texts = [np.append(r.prompt_tokens, r.output_tokens) for r in tape.requests]
        self.text = np.concatenate(texts).astype(np.int32)
        """Prompt and output of every request."""
        self.start = np.concatenate([[0], np.cumsum([len(t) for t in texts])]).astype(np.int64)
        """Where each request's text starts."""
        found = tape.matches
        self.facts = np.stack(
            [found.length, found.start, found.first, found.agree, found.seen, found.available]
        )
        """(FACTS, positions) the look-up at every position, as far as it is known there."""


class Step:
    """The drafter at one engine step; `drafts` hands over what it has said so far."""

    def __init__(
        self,
        script: Script,
        request: Longs,
        position: Ints,
        holds: Bools,
        index: NgramIndex,
        indexed: Ints,
    ) -> None:
        self._script, self._holds = script, holds
        self._index, self._indexed = index, indexed.copy()
        columns = script.tape.columns
        self._at = columns.offset[request] + position
        self._left = columns.length[request] - position
        self.committed = np.zeros(len(self._at), np.int32)
        """Neural tokens that a row must verify, for having looked behind them on the true path."""

    @property
    def accepted(self) -> NDArray[np.int16]:
        """What the target would accept of each row's neural draft; never handed to a policy."""
        return self._script.tape.columns.neural[self._at]

    def drafts(self, count: int) -> Drafts:
        """What is known after `count` forwards."""
        tape = self._script.tape
        if tape.shows_tokens:
            tokens, confidences = _revealed(
                tape.drafted, tape.confidences, self._at, self._holds, count
            )
        else:
            tokens = np.full((len(self._at), count), -1, np.int32)
            confidences = np.full((*tokens.shape, len(CONFIDENCES)), np.nan, np.float32)
        if tape.shows_tokens:
            behind = self._behind_drafts(count)
            return Drafts(count, tokens, confidences, behind)
        truth = _BehindTruth(
            self._behind_truth(count), self._holds.copy(), self.committed, self._script.cap
        )
        return Drafts(count, tokens, confidences, truth)

    def copies(self, count: int, neural_len: Ints) -> tuple[Ints, Ints]:
        """Where copying behind `neural_len` of `count` drafted tokens starts, how much there is.

        Nothing at the output's end: the sequence has ended, and a splice there costs nothing.
        """
        if self._script.tape.shows_tokens:
            found = self._behind_drafts(count)(neural_len)
            ended = (self.accepted >= neural_len) & (neural_len >= self._left)
            return found.start, np.where(ended, 0, found.available).astype(np.int32)
        facts = _chosen(self._behind_truth(count), neural_len)
        return facts[START], facts[AVAILABLE]

    def _behind_drafts(self, count: int) -> _BehindDrafts:
        tape = self._script.tape
        tokens, _ = _revealed(tape.drafted, tape.confidences, self._at, self._holds, count)
        return _BehindDrafts(self._index, self._indexed, tokens, self._holds.copy())

    def _behind_truth(self, count: int) -> Ints:
        return _on_the_true_path(self._script.facts, self._at, self._left, count)


class _BehindDrafts:
    """Look-ups behind drafted tokens, asked once per lengths."""

    def __init__(self, index: NgramIndex, slots: Ints, tokens: Ints, holds: Bools) -> None:
        self._index, self._slots, self._tokens, self._holds = index, slots, tokens, holds
        self._last: tuple[Ints, Matches] | None = None

    def __call__(self, neural_len: Ints) -> Matches:
        lengths = _asked(neural_len, self._tokens.shape[1], self._holds)
        if self._last is not None and np.array_equal(lengths, self._last[0]):
            return self._last[1]
        found = self._index.lookup_behind(self._slots, self._tokens, lengths)
        nothing = lengths <= 0
        if len(lengths) and self._tokens.shape[1]:
            last = self._tokens[np.arange(len(lengths)), np.maximum(lengths - 1, 0)]
            nothing |= last < 0  # the recording drafted fewer tokens here
        for column in (found.length, found.agree, found.seen, found.available):
            column[nothing] = 0
        found.start[nothing] = found.first[nothing] = -1
        self._last = lengths.copy(), found
        return found


class _BehindTruth:
    """Look-ups behind tokens that the recording lacks: the true text stands in for them.

    A splice behind a wrong draft is worth nothing either way, and is charged what this look-up
    gives; at the output's end it gives nothing. What it gives depends on true tokens, so asking
    commits: a match one longer than the context's own says that its copy is right. Where the match
    lies would name the tokens, and is not told.
    """

    def __init__(self, facts: Ints, holds: Bools, committed: Ints, cap: int) -> None:
        self._facts, self._holds, self._committed, self._cap = facts, holds, committed, cap

    def __call__(self, neural_len: Ints) -> Matches:
        lengths = _asked(neural_len, self._facts.shape[2], self._holds)
        earlier = self._committed
        if ((lengths > 0) & (earlier > 0) & (lengths != earlier)).any():
            raise PolicyFault(
                "a second look behind another number of neural tokens was asked: this trace lacks "
                "the drafted tokens, the true ones stand in for them, and so looking behind K of "
                "a row commits it to verifying K"
            )
        np.maximum(earlier, lengths, out=earlier)
        facts = _chosen(self._facts, lengths)
        np.minimum(facts[AVAILABLE], self._cap, out=facts[AVAILABLE])
        facts[START][:] = facts[FIRST][:] = -1
        return Matches(*facts)


def _asked(neural_len: Ints, drafted: int, holds: Bools) -> Ints:
    found = np.asarray(neural_len)
    if found.shape != holds.shape or found.dtype.kind not in "iu":
        raise PolicyFault(
            f"a look-up behind lengths of shape {found.shape} and type {found.dtype} was asked: "
            f"one whole number for each of {len(holds)} running rows is needed"
        )
    if not _within(found, drafted, holds):
        raise PolicyFault(
            f"a look-up behind {found.tolist()} neural tokens was asked; {drafted} are drafted "
            f"for each of {int(holds.sum())} rows that hold the drafter"
        )
    return found.astype(np.int32)


@compiled
def _within(lengths: Ints, drafted: int, holds: Bools) -> bool:
    for row in range(lengths.shape[0]):
        if not 0 <= lengths[row] <= (drafted if holds[row] else 0):
            return False
    return True


@compiled
def _revealed(
    drafted: Ints, confidences: Floats, at: Longs, holds: Bools, count: int
) -> tuple[Ints, Floats]:
    """Tokens and confidences of the first `count` drafted, of the rows that hold the drafter."""
    rows = at.shape[0]
    tokens = np.full((rows, count), -1, np.int32)
    shown = np.full((rows, count, confidences.shape[2]), np.nan, np.float32)
    for row in range(rows):
        if holds[row]:
            tokens[row] = drafted[at[row], :count]
            if confidences.shape[0] > 0:
                shown[row] = confidences[at[row], :count]
    return tokens, shown


@compiled
def _on_the_true_path(facts: Ints, at: Longs, left: Longs, count: int) -> Ints:
    """(FACTS, rows, count) the look-ups behind 1..count true tokens; none at the output's end."""
    rows = at.shape[0]
    found = np.zeros((FACTS, rows, count), np.int32)
    found[1:3] = -1
    for row in range(rows):
        for k in range(min(count, left[row] - 1)):
            found[:, row, k] = facts[:, at[row] + k + 1]
    return found


@compiled
def _chosen(facts: Ints, lengths: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """The facts behind `lengths` tokens per row."""
    rows = lengths.shape[0]
    out = np.zeros((FACTS, rows), np.int32)
    out[1:3] = -1
    for row in range(rows):
        if lengths[row] > 0:
            out[:, row] = facts[:, row, lengths[row] - 1]
    return out[0], out[1], out[2], out[3], out[4], out[5]


class Verdict(NamedTuple):
    """What the target says of a step's drafts, and who has reached its end."""

    accepted: Ints
    counts: Ints
    """Tokens emitted per row."""
    emitted: Ints
    """(rows, most emitted), padded with -1."""
    left: Longs
    """Tokens that were left to emit before the step."""
    done: Bools
    flat: Ints
    """The emitted tokens of the rows that go on, one after another."""


@compiled
def verify(
    text: Ints,
    text_start: Longs,
    columns: Columns,
    request: Longs,
    position: Ints,
    neural_len: Ints,
    ngram_len: Ints,
    start: Ints,
) -> Verdict:
    """What the target says of `neural_len` drafted, then `ngram_len` tokens copied from `start`."""
    rows = request.shape[0]
    accepted = np.zeros(rows, np.int32)
    counts = np.zeros(rows, np.int32)
    left = np.zeros(rows, np.int64)
    done = np.zeros(rows, np.bool_)
    most = total = 0
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
        done[row] = counts[row] == left[row]
        most = max(most, counts[row])
        if not done[row]:
            total += counts[row]
    emitted = np.full((rows, most), -1, np.int32)
    flat = np.empty(total, np.int32)
    at = 0
    for row in range(rows):
        truth = text_start[request[row]] + columns.prompt[request[row]] + position[row]
        for j in range(counts[row]):
            emitted[row, j] = text[truth + j]
            if not done[row]:
                flat[at] = text[truth + j]
                at += 1
    return Verdict(accepted, counts, emitted, left, done, flat)

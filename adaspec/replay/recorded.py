"""What was recorded of the neural drafter and of the target, as one engine step sees it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.index import NgramIndex
from adaspec.draft.match import AVAILABLE, FACTS, START, Matches
from adaspec.errors import PolicyFault
from adaspec.jit import compiled
from adaspec.policy.protocol import Drafts
from adaspec.policy.step import ShownDrafts, Step
from adaspec.policy.text import chosen, lengths_behind
from adaspec.replay.recording import RecordedArrays, Recording, copied_token
from adaspec.trace.schema import CONFIDENCES

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


class RecordedDrafts(ShownDrafts):
    """One step's drafts, where the recording holds their tokens."""

    def __init__(
        self,
        recording: Recording,
        request: Longs,
        position: Ints,
        index: NgramIndex,
        step: Step,
        neural_cap: int,
    ) -> None:
        columns = self._columns = recording.columns
        self._place = columns.offset[request] + position
        self._left = columns.length[request] - position
        tokens, confidences = _drafted(
            recording.drafted, recording.confidences, self._place, step.holds_neural, neural_cap
        )
        super().__init__(index, step, tokens, confidences)

    def ended(self, neural_len: Ints) -> Bools:
        """The rows whose output ends there: the sequence is over, and a splice costs nothing."""
        accepted = self._columns.neural[self._place]
        ended: Bools = (accepted >= neural_len) & (neural_len >= self._left)
        return ended


class HiddenDrafts:
    """One step's drafts, where the recording lacks their tokens: the true text stands in for them.

    A splice behind a wrong draft gains nothing either way, and is charged what the look-up
    behind the true tokens gives; at the output's end it gives nothing. What it gives depends on
    tokens that are not known yet, so looking behind K tokens of a row commits the row to verifying
    K: a match one longer than the context's own says that its copy is right. Where the match lies
    would name the tokens, and is not shown.
    """

    def __init__(
        self,
        recording: Recording,
        request: Longs,
        position: Ints,
        facts: Ints,
        holds: Bools,
        cap: int,
        name: str,
    ) -> None:
        """`facts` are the `RecordedArrays`'s; `name` is the policy's, for its faults."""
        self._facts, self._cap, self._name = facts, cap, name
        self._holds, columns = holds, recording.columns
        self._place = columns.offset[request] + position
        self._left = columns.length[request] - position
        self._committed = np.zeros(len(position), np.int32)

    def drafts(self, count: int) -> Drafts:
        """Forwards without their tokens, and look-ups that commit."""
        if self._committed.any():
            raise PolicyFault(
                f"policy '{self._name}' looks behind neural tokens and then drafts on: "
                "this trace lacks the drafted tokens, so the look has shown it the true ones"
            )
        tokens = np.full((len(self._place), count), -1, np.int32)
        confidences = np.full((*tokens.shape, len(CONFIDENCES)), np.nan, np.float32)
        self._behind = _behind_true_tokens(self._facts, self._place, self._left, count)
        behind = _Committing(self._behind, self._holds, self._committed, self._cap)
        return Drafts(count, tokens, confidences, behind)

    def check(self, neural_len: Ints) -> None:
        """A row verifies as many neural tokens as the policy has looked behind."""
        committed = self._committed
        if ((committed > 0) & (committed != neural_len)).any():
            raise PolicyFault(
                f"policy '{self._name}' looks behind {committed.tolist()} neural tokens and then "
                f"verifies {neural_len.tolist()}: {_COMMITS}"
            )

    def copies(self, count: int, neural_len: Ints) -> tuple[Ints, Ints]:
        """What the look-up gives behind the true tokens."""
        facts = chosen(self._behind, neural_len)
        return facts[START], facts[AVAILABLE]


_COMMITS = (
    "this trace lacks the drafted tokens, the true ones stand in for them, and so looking behind K "
    "of a row commits it to verifying K"
)


class _Committing:
    """Look-ups behind true tokens; each commits the rows that it asks about."""

    def __init__(self, facts: Ints, holds: Bools, committed: Ints, cap: int) -> None:
        self._facts, self._holds, self._committed, self._cap = facts, holds, committed, cap

    def __call__(self, neural_len: Ints) -> Matches:
        lengths = lengths_behind(neural_len, len(self._facts), self._holds)
        earlier = self._committed
        if ((lengths > 0) & (earlier > 0) & (lengths != earlier)).any():
            raise PolicyFault(
                f"a second look behind another number of neural tokens is made: {_COMMITS}"
            )
        np.maximum(earlier, lengths, out=earlier)
        facts = chosen(self._facts, lengths)
        np.minimum(facts[AVAILABLE], self._cap, out=facts[AVAILABLE])
        facts[START][:] = -1
        return Matches(*facts)


@compiled
def _drafted(
    drafted: Ints, confidences: Floats, place: Longs, holds: Bools, count: int
) -> tuple[Ints, Floats]:
    """Tokens and confidences of the first `count` drafted, of the rows that hold the drafter."""
    rows = place.shape[0]
    tokens = np.full((rows, count), -1, np.int32)
    shown = np.full((rows, count, confidences.shape[2]), np.nan, np.float32)
    for row in range(rows):
        if holds[row]:
            tokens[row] = drafted[place[row], :count]
            if confidences.shape[0] > 0:
                shown[row] = confidences[place[row], :count]
    return tokens, shown


@compiled
def _behind_true_tokens(facts: Ints, place: Longs, left: Longs, count: int) -> Ints:
    """(count, FACTS, rows) the look-ups behind 1..count true tokens; none at the output's end."""
    rows = place.shape[0]
    behind = np.zeros((count, FACTS, rows), np.int32)
    behind[:, START] = -1
    for row in range(rows):
        for k in range(min(count, left[row] - 1)):
            behind[k, :, row] = facts[:, place[row] + k + 1]
    return behind


class Verification(NamedTuple):
    """What the target makes of a step's drafts, and which requests have ended."""

    accepted: Ints
    emitted_tokens: Ints
    emitted: Ints
    """(rows, most emitted), padded with -1."""
    left: Longs
    """Tokens that were left to emit before the step."""
    done: Bools
    flat: Ints
    """The emitted tokens of the rows that go on, one after another."""


@compiled
def verify(
    arrays: RecordedArrays,
    request: Longs,
    position: Longs,
    neural_len: Ints,
    ngram_len: Ints,
    start: Ints,
) -> Verification:
    """What the target makes of `neural_len` drafted tokens, then `ngram_len` from `start` on."""
    columns, text = arrays.columns, arrays.text
    rows = request.shape[0]
    accepted = np.zeros(rows, np.int32)
    emitted_tokens = np.zeros(rows, np.int32)
    left = np.zeros(rows, np.int64)
    done = np.zeros(rows, np.bool_)
    most = total = 0
    for row in range(rows):
        r, p = request[row], position[row]
        left[row] = columns.length[r] - p
        base, end = arrays.text_start[r], arrays.text_start[r + 1]
        taken = 0
        if neural_len[row] > 0:
            taken = min(columns.neural[columns.offset[r] + p], neural_len[row])
        if taken == neural_len[row]:
            truth = base + columns.prompt[r] + p + taken
            for j in range(ngram_len[row]):
                if truth + j >= end or copied_token(arrays, r, start[row], j) != text[truth + j]:
                    break
                taken += 1
        accepted[row] = taken
        emitted_tokens[row] = min(taken + 1, left[row])
        done[row] = emitted_tokens[row] == left[row]
        most = max(most, emitted_tokens[row])
        if not done[row]:
            total += emitted_tokens[row]
    emitted = np.full((rows, most), -1, np.int32)
    flat = np.empty(total, np.int32)
    place = 0
    for row in range(rows):
        truth = arrays.text_start[request[row]] + columns.prompt[request[row]] + position[row]
        for j in range(emitted_tokens[row]):
            emitted[row, j] = text[truth + j]
            if not done[row]:
                flat[place] = text[truth + j]
                place += 1
    return Verification(accepted, emitted_tokens, emitted, left, done, flat)

"""What was recorded of the neural drafter and of the target, as one engine step sees it."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.index import NgramIndex
from adaspec.draft.match import AVAILABLE, START, Matches
from adaspec.errors import PolicyFault
from adaspec.jit import compiled
from adaspec.policy.protocol import Drafts
from adaspec.policy.step import ShownDrafts, Step
from adaspec.policy.text import lengths_behind
from adaspec.replay.recording import RecordedArrays, Recording, copied_token
from adaspec.trace.schema import CONFIDENCES

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]


class RecordedDrafts(ShownDrafts):
    """One step's drafts, where the recording holds their tokens."""

    def __init__(
        self, recording: Recording, request: Longs, index: NgramIndex, step: Step, neural_cap: int
    ) -> None:
        columns, arrays = recording.columns, recording.arrays
        place, holds = columns.offset[request] + step.position, step.holds_neural
        self._accepted, self._left = columns.neural[place], columns.length[request] - step.position
        tokens = np.where(holds[:, None], arrays.drafted[place, :neural_cap], -1)
        confidences = np.full((*tokens.shape, len(CONFIDENCES)), np.nan, np.float32)
        if recording.shows_confidences:
            confidences[holds] = arrays.confidences[place[holds], :neural_cap]
        super().__init__(index, step, tokens, confidences)

    def ended(self, neural_len: Ints) -> Bools:
        """The rows whose output ends there: the sequence is over, and a splice costs nothing."""
        ended: Bools = (self._accepted >= neural_len) & (neural_len >= self._left)
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
        self, recording: Recording, request: Longs, step: Step, cap: int, name: str
    ) -> None:
        """`name` is the policy's, for its faults."""
        columns, self._facts = recording.columns, recording.arrays.facts
        self._cap, self._name, self._holds = cap, name, step.holds_neural
        self._place = columns.offset[request] + step.position
        self._left = columns.length[request] - step.position
        self._committed = np.zeros(len(request), np.int32)

    def drafts(self, count: int) -> Drafts:
        """Forwards without their tokens, and look-ups that commit."""
        if self._committed.any():
            raise PolicyFault(
                f"policy '{self._name}' looks behind neural tokens and then drafts on: "
                "this trace lacks the drafted tokens, so the look has shown it the true ones"
            )
        tokens = np.full((len(self._place), count), -1, np.int32)
        confidences = np.full((*tokens.shape, len(CONFIDENCES)), np.nan, np.float32)
        return Drafts(count, tokens, confidences, partial(self._look_behind, count))

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
        facts = self._behind(neural_len)
        return facts[START], facts[AVAILABLE]

    def _look_behind(self, count: int, neural_len: Ints) -> Matches:
        """The matches behind so many of `count` tokens, which commit the rows that are asked of."""
        lengths, committed = lengths_behind(neural_len, count, self._holds), self._committed
        if ((lengths > 0) & (committed > 0) & (lengths != committed)).any():
            raise PolicyFault(
                f"a second look behind another number of neural tokens is made: {_COMMITS}"
            )
        np.maximum(committed, lengths, out=committed)
        facts = self._behind(lengths)
        np.minimum(facts[AVAILABLE], self._cap, out=facts[AVAILABLE])
        facts[START] = -1
        return Matches(*facts)

    def _behind(self, lengths: Ints) -> Ints:
        """The facts behind so many true tokens per row; none behind no token, or at the end."""
        found = (lengths > 0) & (lengths < self._left)
        # Taken, not indexed: compiled policies are compiled for rows that lie in one piece.
        facts = np.take(self._facts, np.where(found, self._place + lengths, 0), axis=1)
        facts[:, ~found] = 0
        facts[START, ~found] = -1
        return facts


_COMMITS = (
    "this trace lacks the drafted tokens, the true ones stand in for them, and so looking behind K "
    "of a row commits it to verifying K"
)


@compiled
def verify(
    arrays: RecordedArrays,
    request: Longs,
    position: Longs,
    neural_len: Ints,
    ngram_len: Ints,
    start: Ints,
) -> Ints:
    """What the target accepts of `neural_len` drafted tokens, then `ngram_len` from `start` on."""
    columns, text = arrays.columns, arrays.text
    accepted = np.zeros(request.shape[0], np.int32)
    for row in range(request.shape[0]):
        r, p = request[row], position[row]
        taken = 0
        if neural_len[row] > 0:
            taken = min(columns.neural[columns.offset[r] + p], neural_len[row])
        if taken == neural_len[row]:
            truth, end = (
                arrays.text_start[r] + columns.prompt[r] + p + taken,
                arrays.text_start[r + 1],
            )
            for j in range(ngram_len[row]):
                if truth + j >= end or copied_token(arrays, r, start[row], j) != text[truth + j]:
                    break
                taken += 1
        accepted[row] = taken
    return accepted

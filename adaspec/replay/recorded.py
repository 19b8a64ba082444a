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
from adaspec.policy.step import Step, splice_lengths
from adaspec.replay.recording import RecordedArrays, Recording, copied_token
from adaspec.trace.schema import CONFIDENCES

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]


class RecordedDrafts:
    """One step's drafts, where the recording holds their tokens."""

    def __init__(
        self, recording: Recording, request: Longs, index: NgramIndex, step: Step, neural_cap: int
    ) -> None:
        columns, arrays = recording.columns, recording.arrays
        place, holds = columns.offset[request] + step.position, step.holds_neural
        self._index, self._slots, self._holds = index, step.slots, holds
        self._accepted, self._left = columns.neural[place], columns.length[request] - step.position
        self._tokens = np.where(holds[:, None], arrays.drafted[place, :neural_cap], -1)
        shape = *self._tokens.shape, len(CONFIDENCES)
        self._confidences = np.full(shape, np.nan, np.float32)
        if recording.shows_confidences:
            self._confidences[holds] = arrays.confidences[place[holds], :neural_cap]

    def drafts(self, count: int) -> Drafts:
        """What a policy is shown after `count` forwards."""
        tokens, confidences = self._tokens[:, :count].copy(), self._confidences[:, :count].copy()
        return Drafts(count, tokens, confidences, partial(self._splice_match, count))

    def copies(self, neural_len: Ints) -> tuple[Ints, Ints]:
        """What the index says; where the output ends, the sequence is over, and nothing is paid."""
        match = self._index.splice_match(self._slots, self._tokens, neural_len)
        ended = (self._accepted >= neural_len) & (neural_len >= self._left)
        return match.start, np.where(ended, 0, match.available)

    def _splice_match(self, count: int, neural_len: Ints) -> Matches:
        lengths = splice_lengths(neural_len, count, self._holds)
        return self._index.splice_match(self._slots, self._tokens, lengths)


class HiddenDrafts:
    """One step's drafts, where the recording lacks their tokens: nothing can be looked up there.

    A splice behind a wrong draft gains nothing either way. So it is charged what the look-up behind
    as many true tokens gives; at the output's end that gives nothing.
    """

    def __init__(self, recording: Recording, request: Longs, step: Step) -> None:
        columns, self._facts = recording.columns, recording.arrays.facts
        self._place = columns.offset[request] + step.position
        self._left = columns.length[request] - step.position

    def drafts(self, count: int) -> Drafts:
        """Forwards without their tokens."""
        tokens = np.full((len(self._place), count), -1, np.int32)
        confidences = np.full((*tokens.shape, len(CONFIDENCES)), np.nan, np.float32)
        return Drafts(count, tokens, confidences, _refused)

    def copies(self, neural_len: Ints) -> tuple[Ints, Ints]:
        """What the look-up gives behind the true tokens."""
        found = (neural_len > 0) & (neural_len < self._left)
        facts = self._facts[:, np.where(found, self._place + neural_len, 0)]
        return facts[START], np.where(found, facts[AVAILABLE], 0)


def _refused(neural_len: Ints) -> Matches:
    raise PolicyFault(
        "a look-up behind drafted tokens, which this trace lacks: ask `Setup.shows_tokens` first"
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

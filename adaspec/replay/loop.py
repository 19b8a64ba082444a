"""A policy of one's own, driven through a closed loop exactly as a sync engine would drive it.

What a policy can see is what it is handed: facts about the text known so far, and what was drafted
in this step, in arrays that it may write into. The recording itself never leaves this file. A
policy that breaks a rule raises a `PolicyFault`.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, batch_shape, step_s
from adaspec.draft.index import NgramIndex
from adaspec.draft.match import AVAILABLE, START, Matches
from adaspec.errors import PolicyFault
from adaspec.jit import compiled
from adaspec.policy.base import costs_of
from adaspec.policy.own import OwnPolicy
from adaspec.policy.protocol import (
    Batch,
    Context,
    Drafts,
    Ints,
    Policy,
    Proposal,
    Setup,
    StepResult,
)
from adaspec.replay.closed_loop import (
    ClosedLoop,
    Result,
    finish_step,
    goes_on,
    read_beside,
    result_of,
    start,
    take_drafter,
)
from adaspec.replay.learned import setup_for
from adaspec.replay.recording import RecordedArrays, Recording, copied_token
from adaspec.trace.schema import CONFIDENCES

Longs = NDArray[np.int64]

_HUGE = 1 << 30
_MOST_TOKENS = 1 << 12
"""A policy may ask for so many tokens of a row's known text."""


def _checked_count(count: int) -> int:
    if not 0 <= count <= _MOST_TOKENS:
        raise PolicyFault(f"{count} tokens of the known text: 0 to {_MOST_TOKENS} may be asked for")
    return count


def run_policy(
    recording: Recording,
    policy: Policy | OwnPolicy,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
) -> Result:
    """One run of the loop: it ends with the step that frees a slot that nobody is left to fill."""
    setup = setup_for(recording, cost, concurrency, cap)
    setup = replace(setup, neural_cap=min(setup.neural_cap, cap))
    run = _Run(recording, policy, order, setup)
    while goes_on(run.loop):
        run.step()
    return result_of(run.loop)


class _Run:
    """The state of one run."""

    def __init__(
        self, recording: Recording, policy: Policy | OwnPolicy, order: Ints, setup: Setup
    ) -> None:
        self.recording, self.setup, self.index = recording, setup, NgramIndex()
        self.policy = policy if isinstance(policy, OwnPolicy) else OwnPolicy(policy.name, policy)
        self.costs = costs_of(policy, setup)
        self.loop = start(recording.columns, order, setup.slots, False)
        self.is_new = np.zeros(setup.slots, np.bool_)
        self.policy.ask("start", setup)
        self._admit(0)

    def step(self) -> None:
        """Take all running requests on by what the policy plans."""
        loop, arrays = self.loop, self.recording.arrays
        request, slots, position = loop.request, loop.slot.astype(np.int64), loop.position
        prompt = loop.columns.prompt[request]
        if loop.holds_neural.any() and not self._holds_drafter():
            loop.holds_neural[:] = False
        matches = self.index.survey(slots, 0, 0)[0]
        first, available = matches.start.copy(), matches.available.copy()
        drafter = _Drafter(self.recording, loop, self.index, self.setup.neural_cap)
        batch = Batch(
            loop.slot.copy(),
            prompt.astype(np.int32),
            position.astype(np.int32),
            loop.holds_neural.copy(),
            self.is_new[slots],
            matches,
            Context(
                lambda count: self.index.tail(slots, _checked_count(count)),
                lambda count: self.index.copies(slots, first, _checked_count(count)),
            ),
            int(read_beside(loop)),
        )
        self.is_new[:] = False
        batch.drafts = drafter.drafts(0)
        forwards = self._forwards(batch)
        batch.drafts = drafter.drafts(forwards)
        proposal = self.policy.ask("decide", batch)
        neural_len, ngram_len, begin = self._cut(proposal, forwards, drafter, first, available)
        accepted = verify(arrays, request, position, neural_len, ngram_len, begin)
        left = loop.columns.length[request] - position
        counts = np.minimum(accepted + 1, left).astype(np.int32)
        known = arrays.text_start[request] + prompt + position
        each = np.arange(counts.max())
        tokens = arrays.text.take(known[:, None] + each, mode="clip")
        emitted = np.where(each < counts[:, None], tokens, -1)
        context, drafted = int((prompt + position).sum()), neural_len + ngram_len
        shape = batch_shape(len(slots), context, drafted, forwards, bool(loop.holds_neural.any()))
        seconds = float(step_s(self.costs, shape))
        told = accepted.copy(), emitted.copy(), counts.copy()  # it may write into the arrays
        self.policy.ask("learn", StepResult(batch, proposal, drafted, neural_len, *told, seconds))
        going_on = counts < left
        if going_on.any():
            tokens = emitted[going_on]
            self.index.extend(slots[going_on], tokens[tokens >= 0], counts[going_on])
        for slot in loop.slot[~going_on].tolist():
            self.index.close(slot)
        loop.emitted[:] = counts
        following = int(loop.state["following"][0])
        if finish_step(loop, self.costs, shape, int(np.minimum(accepted, left).sum())):
            self._admit(following)

    def _admit(self, first_entry: int) -> None:
        """Let in the requests that have entered, from this entry of the order on."""
        loop = self.loop
        for row in np.flatnonzero(loop.entry >= first_entry).tolist():
            request = self.recording.requests[loop.request[row]]
            known = np.append(request.prompt_tokens, request.output_tokens[:1]).astype(np.int32)
            loop.slot[row] = self.index.open(known)
            self.is_new[loop.slot[row]] = True
            if self.setup.neural_cap > 0 and self._holds_drafter():
                take_drafter(loop, row)

    def _holds_drafter(self) -> bool:
        """Whether requests hold the drafter at this load, by the policy."""
        answer = self.policy.ask("holds_drafter", len(self.loop.slot))
        if not isinstance(answer, bool | np.bool_):
            raise self._fault(
                f"answers holds_drafter with {answer!r:.80}: True or False is expected"
            )
        return bool(answer)

    def _forwards(self, batch: Batch) -> int:
        """How many forwards of the drafter the policy asks for."""
        asked = self.policy.ask("forwards", batch)
        try:
            forwards = operator.index(asked)
        except TypeError:
            raise self._fault(f"asks for {asked!r:.60} forwards, not a whole number") from None
        if not 0 <= forwards <= self.setup.neural_cap:
            raise self._fault(
                f"asks for {forwards} forwards; 0 to {self.setup.neural_cap} can be run"
            )
        if forwards > 0 and not self.loop.holds_neural.any():
            raise self._fault("drafts where no request holds the neural drafter")
        return forwards

    def _cut(
        self, proposal: object, forwards: int, drafter: _Drafter, start: Ints, available: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Neural and copied lengths as they can be verified, and where copying starts, per row.

        `start` and `available` are where the most recent matches go on, and how far.
        """
        holds, cap = self.loop.holds_neural, self.setup.cap
        if not isinstance(proposal, Proposal):
            raise self._fault(f"decides on {proposal!r:.60}, not on a Proposal")
        proposes = f"policy '{self.policy.name}' proposes"
        neural_len = _whole_numbers(proposal.neural_len, len(holds), f"{proposes} neural_len")
        ngram_len = _whole_numbers(proposal.ngram_len, len(holds), f"{proposes} ngram_len")
        if (neural_len < 0).any() or (neural_len > forwards * holds).any() or (ngram_len < 0).any():
            raise self._fault(
                f"proposes more neural tokens than were drafted ({forwards}), or a negative "
                f"length: neural {neural_len.tolist()}, n-gram {ngram_len.tolist()}"
            )
        drafted = neural_len > 0
        if proposal.ngram_start is not None:
            places = _whole_numbers(proposal.ngram_start, len(holds), f"{proposes} ngram_start")
            known = self.loop.columns.prompt[self.loop.request] + self.loop.position
            if (places >= known).any():
                raise self._fault(f"copies from {places.tolist()}, beyond the known text")
            if (places < -1).any() or (drafted & (places >= 0)).any():
                raise self._fault(
                    f"proposes ngram_start {places.tolist()}: -1 is the most recent match, and "
                    "behind neural tokens no other can be named"
                )
            start = np.where(places >= 0, places, start)
            available = np.where(places >= 0, known - places, available)
        if (drafted & (ngram_len > 0)).any():
            splice_start, splice_available = drafter.copies(neural_len)
            start = np.where(drafted, splice_start, start)
            available = np.where(drafted, splice_available, available)
        room = np.minimum(available, np.maximum(cap - neural_len, 0))
        ngram_len = np.minimum(ngram_len, room).astype(np.int32)
        return np.minimum(neural_len, cap), ngram_len, start

    def _fault(self, what: str) -> PolicyFault:
        return PolicyFault(f"policy '{self.policy.name}' {what}")


class _Drafter:
    """What was recorded of the neural drafter at the positions of one step.

    Where the recording lacks drafted tokens, nothing can be looked up behind them. A splice behind
    a wrong draft gains nothing either way. So it is charged what the look-up behind as many true
    tokens gives.
    """

    def __init__(
        self, recording: Recording, loop: ClosedLoop, index: NgramIndex, neural_cap: int
    ) -> None:
        columns, arrays, request = recording.columns, recording.arrays, loop.request
        self._arrays, self._shows_tokens = arrays, recording.shows_tokens
        self._index, self._slots = index, loop.slot.astype(np.int64)
        self._holds, self._left = loop.holds_neural, columns.length[request] - loop.position
        self._place = columns.offset[request] + loop.position
        holds, at = self._holds, self._place[self._holds]
        self._tokens = np.full((len(holds), neural_cap), -1, np.int32)
        self._confidences = np.full((*self._tokens.shape, len(CONFIDENCES)), np.nan, np.float32)
        if recording.shows_tokens:
            self._tokens[holds] = arrays.drafted[at, :neural_cap]
        if recording.shows_confidences:
            self._confidences[holds] = arrays.confidences[at, :neural_cap]

    def drafts(self, count: int) -> Drafts:
        """What a policy is shown after `count` forwards; its arrays are the policy's to spoil."""
        tokens, confidences = self._tokens[:, :count].copy(), self._confidences[:, :count].copy()
        return Drafts(count, tokens, confidences, partial(self._splice_match, count))

    def copies(self, neural_len: Ints) -> tuple[Ints, Ints]:
        """Where copying behind so many drafted tokens starts, and how much there is.

        Where the output ends, the sequence is over, and nothing is paid.
        """
        ends = neural_len >= self._left
        if self._shows_tokens:
            match = self._index.splice_match(self._slots, self._tokens, neural_len)
            ends &= self._arrays.columns.neural[self._place] >= neural_len
            return match.start, np.where(ends, 0, match.available)
        found = (neural_len > 0) & ~ends
        facts = self._arrays.facts[:, np.where(found, self._place + neural_len, 0)]
        return facts[START], np.where(found, facts[AVAILABLE], 0)

    def _splice_match(self, count: int, neural_len: object) -> Matches:
        if not self._shows_tokens:
            raise PolicyFault(
                "a look-up behind drafted tokens, which this trace lacks: ask "
                "`Setup.shows_tokens` first"
            )
        lengths = _whole_numbers(neural_len, len(self._holds), "a look-up behind lengths")
        if (lengths < 0).any() or (lengths > count * self._holds).any():
            raise PolicyFault(
                f"a look-up behind {lengths.tolist()} neural tokens: {count} are drafted "
                f"for each of {int(self._holds.sum())} rows that hold the drafter"
            )
        return self._index.splice_match(self._slots, self._tokens, lengths)


def _whole_numbers(values: object, rows: int, what: str) -> Ints:
    """One whole number per row, as our own array; a `PolicyFault` otherwise."""
    numbers = np.array(values)
    if numbers.shape != (rows,) or numbers.dtype.kind not in "iu":
        raise PolicyFault(
            f"{what} of shape {numbers.shape} and type {numbers.dtype}: "
            f"one whole number for each of {rows} running rows is needed"
        )
    return numbers.clip(-_HUGE, _HUGE).astype(np.int32)


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
            truth = arrays.text_start[r] + columns.prompt[r] + p + taken
            end = arrays.text_start[r + 1]
            for j in range(ngram_len[row]):
                if truth + j >= end or copied_token(arrays, r, start[row], j) != text[truth + j]:
                    break
                taken += 1
        accepted[row] = taken
    return accepted

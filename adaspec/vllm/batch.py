"""The engine's batch, step by step: its running requests, its drafts and their verification."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.answers import AnswerIndex
from adaspec.draft.index import NgramIndex
from adaspec.policy.protocol import Bools, Floats, Ints
from adaspec.policy.step import Cut, ShownDrafts, Step
from adaspec.trace.schema import CONFIDENCES
from adaspec.vllm.request_limits import UNLIMITED, Limits

Reasons = Callable[[int], tuple[float, list[dict[str, Any]]]]
"""The price of a token, and facts by name for each of so many rows; see `LearnedPolicy.reasons`."""


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """An engine's batch after the target has verified it and before anything is drafted for it."""

    requests: Sequence[str]
    """The id of each row's request."""
    states: Sequence[object]
    """One object per request that lives as long as the request; ids may be reused by others."""
    tokens: NDArray[np.int32]
    """Prompt and output tokens, one row per request and one column per position."""
    prompt_tokens: Ints
    known: Ints
    """How many of `tokens` are known, not counting the tokens sampled in this step."""
    sampled: Sequence[Sequence[int]]
    """The tokens sampled in this step; a row is empty while its prompt is still being read."""
    verified: Mapping[str, Sequence[int]]
    """The drafts that the target judged in this step, by request."""
    room: Ints | None = None
    """The maximum draft length of each row; None if no request limits it."""
    owners: Sequence[object] = ()
    """Per row, what must be the same for a request to know another's answer; None for what must
    not be shared; empty if no answers are remembered."""


@dataclass(slots=True)
class RunningRequest:
    """The state kept for a request that may still run."""

    slot: int
    state: object
    prompt_tokens: int
    tokens: int
    """How many tokens of the request's text are indexed."""
    holds_neural: bool = False
    recorded: bool = False
    """Whether the request is recorded: drafted for at every position, and proposed nothing."""
    owner: int = 0
    """Whose answers it knows; 0 where none are remembered."""
    limits: Limits = UNLIMITED
    last_step: int = 0
    """The last step in which the request was in the batch."""


class RunningRequests:
    """All requests that may still run, and the n-gram index of their text.

    `answers` is where their answers go as they end, and where those of others are looked up.
    """

    def __init__(self, slots: int, answers: AnswerIndex | None = None) -> None:
        self.slots, self.answers = slots, answers
        self.index = NgramIndex(answers)
        self.requests: dict[str, RunningRequest] = {}

    def remove_ended(self, alive: Mapping[str, object]) -> list[str]:
        """Forget requests that are no longer alive; returns their ids."""
        ended = [
            name for name, request in self.requests.items() if alive.get(name) is not request.state
        ]
        for name in ended:
            self._remember(self.requests[name])
        return self._forget(ended)

    def remove_all(self) -> list[str]:
        """Forget every request; returns their ids."""
        return self._forget(list(self.requests))

    def make_room(self, batch: EngineBatch) -> list[str]:
        """Forget the requests longest absent from the batch until every row can have a slot.

        Preempted requests keep their slots as long as there are enough.
        """
        entering = sum(name not in self.requests for name in batch.requests)
        missing = len(self.requests) + entering - self.slots
        if missing <= 0:
            return []
        running = set(batch.requests)
        absent = [name for name in self.requests if name not in running]
        absent.sort(key=lambda name: self.requests[name].last_step)
        return self._forget(absent[:missing])

    def enter(self, batch: EngineBatch, row: int) -> RunningRequest:
        """Add a request that is seen for the first time."""
        known, owner = int(batch.known[row]), 0
        if self.answers is not None:
            key = batch.owners[row] if len(batch.owners) else None
            owner = self.answers.owner(object() if key is None else key)
        slot = self.index.open(batch.tokens[row, :known], owner)
        prompt = int(batch.prompt_tokens[row])
        request = RunningRequest(slot, batch.states[row], prompt, known, owner=owner)
        self.requests[batch.requests[row]] = request
        return request

    def is_steady(self, batch: EngineBatch, alive: Mapping[str, object]) -> bool:
        """Whether just the requests of the batch are known, and none has ended or entered."""
        if len(batch.requests) != len(self.requests):
            return False
        for name, state in zip(batch.requests, batch.states, strict=True):
            request = self.requests.get(name)
            if request is None or request.state is not state or alive.get(name) is not state:
                return False
        return True

    def catch_up(self, batch: EngineBatch, step: int) -> list[RunningRequest]:
        """Index every row's text, including the tokens sampled in this step; returns the rows."""
        running, slots, counts, tokens = [], [], [], list[int]()
        rows = zip(batch.requests, batch.known.tolist(), batch.sampled, strict=True)
        for row, (name, known, sampled) in enumerate(rows):
            request = self.requests[name]
            running.append(request)
            request.last_step = step
            if request.tokens > known:  # the text was cut or replaced
                self.index.close(request.slot)
                # The index hands out the last freed slot first, so the request gets the same slot
                # again and the policy's record of that slot stays valid.
                request.slot = self.index.open(batch.tokens[row, :known], request.owner)
                request.tokens = known
            elif request.tokens < known:  # the engine did not ask for drafts in some steps
                tokens.extend(batch.tokens[row, request.tokens : known].tolist())
            count = known - request.tokens + len(sampled)
            if count:
                slots.append(request.slot)
                counts.append(count)
                tokens.extend(sampled)
                request.tokens += count
        if slots:
            self.index.extend(slots, tokens, counts)
        return running

    def _remember(self, request: RunningRequest) -> None:
        """Store a request's answer as far as it is indexed: all but what its last step emitted."""
        if self.answers is not None and request.tokens > request.prompt_tokens:
            count = request.tokens - request.prompt_tokens
            answer = self.index.copies([request.slot], [request.prompt_tokens], count)
            self.answers.add(answer[0], request.owner)

    def _forget(self, names: list[str]) -> list[str]:
        for name in names:
            self.index.close(self.requests.pop(name).slot)
        return names


class EngineDrafts(ShownDrafts):
    """The tokens that an engine's drafter drafts in one step, for every row of its batch."""

    def __init__(self, index: NgramIndex, step: Step, engine_rows: Ints, neural_cap: int) -> None:
        """`engine_rows` maps each row of the step to its row in the engine's batch."""
        shape = (len(engine_rows), neural_cap)
        tokens = np.empty(shape, np.int32)
        confidences = np.empty((*shape, len(CONFIDENCES)), np.float32)
        tokens.fill(-1)
        confidences.fill(np.nan)
        super().__init__(index, step, tokens, confidences)
        self._engine_rows = engine_rows
        self.count = 0
        """Forwards run for drafting; recorded rows can make it more than the policy asked for."""

    def take(self, tokens: Ints, confidences: Floats) -> None:
        """Store the output of one forward: one token for every row of the engine's batch."""
        rows = self._engine_rows[self._holds]
        self.tokens[self._holds, self.count] = np.asarray(tokens)[rows]
        self.confidences[self._holds, self.count] = np.asarray(confidences)[rows]
        self.count += 1


@dataclass(slots=True)
class EngineStep:
    """A step of the requests in the engine's batch whose prompts have been read, row by row."""

    number: int
    requests: list[str]
    engine_rows: Ints
    """The row in the engine's batch of each row of the step."""
    step: Step
    drafts: EngineDrafts
    recorded: Bools
    """The rows that are drafted for in full, and proposed nothing."""
    proposes: bool
    """Whether what is chosen is sent to the target: in mode 'serve'."""
    room: Ints | None
    """The maximum draft length of each row; None if no request limits it."""
    limited: Bools | None = None
    """The rows for which nothing may be drafted; None if no request or operator limits any."""
    copies: Bools | None = None
    """The rows for which tokens may be copied; None if for all."""
    wants_forward: bool = False
    """Whether the policy wants another forward."""
    drafter_unable: bool = False
    """Whether the policy wanted forwards that the drafter cannot run."""
    chosen: list[list[int]] = field(default_factory=list)
    """The tokens that are sent to the target in mode 'serve'."""
    proposed: list[list[int]] = field(default_factory=list)
    """The tokens sent to the target: none in modes 'shadow' and 'record'."""
    expected: Floats | None = None
    """How many tokens per row the policy expects to be accepted; None if it does not say."""
    reasons: Reasons | None = None
    """Says of the first rows why they were decided so, as long as no other step has begun."""
    decision_s: float = 0.0
    """The seconds that deciding took on this machine, including look-ups and index upkeep."""

    @property
    def cut(self) -> Cut:
        """The lengths that were settled on."""
        assert self.step.cut is not None
        return self.step.cut

    def chosen_tokens(self, copied: Ints, vocabulary: int) -> list[list[int]]:
        """The tokens of the step's cut, row by row; a row ends before an invalid token id.

        `copied` are those that are copied.

        Invalid ids can be copied from prompts, which may hold placeholders that are outside the
        vocabulary.
        """
        cut = self.cut
        neural_len, ngram_len = cut.neural_len.tolist(), cut.ngram_len.tolist()
        drafted, rows = self.drafts.tokens, []
        for row, (neural, ngram) in enumerate(zip(neural_len, ngram_len, strict=True)):
            tokens: list[int] = drafted[row, :neural].tolist() if neural else []
            if ngram:
                tokens += copied[row, :ngram].tolist()
            if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary):
                sound = [0 <= token < vocabulary for token in tokens].index(False)
                del tokens[sound:]
                cut.neural_len[row] = min(neural, sound)
                cut.ngram_len[row] = sound - cut.neural_len[row]
            rows.append(tokens)
        return rows


@dataclass(slots=True)
class Verification:
    """The target's verdict on a step's proposal, one entry per row of the step."""

    step: EngineStep
    known: Bools
    """Whether the row's result is known: not if the request left or its draft was dropped before
    it was verified. If not, its entries in the other arrays mean nothing."""
    drafted: Ints
    """How many tokens the target judged; the scheduler may have cut or dropped the draft."""
    neural_drafted: Ints
    accepted: Ints
    emitted: Ints
    """Emitted tokens, padded with -1."""
    emitted_tokens: Ints
    judged: Bools
    """Whether the target judged the row's draft; an empty draft counts as judged."""
    dropped: list[str]
    """Requests with a draft of which the target judged no token."""
    complete: bool
    """Whether the engine's step verified this proposal and did nothing else."""
    step_s: float = 0.0
    """The step's time according to the cost model."""
    took_s: float | None = None
    """The measured seconds from one decision to the next; None if the step was not `complete`."""


def verify(step: EngineStep, batch: EngineBatch) -> Verification:
    """Read the outcome of a step's proposal from the engine's next batch."""
    engine_rows = {name: row for row, name in enumerate(batch.requests)}
    context, recorded = step.step.context_tokens.tolist(), step.recorded.tolist()
    neural_len = step.cut.neural_len.tolist()
    counts: list[tuple[int, int, int, int]] = []
    facts: list[tuple[bool, bool]] = []
    emitted_rows: list[Sequence[int]] = []
    dropped, verified_requests = [], set()
    for row, name in enumerate(step.requests):
        engine_row = engine_rows.get(name)
        # The text is longer than expected if the engine made a step without asking for drafts.
        if engine_row is None or batch.known[engine_row] != context[row]:
            sampled: Sequence[int] = ()
        else:
            sampled = batch.sampled[engine_row]
        proposed = step.proposed[row]
        verified = common_prefix_len(proposed, batch.verified.get(name, ())) if sampled else 0
        if proposed and not verified:
            dropped.append(name)
        if not sampled or len(sampled) > 1 + verified:
            counts.append((0, 0, 0, 0))
            facts.append((False, False))
            emitted_rows.append(())
            continue
        emitted_rows.append(sampled)
        facts.append((True, not recorded[row] and bool(verified or not proposed)))
        neural = min(neural_len[row], verified)
        counts.append((verified, neural, len(sampled) - 1, len(sampled)))
        verified_requests.add(name)
    drafted, neural_drafted, accepted, emitted_tokens = np.array(
        list(zip(*counts, strict=True)), np.int32
    )
    known, judged = np.array(list(zip(*facts, strict=True)), np.bool_)
    most = max(len(tokens) for tokens in emitted_rows)
    emitted = np.array(
        [[*tokens, *[-1] * (most - len(tokens))] for tokens in emitted_rows], np.int32
    )
    return Verification(
        step,
        known,
        drafted,
        neural_drafted,
        accepted,
        emitted.reshape(len(emitted_rows), most),
        emitted_tokens,
        judged,
        dropped,
        bool(verified_requests) and verified_requests.issuperset(batch.requests),
    )


def common_prefix_len(tokens: Sequence[int], others: Sequence[int]) -> int:
    """The length of the longest common prefix of two texts, in tokens."""
    count = 0
    for token, other_token in zip(tokens, others, strict=False):
        if token != other_token:
            break
        count += 1
    return count

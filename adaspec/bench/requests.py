"""Made-up requests in mid-generation, to make a policy decide about."""

from __future__ import annotations

import copy
from array import array
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from adaspec.bench.contexts import VOCABULARY, make_contexts
from adaspec.cost.model import CostModel
from adaspec.draft import Matches, NgramIndex
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Arrival, Batch, Drafts, Floats, Ints, Outcome, Setup
from adaspec.predict.features import CANDIDATE, TAIL
from adaspec.trace.schema import CONFIDENCES

Longs = NDArray[np.int64]

OUTPUT = 512
"""Output tokens after which a request leaves and another one takes its place."""
DRAFTED = 3
_SPAN = 8
"""Mean length of a span of new words, and of one that repeats."""
_NEW_SHARE = 0.3
"""Spans of new words; not all other words came before, either: about half the rows match."""
_NEURAL_RIGHT = 0.6


class _Text:
    """The text of the running requests, as far as it is known; some of it was looked up already."""

    def __init__(
        self, index: NgramIndex, slots: Longs, start: Ints, tail: Ints, candidate: Ints
    ) -> None:
        self._index, self._slots, self._start = index, slots, start
        self._tail, self._candidate = tail, candidate

    def tail(self, count: int) -> Ints:
        """The last known tokens per row."""
        return self._tail if count == TAIL else self._index.tail(self._slots, count)

    def candidate(self, count: int) -> Ints:
        """What the most recent match would copy."""
        if count == CANDIDATE:
            return self._candidate
        return self._index.copies(self._slots, self._start, count)

    def vllm_match(self, min_match: int, max_match: int) -> tuple[Ints, Ints]:
        """Where vLLM's own look-up copies from, and the match's length."""
        return self._index.match_vllm(self._slots, min_match, max_match)

    def token_at(self, places: Ints) -> Ints:
        """The known token at a place of every row, -1 where there is none."""
        return self._index.copies(self._slots, places, 1)[:, 0]


class _Behind:
    """Looks up behind drafted tokens, once per lengths."""

    def __init__(self, index: NgramIndex, slots: Longs, tokens: Ints) -> None:
        self._index, self._slots, self._tokens = index, slots, tokens
        self._last: tuple[Ints, Matches] | None = None

    def __call__(self, neural_len: Ints) -> Matches:
        """The match behind each row's first `neural_len` drafted tokens."""
        if self._last is None or not np.array_equal(neural_len, self._last[0]):
            found = self._index.lookup_behind(self._slots, self._tokens, neural_len)
            self._last = neural_len.copy(), found
        return self._last[1]


class Lane:
    """One batch at one context length; every `step` is a decision and what came of it."""

    def __init__(self, policy: LearnedPolicy, cost: CostModel, batch: int, tokens: int) -> None:
        self.policy, self.batch, self.tokens = policy, batch, tokens
        self.steps = self.matched = self.entered = 0
        self.seconds = array("d")
        """Per timed step the seconds of look-up, before, while and after drafting."""
        self._rng = np.random.default_rng([tokens, batch])
        self._words = _partly_new(make_contexts(batch, tokens + OUTPUT, tokens + batch), tokens)
        # Several lanes share the model, but not what is carried from step to step.
        self._policy = copy.copy(policy)
        self._depth = policy.neural_cap
        self._cap = policy.cap
        self.drafted = min(DRAFTED, self._depth)
        self._policy.start(
            Setup(
                cost=cost,
                cap=self._cap,
                neural_cap=self._depth,
                slots=batch,
                shows_tokens=True,
                shows_confidences=True,
            )
        )
        self._index = NgramIndex()
        self._slots = np.zeros(batch, np.int64)
        self._rows = np.arange(batch, dtype=np.int32)
        self._prompt = np.full(batch, tokens, np.int32)
        # Staggered, so that requests do not leave all at once.
        self._position = self._rng.integers(1, OUTPUT - DRAFTED - 1, batch).astype(np.int32)
        self._holds = np.ones(batch, np.bool_)
        for row in range(batch):
            self._slots[row] = self._enter(row)
        self._counts = np.zeros(batch, np.int32)
        self._came = np.zeros(0, np.int32)

    def step(self, timed: bool) -> None:
        """Decide once about the whole batch."""
        tokens, confidences, right = self._draft()
        index, policy, slots = self._index, self._policy, self._slots
        position = self._position.copy()
        t0 = perf_counter()
        index.extend(slots, self._came, self._counts)
        matches, tail, candidate = index.survey(slots, TAIL, CANDIDATE)
        t1 = perf_counter()
        text = _Text(index, slots, matches.start, tail, candidate)
        batch = Batch(self._rows, self._prompt, position, self._holds, matches, text)
        policy.plan(batch)
        t2 = perf_counter()
        for depth in range(1, self.drafted):
            behind = _Behind(index, slots, tokens[depth])
            policy.proceed(batch, Drafts(depth, tokens[depth], confidences[depth], behind))
        t3 = perf_counter()
        behind = _Behind(index, slots, tokens[self.drafted])
        drafts = Drafts(self.drafted, tokens[self.drafted], confidences[self.drafted], behind)
        proposal = policy.settle(batch, drafts)
        neural_len, ngram_len = proposal.neural_len, proposal.ngram_len
        start = matches.start
        if neural_len.any():
            start = np.where(neural_len > 0, behind(neural_len).start, start)
        index.propose(slots, start, ngram_len, tokens[self.drafted], neural_len)
        t4 = perf_counter()
        drafted = neural_len + ngram_len
        counts = np.minimum(right, drafted) + 1
        emitted = np.full((self.batch, DRAFTED + 1), -1, np.int32)
        for row, count in enumerate(counts.tolist()):
            begin = self.tokens + int(self._position[row])
            emitted[row, :count] = self._words[row, begin : begin + count]
        step_s = 0.01 + 1e-4 * self.batch
        t5 = perf_counter()
        policy.learn(
            batch, proposal, Outcome(drafted, neural_len, counts - 1, emitted, counts, step_s)
        )
        t6 = perf_counter()
        if timed:
            self.seconds.extend((t1 - t0, t2 - t1, t3 - t2, t4 - t3 + t6 - t5))
        self.steps += 1
        self.matched += int((matches.length > 0).sum())
        self._counts, self._came = counts, emitted[emitted >= 0]
        self._position += counts
        for done in np.flatnonzero(self._position + DRAFTED + 1 >= OUTPUT).tolist():
            self._leave(done)

    def _draft(self) -> tuple[list[Ints], list[Floats], Ints]:
        """What is drafted after 0, 1, .. forwards, with confidences; how many of it are right."""
        at = self.tokens + self._position[:, None] + np.arange(self.drafted)
        truth = self._words[self._rows[:, None], at]
        right = np.logical_and.accumulate(self._rng.random(truth.shape) < _NEURAL_RIGHT, axis=1)
        tokens = np.where(right, truth, (truth + 1) % VOCABULARY).astype(np.int32)
        shape = (*truth.shape, len(CONFIDENCES))
        said = (-self._rng.exponential(1.0, shape)).astype(np.float32)
        depths = range(self.drafted + 1)
        return (
            [np.ascontiguousarray(tokens[:, :depth]) for depth in depths],
            [np.ascontiguousarray(said[:, :depth]) for depth in depths],
            right.sum(1).astype(np.int32),
        )

    def _enter(self, row: int) -> int:
        known = self._words[row, : self.tokens + self._position[row]]
        slot = self._index.open(known)
        self.entered += 1
        self._policy.admit(Arrival(row, self.tokens, self.batch))
        return slot

    def _leave(self, row: int) -> None:
        slot = int(self._slots[row])
        self._policy.release(np.array([row], np.int32))
        self._index.close(slot)
        self._position[row] = 1
        self._slots[row] = self._enter(row)
        # What it emitted last went with it.
        keep = np.repeat(self._rows, self._counts) != row
        self._came = self._came[keep]
        self._counts = np.where(self._rows == row, 0, self._counts).astype(np.int32)


def _partly_new(words: Ints, tokens: int) -> Ints:
    """The same contexts, some spans behind the first `tokens` in words never seen before."""
    rng = np.random.default_rng([len(words), tokens])
    turns = rng.random((len(words), words.shape[1] - tokens)) < 1 / _SPAN
    spans = np.cumsum(turns, axis=1, dtype=np.int64)
    new = np.take_along_axis(rng.random(turns.shape) < _NEW_SHARE, spans, axis=1)
    fresh = VOCABULARY + np.arange(words.shape[1] - tokens, dtype=np.int32)
    behind = words[:, tokens:]
    words[:, tokens:] = np.where(new, fresh, behind)
    return words

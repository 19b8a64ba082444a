"""Made-up requests in mid-generation, to make a policy decide about."""

from __future__ import annotations

import copy
from array import array
from time import perf_counter

import numpy as np

from adaspec.bench.contexts import VOCABULARY, make_contexts
from adaspec.cost.model import CostModel
from adaspec.draft import NgramIndex
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Floats, Ints, Setup
from adaspec.step.executor import Executor, ShownDrafts, Step
from adaspec.trace.schema import CONFIDENCES

OUTPUT = 512
"""Output tokens after which a request leaves and another one takes its place."""
DRAFTED = 3
_SPAN = 8
"""Mean length of a span of new words, and of one that repeats."""
_NEW_SHARE = 0.3
"""Spans of new words; not all other words came before, either: about half the rows match."""
_NEURAL_RIGHT = 0.6


class _MadeUpDrafts(ShownDrafts):
    """One step's drafted tokens, made up before the clock runs."""

    def __init__(
        self, index: NgramIndex, step: Step, tokens: list[Ints], confidences: list[Floats]
    ) -> None:
        """Tokens and confidences after 0, 1, .. forwards."""
        super().__init__(index, step, tokens[-1], confidences[-1])
        self._first = tuple(zip(tokens, confidences, strict=True))

    def first(self, count: int) -> tuple[Ints, Floats]:
        """Tokens and confidences of the first `count` forwards."""
        return self._first[count]


class MadeUpBatch:
    """Requests that decode together at one context length; every `step` is one engine step."""

    def __init__(self, policy: LearnedPolicy, cost: CostModel, batch: int, tokens: int) -> None:
        self.policy, self.batch, self.tokens = policy, batch, tokens
        self.steps = self.matched = self.entered = 0
        self.seconds = array("d")
        """Per timed step the seconds of look-up, before, while and after drafting."""
        self._rng = np.random.default_rng([tokens, batch])
        self._words = _partly_new(make_contexts(batch, tokens + OUTPUT, tokens + batch), tokens)
        depth = policy.neural_cap
        self.drafted = min(DRAFTED, depth)
        self._index = NgramIndex()
        setup = Setup(
            cost=cost,
            cap=policy.cap,
            neural_cap=depth,
            slots=batch,
            shows_tokens=True,
            shows_confidences=True,
        )
        # Several batches share the model, but not what is carried from step to step.
        self._executor = Executor(copy.copy(policy), setup, self._index)
        self._slots = np.zeros(batch, np.int32)
        self._rows = np.arange(batch, dtype=np.int32)
        self._prompt = np.full(batch, tokens, np.int32)
        # Staggered, so that requests do not leave all at once.
        self._position = self._rng.integers(1, OUTPUT - DRAFTED - 1, batch).astype(np.int32)
        self._holds = np.ones(batch, np.bool_)
        for row in range(batch):
            self._slots[row] = self._enter(row)
        self._counts = np.zeros(batch, np.int32)
        self._emitted = np.zeros(0, np.int32)

    def step(self, timed: bool) -> None:
        """Decide once about the whole batch."""
        tokens, confidences, right = self._draft()
        index, executor, slots = self._index, self._executor, self._slots
        t0 = perf_counter()
        index.extend(slots, self._emitted, self._counts)
        step = executor.begin(slots, self._prompt, self._position, self._holds)
        t1 = perf_counter()
        executor.plan(step)
        t2 = perf_counter()
        step.source = _MadeUpDrafts(index, step, tokens, confidences)
        # Whatever the policy wants: every step is measured with a draft of the same length.
        step.planned = self.drafted
        for _ in range(self.drafted):
            executor.forward_ran(step)
        t3 = perf_counter()
        cut = executor.settle(step)
        index.propose(step.slots, cut.start, cut.ngram_len, tokens[self.drafted], cut.neural_len)
        t4 = perf_counter()
        drafted = cut.neural_len + cut.ngram_len
        counts = np.minimum(right, drafted) + 1
        emitted = np.full((self.batch, DRAFTED + 1), -1, np.int32)
        for row, count in enumerate(counts.tolist()):
            begin = self.tokens + int(self._position[row])
            emitted[row, :count] = self._words[row, begin : begin + count]
        outcome = executor.outcome(
            step, drafted, cut.neural_len, counts - 1, emitted, counts, self.drafted
        )
        t5 = perf_counter()
        executor.learn(step, outcome)
        t6 = perf_counter()
        if timed:
            self.seconds.extend((t1 - t0, t2 - t1, t3 - t2, t4 - t3 + t6 - t5))
        self.steps += 1
        self.matched += int((step.available > 0).sum())
        self._counts, self._emitted = counts, emitted[emitted >= 0]
        self._position += counts
        for done in np.flatnonzero(self._position + DRAFTED + 1 >= OUTPUT).tolist():
            self._leave(done)

    def _draft(self) -> tuple[list[Ints], list[Floats], Ints]:
        """What is drafted after 0, 1, .. forwards, with confidences; how many of it are right."""
        places = self.tokens + self._position[:, None] + np.arange(self.drafted)
        truth = self._words[self._rows[:, None], places]
        right = np.logical_and.accumulate(self._rng.random(truth.shape) < _NEURAL_RIGHT, axis=1)
        tokens = np.where(right, truth, (truth + 1) % VOCABULARY).astype(np.int32)
        shape = (*truth.shape, len(CONFIDENCES))
        confidences = (-self._rng.exponential(1.0, shape)).astype(np.float32)
        depths = range(self.drafted + 1)
        return (
            [np.ascontiguousarray(tokens[:, :depth]) for depth in depths],
            [np.ascontiguousarray(confidences[:, :depth]) for depth in depths],
            right.sum(1).astype(np.int32),
        )

    def _enter(self, row: int) -> int:
        known = self._words[row, : self.tokens + self._position[row]]
        slot = self._index.open(known)
        self.entered += 1
        # Every row holds the drafter, whatever the policy says.
        self._executor.admit(slot, self.tokens, self.batch)
        return slot

    def _leave(self, row: int) -> None:
        slot = int(self._slots[row])
        self._executor.release(np.array([slot], np.int32))
        self._index.close(slot)
        self._position[row] = 1
        self._slots[row] = self._enter(row)
        # What it emitted last went with it.
        keep = np.repeat(self._rows, self._counts) != row
        self._emitted = self._emitted[keep]
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

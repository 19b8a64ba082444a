"""What deciding costs: whole steps of learned policies on made-up requests in mid-generation.

A step takes in what the last one emitted, looks up, plans, reads a draft of three tokens and
settles, as the engine would drive it. Rounds are interleaved: each policy, batch and context makes
a few steps, then the next one, so that a busy machine slows all of them alike; a fixed loop timed
in every round shows the noise.
"""

from __future__ import annotations

import copy
import itertools
import resource
import sys
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adaspec.bench.contexts import VOCABULARY, make_contexts
from adaspec.bench.machine import (
    check_positive,
    held_memory,
    reference_loop_s,
    reserve_memory,
    without_garbage_collection,
)
from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.cost.model import CostModel
from adaspec.draft import NgramIndex
from adaspec.errors import BenchError
from adaspec.evaluate.options import Progress, silent
from adaspec.policy.learned import LearnedPolicy, load_policy
from adaspec.policy.protocol import Floats, Ints, Setup
from adaspec.policy.shipped import shipped_policies
from adaspec.step.executor import Executor, ShownDrafts, Step
from adaspec.trace.schema import CONFIDENCES

CONTEXTS = (1024, 4096, 32768)
BATCHES = (1, 8, 32, 128, 256)
STEPS = 400
STEPS_PER_ROUND = 10
_WARM_UP = 20
"""Steps before the clock runs: code is loaded, caches and branch predictors learn."""
BYTES_PER_TOKEN = 80
"""What one context token costs at the worst: its index, and the made-up text."""
OUTPUT = 512
"""Output tokens after which a request leaves and another one takes its place."""
DRAFTED = 3
_MEAN_SPAN = 8
"""Mean length of a span of new words, and of one that repeats."""
_NEW_SHARE = 0.3
"""Share of spans that are of new words; with other words that are new, half the rows match."""
_ACCEPTANCE = 0.6
"""Chance that a drafted token is right where those before it were."""


@dataclass(frozen=True, slots=True)
class DecideRow:
    """One policy, batch and context; times in microseconds per step of the whole batch."""

    policy: str
    evidence: bool
    """Whether the policy reads drafted tokens and confidences."""
    drafted: int
    """Tokens that the neural drafter drafted per step."""
    batch: int
    context_tokens: int
    median_us: float | None = None
    p99_us: float | None = None
    lookup_us: float | None = None
    """Median for taking in what was emitted and looking up what follows it."""
    before_us: float | None = None
    """Median for features, prediction and planning."""
    while_us: float | None = None
    """Median for reading drafted tokens but the last, and deciding to go on."""
    after_us: float | None = None
    """Median for choosing again, looking up behind the draft, splicing, and learning."""
    reference_us: float | None = None
    """Median of a fixed loop in the same rounds."""
    first_tenth_us: float | None = None
    last_tenth_us: float | None = None
    matched: float | None = None
    """Share of rows that had a match."""
    steps: int = 0
    skipped: str | None = None
    """Why there are no figures."""


@dataclass(frozen=True, slots=True)
class Decided:
    """All rows, and what memory the run took."""

    rows: list[DecideRow]
    first_tenth_mb: float
    last_tenth_mb: float
    peak_mb: float

    def to_json(self) -> dict[str, object]:
        """The result as `--json` prints it."""
        return asdict(self)


def find_benched(names: Sequence[str]) -> list[LearnedPolicy]:
    """The policies that are named; without a name each shipped one."""
    if not names and not shipped_policies():
        raise BenchError(
            "no policy is shipped with this build: name one with --policy DIR "
            "(`adaspec train TRACES -o DIR` makes one)"
        )
    policies: dict[str, LearnedPolicy] = {}
    for name in dict.fromkeys(names or shipped_policies()):
        policy = load_policy(name)
        if policy.name in policies:
            raise BenchError(f"{name}: another policy is called {policy.name} too: rename a folder")
        policies[policy.name] = policy
    return list(policies.values())


def bench_decide(
    policies: Sequence[LearnedPolicy],
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = BATCHES,
    steps: int = STEPS,
    report: Progress = silent,
) -> Decided:
    """Time so many whole steps of every policy at every context length and batch.

    `report` hears of progress.
    """
    check_positive(contexts=contexts, batches=batches, steps=[steps])
    reference_loop_s(1)
    running: list[MadeUpBatch] = []
    rows: list[DecideRow] = []
    # Policies that are compared make their steps one right after the other.
    cells = list(itertools.product(contexts, batches, policies))
    for done, (tokens, batch, policy) in enumerate(cells):
        report("taking in prompts", done, len(cells))
        shortage = reserve_memory(batch * (tokens + OUTPUT) * BYTES_PER_TOKEN)
        if shortage is None:
            running.append(MadeUpBatch(policy, _cost_of(policy), batch, tokens))
        else:
            rows.append(_row(policy, batch, tokens, skipped=shortage))
    report("taking in prompts", len(cells), len(cells))
    reference_s, memory = _run(running, steps, report)
    rows += [made_up.row(reference_s) for made_up in running]
    order = [policy.name for policy in policies]
    rows.sort(key=lambda row: (order.index(row.policy), row.context_tokens, row.batch))
    first, last = _tenths(memory)
    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return Decided(
        rows=rows,
        first_tenth_mb=first / 2**20,
        last_tenth_mb=last / 2**20,
        peak_mb=peak / 2**20 if sys.platform == "darwin" else peak * 1024 / 2**20,
    )


def _run(running: Sequence[MadeUpBatch], steps: int, report: Progress) -> tuple[float, list[float]]:
    """Step all batches in turn; the reference loop's median in seconds, and memory per round."""
    reference: list[float] = []
    memory: list[float] = []
    for made_up in running:
        for _ in range(_WARM_UP):
            made_up.step(timed=False)
    with without_garbage_collection():
        done = 0
        while done < steps:
            turns = min(STEPS_PER_ROUND, steps - done)
            reference.append(reference_loop_s(200))
            for made_up in running:
                for _ in range(turns):
                    made_up.step(timed=True)
            done += turns
            memory.append(held_memory())
            report("steps", done, steps)
    return float(np.median(reference)), memory


def _tenths(values: ArrayLike) -> tuple[float, float]:
    """Medians of the first and of the last tenth."""
    series = np.asarray(values)
    tenth = max(1, len(series) // 10)
    return float(np.median(series[:tenth])), float(np.median(series[-tenth:]))


def _row(policy: LearnedPolicy, batch: int, tokens: int, **figures: Any) -> DecideRow:
    drafted = min(DRAFTED, policy.neural_cap)
    return DecideRow(policy.name, policy.model.reads_evidence, drafted, batch, tokens, **figures)


def _cost_of(policy: LearnedPolicy) -> CostModel:
    """The cost model that the policy was trained for, or the default where it names none."""
    trained_for = None if policy.manifest is None else policy.manifest.cost_model
    return trained_for or load_cost(DEFAULT)


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
        self.drafted = min(DRAFTED, policy.neural_cap)
        self._index = NgramIndex()
        setup = Setup(
            cost=cost,
            cap=policy.cap,
            neural_cap=policy.neural_cap,
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

    def row(self, reference_s: float) -> DecideRow:
        """The figures of all timed steps."""
        seconds = np.frombuffer(self.seconds).reshape(-1, 4)
        total_us = seconds.sum(1) * 1e6
        lookup_us, before_us, while_us, after_us = (np.median(seconds, axis=0) * 1e6).tolist()
        first_us, last_us = _tenths(total_us)
        return _row(
            self.policy,
            self.batch,
            self.tokens,
            median_us=float(np.median(total_us)),
            p99_us=float(np.quantile(total_us, 0.99)),
            lookup_us=lookup_us,
            before_us=before_us,
            while_us=while_us,
            after_us=after_us,
            reference_us=reference_s * 1e6,
            first_tenth_us=first_us,
            last_tenth_us=last_us,
            matched=self.matched / (self.batch * self.steps),
            steps=len(total_us),
        )

    def _draft(self) -> tuple[list[Ints], list[Floats], Ints]:
        """What is drafted after 0, 1, .. forwards, with confidences; how many of it are right."""
        places = self.tokens + self._position[:, None] + np.arange(self.drafted)
        truth = self._words[self._rows[:, None], places]
        right = np.logical_and.accumulate(self._rng.random(truth.shape) < _ACCEPTANCE, axis=1)
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
    turns = rng.random((len(words), words.shape[1] - tokens)) < 1 / _MEAN_SPAN
    spans = np.cumsum(turns, axis=1, dtype=np.int64)
    new = np.take_along_axis(rng.random(turns.shape) < _NEW_SHARE, spans, axis=1)
    fresh = VOCABULARY + np.arange(words.shape[1] - tokens, dtype=np.int32)
    behind = words[:, tokens:]
    words[:, tokens:] = np.where(new, fresh, behind)
    return words

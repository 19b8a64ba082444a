"""Measures the cost of deciding: complete steps of learned policies on made-up running requests.

A step takes in the tokens that the last one emitted, looks up matches, plans, reads a draft of
three tokens and settles, as an engine would drive it. Rounds are interleaved: each policy, batch
and context makes a few steps before it is the next one's turn, so that a busy machine slows all of
them alike. A fixed loop, timed in every round, shows the noise.
"""

from __future__ import annotations

import copy
import itertools
import resource
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from adaspec.bench.lookup import VOCABULARY, make_contexts
from adaspec.bench.machine import (
    held_memory,
    reference_loop_s,
    reserve_memory,
    without_garbage_collection,
)
from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.cost.model import CostModel
from adaspec.draft.index import NgramIndex
from adaspec.errors import BenchError
from adaspec.evaluate.options import Progress, silent
from adaspec.policy.learned import LearnedPolicy, load_policy
from adaspec.policy.protocol import Floats, Ints, Setup
from adaspec.policy.shipped import shipped_policies
from adaspec.step.executor import ShownDrafts, Step
from adaspec.step.phased import executor_of
from adaspec.trace.schema import CONFIDENCES

CONTEXTS = (1024, 4096, 32768)
BATCHES = (1, 8, 32, 128, 256)
STEPS = 400
STEPS_PER_ROUND = 10
_WARM_UP = 20
"""Steps that are not timed, in which code is loaded and caches and branch predictors learn."""
BYTES_PER_TOKEN = 80
"""The most memory that one context token takes, for its index and the made-up text."""
OUTPUT = 512
"""How many output tokens a request has when it leaves and another one takes its place."""
DRAFTED = 3
_MEAN_SPAN = 8
"""The mean length of spans, whether their words are new or repeated."""
_NEW_SHARE = 0.3
"""The share of spans with new words; together with other words that are new, it makes half of the
rows match."""
_ACCEPTANCE = 0.6
"""The probability that a drafted token is right if all tokens before it were."""


@dataclass(frozen=True, slots=True)
class DecideRow:
    """The figures of one policy, batch and context, in microseconds per step of the whole batch."""

    policy: str
    evidence: bool
    """Whether the policy reads drafted tokens and confidences."""
    drafted: int
    """How many tokens the neural drafter drafted per step."""
    batch: int
    context_tokens: int
    median_us: float | None = None
    p99_us: float | None = None
    lookup_us: float | None = None
    """The median time for taking in the emitted tokens and looking up what follows them."""
    before_us: float | None = None
    """The median time for features, prediction and planning."""
    while_us: float | None = None
    """The median time for reading all drafted tokens but the last, and deciding to go on."""
    after_us: float | None = None
    """The median time for choosing again, looking up after the draft, splicing and learning."""
    reference_us: float | None = None
    """The median time of a fixed loop in the same rounds."""
    first_tenth_us: float | None = None
    last_tenth_us: float | None = None
    matched: float | None = None
    """The share of rows that had a match."""
    steps: int = 0
    skipped: str | None = None
    """The reason why there are no figures; None if there are."""
    served: bool = False
    """Whether a session decided, on a machine that a model keeps busy (see `bench.served`)."""
    metric_us: float | None = None
    """The median of what the server's own metric of deciding says; None unless `served`."""


@dataclass(frozen=True, slots=True)
class Decided:
    """All rows, and the memory that the run took."""

    rows: list[DecideRow]
    first_tenth_mb: float
    last_tenth_mb: float
    peak_mb: float


def find_benched(names: Sequence[str]) -> list[LearnedPolicy]:
    """Load the named policies, or every shipped policy if none is named."""
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
    made_up: Callable[[LearnedPolicy, CostModel, int, int], MadeUpBatch] | None = None,
) -> Decided:
    """Time that many complete steps of every policy at every context length and batch size.

    `report` is called with the progress; `made_up` makes each batch, a `MadeUpBatch` if not given.
    """
    reference_loop_s(1)
    running: list[MadeUpBatch] = []
    rows: list[DecideRow] = []
    # Policies are in the innermost loop, so that those to compare take turns directly.
    cells = list(itertools.product(contexts, batches, policies))
    for done, (tokens, batch, policy) in enumerate(cells):
        report("taking in prompts", done, len(cells))
        shortage = reserve_memory(batch * (tokens + OUTPUT) * BYTES_PER_TOKEN)
        if shortage is None:
            running.append((made_up or MadeUpBatch)(policy, _cost_of(policy), batch, tokens))
        else:
            rows.append(_row(policy, batch, tokens, skipped=shortage))
    report("taking in prompts", len(cells), len(cells))
    reference_s, memory = _run(running, steps, report)
    rows += [each.row(reference_s) for each in running]
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
    """Step all batches in turn; returns the reference loop's median time and memory per round."""
    reference: list[float] = []
    memory: list[float] = []
    for made_up in running:
        for _ in range(_WARM_UP):
            made_up.step(timed=False)
    with without_garbage_collection():
        steps_done = 0
        while steps_done < steps:
            turns = min(STEPS_PER_ROUND, steps - steps_done)
            reference.append(reference_loop_s(200))
            for made_up in running:
                for _ in range(turns):
                    made_up.step(timed=True)
            steps_done += turns
            memory.append(held_memory())
            report("steps", steps_done, steps)
    return float(np.median(reference)), memory


def deciding_constants(rows: Sequence[DecideRow]) -> dict[str, float]:
    """The constants of a `CostModel` that say what deciding takes, fitted to measured steps.

    They are those of a policy that reads drafted tokens, if there is one. A line over the batch is
    fitted to each part, by relative errors; what waiting for a drafter takes is not measured here.
    """
    measured = [row for row in rows if row.skipped is None]
    listening = [row for row in measured if row.evidence] or measured
    parts = {
        "lookup": [(row.batch, row.lookup_us) for row in measured],
        "decide": [(row.batch, (row.median_us or 0) - (row.while_us or 0)) for row in listening],
        "revise": [(row.batch, (row.while_us or 0) / max(row.drafted - 1, 1)) for row in listening],
    }
    if len({row.batch for row in measured}) < 2:
        raise BenchError("what deciding takes is fitted to two batch sizes or more: name more")
    constants: dict[str, float] = {}
    for part, points in parts.items():
        batch, time_us = np.array(points, dtype=float).T
        design = np.stack([1 / time_us, batch / time_us], axis=1)
        fixed, per_row = nnls(design, np.ones(len(batch)))[0] * 1e-6
        constants |= {f"{part}_s": float(fixed), f"{part}_per_row_s": float(per_row)}
    return constants


def _tenths(values: ArrayLike) -> tuple[float, float]:
    """The medians of the first and of the last tenth."""
    series = np.asarray(values)
    tenth = max(1, len(series) // 10)
    return float(np.median(series[:tenth])), float(np.median(series[-tenth:]))


def _row(policy: LearnedPolicy, batch: int, tokens: int, **figures: Any) -> DecideRow:
    drafted = min(DRAFTED, policy.neural_cap)
    return DecideRow(policy.name, policy.model.reads_evidence, drafted, batch, tokens, **figures)


def _cost_of(policy: LearnedPolicy) -> CostModel:
    """The cost model that the policy was trained for, or the default if the policy names none."""
    trained_for = None if policy.manifest is None else policy.manifest.cost_model
    return trained_for or load_cost(DEFAULT)


class _MadeUpDrafts(ShownDrafts):
    """The drafted tokens of one step, which are made up before timing starts."""

    def __init__(
        self, index: NgramIndex, step: Step, tokens: list[Ints], confidences: list[Floats]
    ) -> None:
        """`tokens` and `confidences` are those after 0, 1, .. forwards."""
        super().__init__(index, step, tokens[-1], confidences[-1])
        self._first = tuple(zip(tokens, confidences, strict=True))

    def first(self, count: int) -> tuple[Ints, Floats]:
        """The tokens and confidences of the first `count` forwards."""
        return self._first[count]


class MadeUpBatch:
    """Requests that decode together at one context length; each `step` is one engine step."""

    def __init__(self, policy: LearnedPolicy, cost: CostModel, batch: int, tokens: int) -> None:
        self.policy, self.batch, self.tokens = policy, batch, tokens
        self.steps = self.matched = self.entered = 0
        self.seconds = array("d")
        """Four times for each timed step: look-up, and before, while and after drafting."""
        self._rng = np.random.default_rng([tokens, batch])
        self._words = _partly_new(make_contexts(batch, tokens + OUTPUT, tokens + batch), tokens)
        self.drafted = min(DRAFTED, policy.neural_cap)
        self._rows = np.arange(batch, dtype=np.int32)
        self._prompt = np.full(batch, tokens, np.int32)
        # Positions are staggered, so that requests do not leave all at once.
        self._position = self._rng.integers(1, OUTPUT - DRAFTED - 1, batch).astype(np.int32)
        self._start(cost)

    def _start(self, cost: CostModel) -> None:
        """Take in the prompts."""
        self._index = NgramIndex()
        setup = Setup(
            cost=cost,
            cap=self.policy.cap,
            neural_cap=self.policy.neural_cap,
            slots=self.batch,
            shows_tokens=True,
            shows_confidences=True,
        )
        self._executor = executor_of(self.policy_of_its_own(), setup, self._index)
        self._slots = np.zeros(self.batch, np.int32)
        self._holds = np.ones(self.batch, np.bool_)
        for row in range(self.batch):
            self._slots[row] = self._enter(row)
        self._counts = np.zeros(self.batch, np.int32)
        self._emitted = np.zeros(0, np.int32)

    def policy_of_its_own(self) -> LearnedPolicy:
        """The policy: several batches share its model, but not what is kept from step to step."""
        return copy.copy(self.policy)

    def step(self, timed: bool) -> None:
        """Decide once for the whole batch."""
        tokens, confidences, right_counts = self._draft()
        index, executor, slots = self._index, self._executor, self._slots
        t0 = perf_counter()
        index.extend(slots, self._emitted, self._counts)
        step = executor.begin(slots, self._prompt, self._position, self._holds)
        t1 = perf_counter()
        executor.plan(step)
        t2 = perf_counter()
        step.source = _MadeUpDrafts(index, step, tokens, confidences)
        # The policy's plan is overruled, so that every step has a draft of the same length.
        step.planned = self.drafted
        for _ in range(self.drafted):
            executor.forward_ran(step)
        t3 = perf_counter()
        cut = executor.settle(step)
        executor.copied(step)
        t4 = perf_counter()
        drafted = cut.neural_len + cut.ngram_len
        counts = np.minimum(right_counts, drafted) + 1
        emitted = np.full((self.batch, DRAFTED + 1), -1, np.int32)
        for row, count in enumerate(counts.tolist()):
            start = self.tokens + int(self._position[row])
            emitted[row, :count] = self._words[row, start : start + count]
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
        for ended_row in np.flatnonzero(self._position + DRAFTED + 1 >= OUTPUT).tolist():
            self._leave(ended_row)

    def row(self, reference_s: float) -> DecideRow:
        """The figures over all timed steps."""
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
        """Drafted tokens and confidences after 0, 1, .. forwards, and right tokens per row."""
        positions = self.tokens + self._position[:, None] + np.arange(self.drafted)
        truth = self._words[self._rows[:, None], positions]
        is_right = np.logical_and.accumulate(self._rng.random(truth.shape) < _ACCEPTANCE, axis=1)
        tokens = np.where(is_right, truth, (truth + 1) % VOCABULARY).astype(np.int32)
        shape = (*truth.shape, len(CONFIDENCES))
        confidences = (-self._rng.exponential(1.0, shape)).astype(np.float32)
        depths = range(self.drafted + 1)
        return (
            [np.ascontiguousarray(tokens[:, :depth]) for depth in depths],
            [np.ascontiguousarray(confidences[:, :depth]) for depth in depths],
            is_right.sum(1).astype(np.int32),
        )

    def _enter(self, row: int) -> int:
        text = self._words[row, : self.tokens + self._position[row]]
        slot = self._index.open(text)
        self.entered += 1
        # The policy's answer is ignored: every row holds the drafter.
        self._executor.admit(slot, self.tokens, self.batch)
        return slot

    def _leave(self, row: int) -> None:
        slot = int(self._slots[row])
        self._executor.release(np.array([slot], np.int32))
        self._index.close(slot)
        self._position[row] = 1
        self._slots[row] = self._enter(row)
        # The last tokens that the old request emitted are dropped with it.
        keep = np.repeat(self._rows, self._counts) != row
        self._emitted = self._emitted[keep]
        self._counts = np.where(self._rows == row, 0, self._counts).astype(np.int32)


def _partly_new(words: Ints, tokens: int) -> Ints:
    """Replace the words of some spans after the first `tokens` by words never seen before."""
    rng = np.random.default_rng([len(words), tokens])
    starts_span = rng.random((len(words), words.shape[1] - tokens)) < 1 / _MEAN_SPAN
    spans = np.cumsum(starts_span, axis=1, dtype=np.int64)
    is_new = np.take_along_axis(rng.random(starts_span.shape) < _NEW_SHARE, spans, axis=1)
    new_words = VOCABULARY + np.arange(words.shape[1] - tokens, dtype=np.int32)
    output_words = words[:, tokens:]
    words[:, tokens:] = np.where(is_new, new_words, output_words)
    return words

"""Measures the cost of deciding: complete steps of learned policies on made-up running requests.

A step takes in the tokens that the last one emitted, looks up matches, plans, reads a draft of
three tokens and settles, as an engine would drive it. Policies, batches and contexts take turns of
a few steps, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from scipy.optimize import nnls

from adaspec.bench.machine import free_memory, reference_loop_s, without_garbage_collection
from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.draft.index import NgramIndex
from adaspec.errors import BenchError
from adaspec.evaluate.options import Progress, silent
from adaspec.policy.learned import LearnedPolicy, load_policy
from adaspec.policy.protocol import Floats, Ints, Setup
from adaspec.policy.shipped import shipped_policies
from adaspec.step.executor import ShownDrafts
from adaspec.step.phased import executor_of
from adaspec.trace.schema import CONFIDENCES

CONTEXTS = (1024, 4096, 32768)
BATCHES = (1, 8, 32, 128, 256)
STEPS = 400
TURN = 10
"""Steps of a policy, batch and context before it is the next one's turn."""
WARM_UP = 20
"""Steps that are not timed, in which code is loaded and caches and branch predictors learn."""
BYTES_PER_TOKEN = 80
"""The most memory that a token of a text takes, for its index and itself."""
DRAFTED = 3
VOCABULARY = 32_000
FORWARD_BYTES = 64 << 20
"""What a model's forward reads: more than the caches of most cores hold."""


@dataclass(frozen=True, slots=True)
class DecideRow:
    """One policy, batch and context: medians, in microseconds per step of the whole batch."""

    policy: str
    evidence: bool
    """Whether the policy reads drafted tokens and confidences."""
    drafted: int
    """How many tokens the neural drafter drafted per step."""
    batch: int
    context_tokens: int
    median_us: float
    p99_us: float
    lookup_us: float
    """Taking in the emitted tokens and looking up what follows them."""
    before_us: float
    """Features, prediction and planning."""
    while_us: float
    """Reading all drafted tokens but the last, and deciding to go on."""
    after_us: float
    """Choosing again, looking up after the draft, splicing and learning."""
    reference_us: float
    """A fixed loop in the same rounds, which shows the machine's noise."""
    matched: float
    """The share of rows that had a match."""
    steps: int


def find_benched(names: Sequence[str]) -> list[LearnedPolicy]:
    """Load the named policies, or every shipped policy if none is named."""
    if not names and not shipped_policies():
        raise BenchError(
            "no policy is shipped with this build: name one with --policy DIR "
            "(`adaspec train TRACES -o DIR` makes one)"
        )
    return [load_policy(name) for name in dict.fromkeys(names or shipped_policies())]


def bench_decide(
    policies: Sequence[LearnedPolicy],
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = BATCHES,
    steps: int = STEPS,
    report: Progress = silent,
    cold: bool = False,
) -> list[DecideRow]:
    """Time that many steps of every policy at every context length and batch size.

    `cold`: caches are swept before every call, as by a model's forwards on the same cores.
    """
    # Policies are in the innermost loop, so that those to compare take turns directly.
    cells = [(tokens, batch, each) for tokens in contexts for batch in batches for each in policies]
    output = (DRAFTED + 1) * (WARM_UP + steps + 1)
    needed, free = sum(b * (t + output) for t, b, _ in cells) * BYTES_PER_TOKEN, free_memory()
    if needed > free / 2:
        raise BenchError(
            f"so many steps of these batches and contexts need about {needed / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB are free: name fewer or shorter ones"
        )
    weights = np.ones(FORWARD_BYTES // 8 if cold else 0)
    running, reference = [], []
    reference_loop_s(1)
    with without_garbage_collection():
        for done, (tokens, batch, policy) in enumerate(cells):
            report("taking in prompts", done, len(cells))
            running.append(MadeUpBatch(policy, batch, tokens, output, weights.sum))
            for _ in range(WARM_UP):
                running[-1].step(timed=False)
        for first in range(0, steps, TURN):
            reference.append(reference_loop_s(200))
            for made_up in running:
                for _ in range(min(TURN, steps - first)):
                    made_up.step(timed=True)
            report("steps", min(first + TURN, steps), steps)
    return [made_up.row(float(np.median(reference))) for made_up in running]


def deciding_constants(rows: Sequence[DecideRow]) -> dict[str, float]:
    """The constants of a `CostModel` that say what deciding takes, fitted to measured steps.

    They are those of a policy that reads drafted tokens, if there is one. A line over the batch is
    fitted to each part, by relative errors; what waiting for a drafter takes is not measured here.
    """
    listening = [row for row in rows if row.evidence] or rows
    parts = {
        "lookup": [(row.batch, row.lookup_us) for row in rows],
        "decide": [(row.batch, row.median_us - row.while_us) for row in listening],
        "revise": [(row.batch, row.while_us / max(row.drafted - 1, 1)) for row in listening],
    }
    if len({row.batch for row in rows}) < 2:
        raise BenchError("what deciding takes is fitted to two batch sizes or more: name more")
    constants: dict[str, float] = {}
    for part, points in parts.items():
        batch, time_us = np.array(points, dtype=float).T
        design = np.stack([1 / time_us, batch / time_us], axis=1)
        fixed, per_row = nnls(design, np.ones(len(batch)))[0] * 1e-6
        constants |= {f"{part}_s": float(fixed), f"{part}_per_row_s": float(per_row)}
    return constants


class MadeUpBatch:
    """Requests that decode together, from one context length on; `step` is one engine step."""

    def __init__(
        self,
        policy: LearnedPolicy,
        batch: int,
        tokens: int,
        output: int,
        forward: Callable[[], object],
    ) -> None:
        """`forward` is called where a model's forward would run."""
        self.policy, self.batch, self.tokens = policy, batch, tokens
        self.matched, self.drafted = 0, min(DRAFTED, policy.neural_cap)
        self.seconds: list[tuple[float, float, float, float]] = []
        """Of each timed step: look-up, and before, while and after drafting."""
        self._forward, self._rng = forward, np.random.default_rng([tokens, batch])
        self._texts = made_up_texts(batch, tokens, output)
        self._prompt = np.full(batch, tokens, np.int32)
        self._position = np.ones(batch, np.int32)
        self._holds = np.ones(batch, np.bool_)
        trained_for = None if policy.manifest is None else policy.manifest.cost_model
        setup = Setup(
            cost=trained_for or load_cost(DEFAULT),
            cap=policy.cap,
            neural_cap=policy.neural_cap,
            slots=batch,
            shows_tokens=True,
            shows_confidences=True,
        )
        self._index = NgramIndex()
        # Several batches share a policy's model, but not what it keeps from step to step.
        self._executor = executor_of(copy.copy(policy), setup, self._index)
        self._slots = np.array([self._index.open(each[:tokens]) for each in self._texts], np.int32)
        for slot in self._slots.tolist():
            # The policy's answer is ignored: every row holds the drafter.
            self._executor.admit(slot, tokens, batch)
        self._emitted, self._counts = self._texts[:, tokens].copy(), np.ones(batch, np.int32)

    def step(self, timed: bool) -> None:
        """Decide once for the whole batch."""
        tokens, confidences, right_counts = self._draft()
        executor, slots, while_s = self._executor, self._slots, 0.0
        self._forward()
        t0 = perf_counter()
        self._index.extend(slots, self._emitted, self._counts)
        step = executor.begin(slots, self._prompt, self._position, self._holds)
        t1 = perf_counter()
        executor.plan(step)
        t2 = perf_counter()
        step.source = ShownDrafts(self._index, step, tokens, confidences)
        # The policy's plan is overruled, so that every step has a draft of the same length.
        step.planned = self.drafted
        for _ in range(self.drafted):
            self._forward()
            began_s = perf_counter()
            executor.forward_ran(step)
            while_s += perf_counter() - began_s
        t3 = perf_counter()
        cut = executor.settle(step)
        executor.copied(step)
        t4 = perf_counter()
        drafted = cut.neural_len + cut.ngram_len
        counts = np.minimum(right_counts, drafted) + 1
        places = self.tokens + self._position[:, None] + np.arange(DRAFTED + 1)
        emitted = np.take_along_axis(self._texts, places, axis=1)
        emitted[np.arange(DRAFTED + 1) >= counts[:, None]] = -1
        outcome = executor.outcome(
            step, drafted, cut.neural_len, counts - 1, emitted, counts, self.drafted
        )
        t5 = perf_counter()
        executor.learn(step, outcome)
        t6 = perf_counter()
        if timed:
            self.seconds.append((t1 - t0, t2 - t1, while_s, t4 - t3 + t6 - t5))
            self.matched += int((step.available > 0).sum())
        self._counts, self._emitted = counts, emitted[emitted >= 0]
        self._position += counts

    def row(self, reference_s: float) -> DecideRow:
        """The figures over all timed steps."""
        us = 1e6 * np.array(self.seconds)
        lookup_us, before_us, while_us, after_us = np.median(us, axis=0).tolist()
        return DecideRow(
            policy=self.policy.name,
            evidence=self.policy.model.reads_evidence,
            drafted=self.drafted,
            batch=self.batch,
            context_tokens=self.tokens,
            median_us=float(np.median(us.sum(1))),
            p99_us=float(np.quantile(us.sum(1), 0.99)),
            lookup_us=lookup_us,
            before_us=before_us,
            while_us=while_us,
            after_us=after_us,
            reference_us=reference_s * 1e6,
            matched=self.matched / (self.batch * len(us)),
            steps=len(us),
        )

    def _draft(self) -> tuple[Ints, Floats, Ints]:
        """Drafted tokens, their confidences, and how many are right per row."""
        positions = self.tokens + self._position[:, None] + np.arange(self.drafted)
        truth = np.take_along_axis(self._texts, positions, axis=1)
        is_right = np.logical_and.accumulate(self._rng.random(truth.shape) < 0.6, axis=1)
        tokens = np.where(is_right, truth, (truth + 1) % VOCABULARY).astype(np.int32)
        confidences = -self._rng.exponential(1.0, (*truth.shape, len(CONFIDENCES)))
        return tokens, confidences.astype(np.float32), is_right.sum(1).astype(np.int32)


def made_up_texts(count: int, tokens: int, output: int) -> Ints:
    """`count` different prompts of so many tokens, each with its output; the same at each call.

    Words follow Zipf's law, and about every 30th starts a copy of some 25 earlier tokens. Per
    token, this gives about the matches, nodes and table entries of recorded chats and code edits.
    Three in ten spans of an output have words never seen before: half of the rows find a match.
    """
    rng = np.random.default_rng([tokens, count])
    cumulative = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    texts = np.empty((count, tokens + output), np.int32)
    for text in texts:
        text[:] = np.searchsorted(cumulative / cumulative[-1], rng.random(len(text)))
        position = int(rng.geometric(0.03))
        while position < len(text):
            span = min(int(rng.geometric(0.04)), position, len(text) - position)
            source = int(rng.integers(0, position - span + 1))
            text[position : position + span] = text[source : source + span]
            position += span + int(rng.geometric(0.03))
    spans = np.cumsum(rng.random((count, output)) < 1 / 8, axis=1, dtype=np.int64)
    is_new = np.take_along_axis(rng.random(spans.shape) < 0.3, spans, axis=1)
    texts[:, tokens:] = np.where(is_new, VOCABULARY + np.arange(output), texts[:, tokens:])
    return texts

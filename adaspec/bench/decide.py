"""Measures the cost of deciding: complete steps of learned policies on made-up running requests.

A step takes in the tokens that the last one emitted, looks up matches, plans, reads a draft of
three tokens, each right in six cases of ten, and settles, as an engine would drive it.
"""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from scipy.optimize import nnls

from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.draft.index import NgramIndex
from adaspec.errors import BenchError
from adaspec.evaluate.options import Progress, silent
from adaspec.policy.learned import LearnedPolicy, load_policy
from adaspec.policy.protocol import Ints, Setup
from adaspec.policy.shipped import shipped_policies
from adaspec.policy.step import Executor, ShownDrafts
from adaspec.trace.schema import CONFIDENCES

WARM_UP = 20
"""Steps that are not timed, in which code is loaded and caches and branch predictors learn."""
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


def find_benched(names: Sequence[str]) -> list[LearnedPolicy]:
    """Load the named policies, or every shipped policy if none is named."""
    if not names and not shipped_policies():
        raise BenchError("no policy is shipped: name one by --policy DIR, as `adaspec train` makes")
    return [load_policy(name) for name in dict.fromkeys(names or shipped_policies())]


def bench_decide(
    policies: Sequence[LearnedPolicy],
    contexts: Sequence[int],
    batches: Sequence[int],
    steps: int,
    report: Progress = silent,
    cold: bool = False,
) -> list[DecideRow]:
    """Time that many steps of every policy at every context length and batch size.

    `cold`: caches are swept before every call, as by a model's forwards on the same cores.
    """
    # Policies come last, so that those to compare follow each other directly.
    cells = list(itertools.product(contexts, batches, policies))
    rows = []
    for done, (tokens, batch, policy) in enumerate(cells):
        report("deciding", done, len(cells))
        with without_garbage_collection():
            seconds = list(made_up_steps(policy, batch, tokens, WARM_UP + steps, cold))
        us = 1e6 * np.array(seconds[WARM_UP:])
        times_us = (*np.quantile(us.sum(axis=1), (0.5, 0.99)), *np.median(us, axis=0))
        evidence, drafted = policy.model.reads_evidence, min(DRAFTED, policy.neural_cap)
        rows.append(DecideRow(policy.name, evidence, drafted, batch, tokens, *map(float, times_us)))
    return rows


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


def made_up_steps(
    policy: LearnedPolicy, batch: int, tokens: int, steps: int, cold: bool
) -> Iterator[tuple[float, float, float, float]]:
    """Decide for requests that decode together: a step's seconds, by the parts of `DecideRow`."""
    weights = np.ones(FORWARD_BYTES // 8 if cold else 0)
    rng = np.random.default_rng([tokens, batch])
    texts = made_up_texts(batch, tokens, (DRAFTED + 1) * (steps + 1))
    drafted = min(DRAFTED, policy.neural_cap)
    cost = (policy.manifest and policy.manifest.cost_model) or load_cost(DEFAULT)
    setup = Setup(
        cost, policy.cap, policy.neural_cap, slots=batch, shows_tokens=True, shows_confidences=True
    )
    index = NgramIndex()
    # A copy shares the policy's model, but not what it keeps from step to step.
    executor = Executor(copy.copy(policy), setup, index)
    slots = np.array([index.open(text[:tokens]) for text in texts], np.int32)
    for slot in slots.tolist():
        # The policy's answer is ignored: every row holds the drafter.
        executor.enter(slot, batch)
    prompt, holds = np.full(batch, tokens, np.int32), np.ones(batch, np.bool_)
    position, counts, emitted = np.ones(batch, np.int32), np.ones(batch, np.int32), texts[:, tokens]
    offsets = np.arange(drafted + 1)
    for _ in range(steps):
        following = np.take_along_axis(texts, tokens + position[:, None] + offsets, axis=1)
        truth = following[:, :-1]
        right = np.minimum(rng.geometric(0.4, batch) - 1, drafted)
        is_right = offsets[:-1] < right[:, None]
        drafts = np.where(is_right, truth, (truth + 1) % VOCABULARY).astype(np.int32)
        confidences = -rng.exponential(1.0, (*truth.shape, len(CONFIDENCES))).astype(np.float32)
        weights.sum()  # as a forward of the model
        t0 = perf_counter()
        index.extend(slots, emitted, counts)
        step = executor.begin(slots, prompt, position, holds)
        t1 = perf_counter()
        step.source = ShownDrafts(index, step, drafts, confidences)
        executor.plan(step)
        t2 = perf_counter()
        # The policy's plan is overruled, so that every step has a draft of the same length.
        step.planned = drafted
        while_s = 0.0
        for _ in range(drafted):
            weights.sum()  # as one of the drafter
            began_s = perf_counter()
            executor.forward_ran(step)
            while_s += perf_counter() - began_s
        t3 = perf_counter()
        cut = executor.settle(step)
        executor.copied(step)
        t4 = perf_counter()
        length = cut.neural_len + cut.ngram_len
        counts = np.minimum(right, length).astype(np.int32) + 1
        rows = np.where(offsets < counts[:, None], following, -1)
        report = executor.report(step, length, cut.neural_len, counts - 1, rows, counts, drafted)
        t5 = perf_counter()
        executor.learn(report)
        yield t1 - t0, t2 - t1, while_s, t4 - t3 + perf_counter() - t5
        emitted = rows[rows >= 0]
        position += counts


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


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no garbage inside the block, unless the block itself asks for it."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

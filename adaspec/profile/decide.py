"""Measures the cost of deciding: complete steps of learned policies on made-up running requests.

A step is one of a server on model runner V1, whose host decides: it takes in what the last one
emitted, looks up, predicts, reads a draft of three tokens, each right in six cases of ten, and
settles what is verified.
"""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

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
from adaspec.predict.features import CANDIDATE, TAIL
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
    """Taking in the emitted tokens and looking up what follows them, measured apart."""
    before_us: float
    """Learning what came of the last drafts, looking up and predicting."""
    read_us: float
    """Reading the drafted tokens, and looking up behind them."""
    after_us: float
    """Choosing, and splicing."""


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
        whole_us = us[:, 1:].sum(axis=1)
        times_us = (*np.quantile(whole_us, (0.5, 0.99)), *np.median(us, axis=0))
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
        "decide": [(row.batch, row.median_us - row.read_us) for row in listening],
        "revise": [(row.batch, row.read_us / max(row.drafted, 1)) for row in listening],
    }
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
    server = Server(policy, texts, tokens)
    index = NgramIndex()
    slots = [index.open(text[:tokens]) for text in texts]
    drafted = min(DRAFTED, policy.neural_cap)
    offsets = np.arange(drafted + 1)
    counts = np.ones(batch, np.int32)
    for _ in range(steps):
        emitted, known = server.emit(counts), server.known
        following = np.take_along_axis(texts, known[:, None] + offsets, axis=1)
        truth = following[:, :-1]
        right = np.minimum(rng.geometric(0.4, batch) - 1, drafted)
        is_right = offsets[:-1] < right[:, None]
        drafts = np.where(is_right, truth, (truth + 1) % VOCABULARY).astype(np.int64)
        confidences = -rng.exponential(1.0, (drafted, batch, len(CONFIDENCES))).astype(np.float32)
        weights.sum()  # as a forward of the model
        began_s = perf_counter()
        index.extend(slots, emitted[emitted >= 0], counts)
        index.survey(slots, TAIL, CANDIDATE)
        lookup_s = perf_counter() - began_s
        weights.sum()
        parts = server.step(emitted, counts, drafts, confidences)
        counts = np.minimum(right, server.drafted).astype(np.int32) + 1
        yield lookup_s, *parts


class Server:
    """Decides for so many requests, all of whose prompts have so many tokens."""

    def __init__(self, policy: LearnedPolicy, texts: Ints, tokens: int) -> None:
        torch = _torch()
        from adaspec.vllm.session.drafting import Drafting
        from adaspec.vllm.session.host import Host

        batch = len(texts)
        cost = (policy.manifest and policy.manifest.cost_model) or load_cost(DEFAULT)
        caps = policy.cap, policy.neural_cap
        setup = Setup(cost, *caps, slots=batch, shows_tokens=True, shows_confidences=True)
        vocabulary = int(texts.max()) + 1
        # A copy shares the policy's model, but not what it keeps from step to step.
        policy = copy.copy(policy)
        self._host = Host(policy, setup)
        self._drafting = Drafting(policy, batch, *caps, vocabulary, torch.device("cpu"))
        self._slots = np.arange(batch, dtype=np.int32)
        self._drafting.enter(self._slots, np.zeros(batch, np.int32))
        self._texts, self._holds = texts, np.ones(batch, np.bool_)
        self._prompts = np.full(batch, tokens, np.int32)
        self._before: Any = None
        self.known = self._prompts.copy()
        self.drafted = np.zeros(batch, np.int32)
        """How many tokens the last step drafted."""

    def emit(self, counts: Ints) -> Ints:
        """(rows, most) the next so many tokens of each text, -1 behind them."""
        columns = np.arange(counts.max())
        places = self.known[:, None] + columns
        emitted = np.take_along_axis(self._texts, places, axis=1)
        self.known = self.known + counts
        return np.where(columns < counts[:, None], emitted, -1).astype(np.int32)

    def step(
        self, emitted: Ints, counts: Ints, drafts: Any, confidences: Any
    ) -> tuple[float, float, float]:
        """Decide once: the seconds before drafting, of reading the draft, and after that."""
        torch = _torch()
        from adaspec.kernels.batch import Batch
        from adaspec.vllm.events import DraftedStep, VerifiedStep

        host, drafting, before = self._host, self._drafting, self._before
        drafted, evidence = torch.from_numpy(drafts), torch.from_numpy(confidences)
        t0 = perf_counter()
        if before is not None:
            neural = np.minimum(before.report.neural, self.drafted)
            host.learn(VerifiedStep(before, self._holds, self.drafted, neural, counts - 1, counts))
        context = int(self.known.sum())
        decided = host.decide(DraftedStep(self._slots, self._prompts, self._holds), context)
        slots, known, prompts = map(torch.from_numpy, (self._slots, self.known, self._prompts))
        holds, sampled = torch.from_numpy(self._holds), torch.from_numpy(counts)
        batch = Batch(
            slots.long(), torch.from_numpy(self._texts), known, prompts, holds, sampled, sampled
        )
        settings = torch.from_numpy(np.array([decided.price, *decided.factors]))
        step = drafting.begin(batch, settings)
        t1 = perf_counter()
        drafting.revise(step, drafted, evidence)
        t2 = perf_counter()
        # The policy's plan is overruled, so that every step has a draft of the same length.
        decided.forwards = drafts.shape[1]
        report: Any = drafting.finish(step, drafted, evidence, None).report
        decided.report = report
        host.take_likeliest(decided, None, 0)
        t3 = perf_counter()
        self._before, self.drafted = decided, decided.lengths
        return t1 - t0, t2 - t1, t3 - t2


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise BenchError(
            "a server decides on PyTorch's tensors, and PyTorch is not installed: install "
            "'adaspec[vllm]'"
        ) from error
    return torch


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

"""Baselines that adapt without learning offline: what engines ship today.

Their formulas are compiled functions over plain arrays, shared by the classes below and by the
replay's fast loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, Deciding, StepShape, step_s
from adaspec.jit import compiled
from adaspec.policy.base import BasePolicy, Needs, costs_of
from adaspec.policy.protocol import Arrival, Batch, Drafts, Outcome, Proposal, Setup
from adaspec.trace.schema import CONFIDENCES

Array = NDArray[np.float64]
Ints = NDArray[np.int32]

BUDGET_DEPTH = 8
_MEMORY = 0.999
_RATE = 0.3
_TRIED, _HIT, _BIAS, _SLOPE, _GRADIENT = 0, 1, 2, 3, 4
EMA_BUCKETS = 16
EMA_INTERVAL = 5
_EMA, _TIER, _WAITED = 0, 1, 2


# --- budget: always draft K, then verify the globally most promising slots ---------------------


def budget_state() -> Array:
    """Optimistic beliefs: two imaginary drafts per depth, accepted 0.7 of the time."""
    state = np.zeros((5, BUDGET_DEPTH))
    state[_TRIED], state[_HIT] = 2.0, 1.4
    state[_BIAS] = np.log(0.7 / 0.3)
    return state


@compiled
def budget_lengths(
    state: Array,
    depth: int,
    confidence: Array,
    known: bool,
    rows: int,
    context: int,
    costs: Costs,
    lengths: Ints,
) -> None:
    """How many of `depth` drafted tokens to verify per row, at most emitted tokens per second.

    Slots are ranked by survival: the product of acceptance rates up to their depth, pooled over
    all rows, or from the rows' own confidences where `known`.
    """
    survival = np.empty(rows * depth)
    for row in range(rows):
        s = 1.0
        for j in range(depth):
            if known:
                z = state[_BIAS, j] + state[_SLOPE, 0] * confidence[row, j]
                s *= 1.0 / (1.0 + np.exp(-z))
            else:
                s *= state[_HIT, j] / state[_TRIED, j]
            survival[row * depth + j] = s
    ranked = np.argsort(-survival, kind="mergesort")
    expected = float(rows)
    best, count = expected / step_s(costs, StepShape(rows, context, 0, 0, 0, depth, True, 0)), 0
    for n in range(1, rows * depth + 1):
        expected += survival[ranked[n - 1]]
        value = expected / step_s(costs, StepShape(rows, context, 0, n, 0, depth, True, 0))
        if value > best:
            best, count = value, n
    lengths[:rows] = 0
    for n in range(count):
        lengths[ranked[n] // depth] += 1


@compiled
def budget_learn(
    state: Array, confidence: Array, known: bool, rows: int, lengths: Ints, accepted: Ints
) -> None:
    """Count what was verified: hits up to the first miss. Confidences: one gradient step each."""
    state[_TRIED] = 1e-3 + (state[_TRIED] - 1e-3) * _MEMORY
    state[_HIT] = 0.7e-3 + (state[_HIT] - 0.7e-3) * _MEMORY
    for row in range(rows):
        for j in range(lengths[row]):
            hit = accepted[row] > j
            state[_TRIED, j] += 1.0
            state[_HIT, j] += hit
            if known:
                c = confidence[row, j]
                z = state[_BIAS, j] + state[_SLOPE, 0] * c
                error = hit - 1.0 / (1.0 + np.exp(-z))
                state[_GRADIENT, j] += error * error
                state[_BIAS, j] += _RATE * error / np.sqrt(1.0 + state[_GRADIENT, j])
                state[_SLOPE, 1] += error * error * c * c
                state[_SLOPE, 0] += _RATE * error * c / np.sqrt(1.0 + state[_SLOPE, 1])
            if not hit:
                break


_UNLIKELY = -30.0
"""The log-odds of tokens that nobody has drafted."""


class Budget(BasePolicy):
    """`budget:K`, as vLLM's adaptive verification."""

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self.depth = depth
        self._depth = depth
        self._state = budget_state()

    @property
    def deciding(self) -> Deciding:
        """What a look-up takes, for choosing lengths by row."""
        return Deciding.LOOKUP

    @property
    def needs(self) -> Needs:
        """The drafter, for K tokens."""
        return Needs(drafter=True, neural_len=self.depth, draft_len=self.depth)

    def start(self, setup: Setup) -> None:
        """Forget all counts."""
        self._depth = min(self.depth, setup.cap)
        self._state = budget_state()
        self._costs = costs_of(self, setup)
        self._known = setup.shows_confidences
        self._confidence = np.empty((0, self._depth))

    def plan(self, batch: Batch) -> int:
        """Always K, or the cap."""
        return self._depth if bool(batch.holds_neural.any()) else 0

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """The globally most promising slots."""
        rows = len(batch)
        if self._known:
            self._confidence = ranking(drafts.confidences)
            self._confidence[~batch.holds_neural] = _UNLIKELY
        lengths = np.zeros(rows, dtype=np.int32)
        context = int(batch.context_tokens.sum())
        budget_lengths(
            self._state,
            min(self._depth, drafts.count),
            self._confidence,
            self._known,
            rows,
            context,
            self._costs,
            lengths,
        )
        lengths[~batch.holds_neural] = 0
        return Proposal(lengths, np.zeros(rows, dtype=np.int32))

    def learn(self, batch: Batch, proposal: Proposal, outcome: Outcome) -> None:
        """Count what was verified."""
        budget_learn(
            self._state,
            self._confidence,
            self._known,
            len(batch),
            outcome.neural_drafted,
            outcome.accepted,
        )


def ranking(confidences: NDArray[np.float32]) -> Array:
    """One number per drafted token that grows with confidence: top-1 log-odds, else margin."""
    logprob = confidences[..., CONFIDENCES.index("logprob")].astype(np.float64)
    margin = confidences[..., CONFIDENCES.index("margin")].astype(np.float64)
    p = np.clip(np.exp(logprob), 1e-6, 1 - 1e-6)
    ranked = np.where(np.isnan(logprob), margin, np.log(p) - np.log1p(-p))
    # Rounded as the replay stores it, so that compiled and interpreted runs cannot part ways.
    return ranked.astype(np.float32).astype(np.float64)


# --- ema: one K for the batch, moved between tiers by the recent acceptance --------------------


def ema_state(tiers: int) -> Array:
    """Per batch-size bucket: no average yet, the middle tier."""
    state = np.zeros((3, EMA_BUCKETS))
    state[_EMA] = np.nan
    state[_TIER] = tiers // 2
    return state


@compiled
def ema_length(state: Array, tiers: NDArray[np.int64], rows: int) -> int:
    """The K of the tier in which batches of about this size stand."""
    return tiers[int(state[_TIER, int(np.log2(rows))])]


@compiled
def ema_learn(
    state: Array, tiers: NDArray[np.int64], alpha: float, rows: int, accepted: Ints
) -> None:
    """Average accepted per judged row; every few steps go up where nearly all is accepted, or down.

    Up when the average exceeds K - 1/2; down when it falls below the next lower tier's K - 1/2.
    """
    bucket = int(np.log2(rows))
    total = 0.0
    for row in range(accepted.shape[0]):
        total += accepted[row]
    mean = total / accepted.shape[0]
    if np.isnan(state[_EMA, bucket]):
        state[_EMA, bucket] = mean
    else:
        state[_EMA, bucket] += alpha * (mean - state[_EMA, bucket])
    state[_WAITED, bucket] += 1
    if state[_WAITED, bucket] < EMA_INTERVAL:
        return
    state[_WAITED, bucket] = 0
    tier = int(state[_TIER, bucket])
    if tier + 1 < tiers.shape[0] and state[_EMA, bucket] > tiers[tier] - 0.5:
        state[_TIER, bucket] = tier + 1
    elif tier > 0 and state[_EMA, bucket] < tiers[tier - 1] - 0.5:
        state[_TIER, bucket] = tier - 1


class Ema(BasePolicy):
    """`ema:K1,K2,..:ALPHA`, as SGLang's adaptive draft length."""

    def __init__(self, name: str, tiers: tuple[int, ...], alpha: float) -> None:
        self.name = name
        self.tiers = np.array(tiers, dtype=np.int64)
        self.alpha = alpha
        self._tiers = self.tiers
        self._state = ema_state(len(tiers))

    @property
    def deciding(self) -> Deciding:
        """One number for all rows."""
        return Deciding.NOTHING

    @property
    def needs(self) -> Needs:
        """The drafter, for as many tokens as the last tier says."""
        longest = int(self.tiers[-1])
        return Needs(drafter=True, neural_len=longest, draft_len=longest)

    def start(self, setup: Setup) -> None:
        """Forget all averages."""
        self._tiers = np.minimum(self.tiers, setup.cap)
        self._state = ema_state(len(self.tiers))

    def plan(self, batch: Batch) -> int:
        """The K of the present tier."""
        holds = bool(batch.holds_neural.any())
        return int(ema_length(self._state, self._tiers, len(batch))) if holds else 0

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """All that was drafted."""
        lengths = np.where(batch.holds_neural, drafts.count, 0).astype(np.int32)
        return Proposal(lengths, np.zeros_like(lengths))

    def learn(self, batch: Batch, proposal: Proposal, outcome: Outcome) -> None:
        """Move the average, and perhaps the tier."""
        told = batch.holds_neural
        if outcome.judged is not None:
            told = told & outcome.judged
        accepted = outcome.accepted[told]
        if len(accepted):
            ema_learn(self._state, self._tiers, self.alpha, len(batch), accepted)


# --- batch-table: one K per batch size ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Batches of `low` to `high` rows (None: no upper end) draft `length` neural tokens."""

    low: int
    high: int | None
    length: int


class BatchTable(BasePolicy):
    """`batch-table:LO-HI=K,..`, as vLLM's `num_speculative_tokens_per_batch_size`."""

    def __init__(self, name: str, ranges: tuple[BatchRange, ...]) -> None:
        self.name = name
        self.ranges = ranges
        self._cap = max(span.length for span in ranges)

    @property
    def deciding(self) -> Deciding:
        """One number for all rows."""
        return Deciding.NOTHING

    @property
    def needs(self) -> Needs:
        """The drafter, unless the table is of zeros."""
        longest = max(span.length for span in self.ranges)
        return Needs(drafter=longest > 0, neural_len=longest, draft_len=max(1, longest))

    def length(self, rows: int) -> int:
        """K for a batch of so many rows; 0 where no range holds it."""
        for span in self.ranges:
            if span.low <= rows and (span.high is None or rows <= span.high):
                return span.length
        return 0

    def start(self, setup: Setup) -> None:
        """Nothing is remembered between steps; a draft longer than the cap is cut to it."""
        self._cap = setup.cap

    def admit(self, arrival: Arrival) -> bool:
        """A request that enters where the table says 0 goes without the drafter."""
        return self.length(arrival.running) > 0

    def plan(self, batch: Batch) -> int:
        """The table's K, or the cap."""
        return min(self.length(len(batch)), self._cap) if bool(batch.holds_neural.any()) else 0

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """All that was drafted, for the rows that hold the drafter."""
        lengths = np.where(batch.holds_neural, drafts.count, 0).astype(np.int32)
        return Proposal(lengths, np.zeros(len(batch), dtype=np.int32))

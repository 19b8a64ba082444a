"""Rivals that adapt as they serve: `budget:K` as in vLLM, `ema` as in SGLang."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, StepShape, decoding_shape, step_s
from adaspec.jit import compiled
from adaspec.policy.base import Needs

Array = NDArray[np.float64]
Ints = NDArray[np.int32]

_MEMORY, _RATE, _BUCKETS, _INTERVAL = 0.999, 0.3, 16, 5
_TRIED, _HIT, _BIAS, _SLOPE, _GRADIENT, _EMA, _TIER, _WAITED = range(8)
"""What is believed: by depth, of a budget, and by the logarithm of the batch's size, of ema."""


class Rival(NamedTuple):
    """The draft lengths between which ema moves, and how fast it forgets; a budget has one K."""

    tiers: NDArray[np.int64]
    alpha: float = 0.0
    is_budget: bool = True


def begin(rival: Rival, cap: int) -> tuple[Rival, Array]:
    """The rival within the cap, and what it believes at first: 1.4 of 2 drafts were accepted."""
    state = np.zeros((8, _BUCKETS))
    state[_TRIED], state[_HIT], state[_BIAS] = 2.0, 1.4, np.log(0.7 / 0.3)
    state[_EMA], state[_TIER] = np.nan, len(rival.tiers) // 2
    return rival._replace(tiers=np.minimum(rival.tiers, cap)), state


@compiled
def forwards_of(rival: Rival, state: Array, rows: int) -> int:
    """The K of the tier in which batches of about this size stand."""
    return rival.tiers[int(state[_TIER, int(np.log2(rows))])]


@compiled
def choose(rival: Rival, state: Array, drafted: StepShape, odds: Array, costs: Costs) -> Ints:
    """How many tokens to verify per row: all, or a budget's likeliest, at most tokens per second.

    How likely follows from confidences; where there are none, from what was accepted so far.
    """
    rows, context, depth = drafted.rows, drafted.context_tokens, drafted.forwards
    if not rival.is_budget:
        return np.full(rows, depth, np.int32)
    survival, lengths = np.empty(rows * depth), np.zeros(rows, np.int32)
    for row in range(rows):
        s = 1.0
        for j in range(depth):
            if len(odds):
                s *= 1.0 / (1.0 + np.exp(-(state[_BIAS, j] + state[_SLOPE, 0] * odds[row, j])))
            else:
                s *= state[_HIT, j] / state[_TRIED, j]
            survival[row * depth + j] = s
    ranked = np.argsort(-survival, kind="mergesort")
    expected, count = float(rows), 0
    best = expected / step_s(costs, decoding_shape(rows, context, 0, depth, True))
    for n in range(1, rows * depth + 1):
        expected += survival[ranked[n - 1]]
        value = expected / step_s(costs, decoding_shape(rows, context, n, depth, True))
        if value > best:
            best, count = value, n
    for slot in ranked[:count]:
        lengths[slot // depth] += 1
    return lengths


@compiled
def learn(rival: Rival, state: Array, rows: int, odds: Array, tried: Ints, accepted: Ints) -> None:
    """Count hits up to the first miss, with a gradient step for each of the odds; or move ema."""
    if not rival.is_budget:
        _move(rival, state, int(np.log2(rows)), accepted.sum() / len(accepted))
        return
    state[_TRIED] = 1e-3 + (state[_TRIED] - 1e-3) * _MEMORY
    state[_HIT] = 0.7e-3 + (state[_HIT] - 0.7e-3) * _MEMORY
    for row in range(len(tried)):
        for j in range(min(tried[row], accepted[row] + 1)):
            hit = accepted[row] > j
            state[_TRIED, j] += 1.0
            state[_HIT, j] += hit
            if len(odds):
                c = odds[row, j]
                error = hit - 1.0 / (1.0 + np.exp(-(state[_BIAS, j] + state[_SLOPE, 0] * c)))
                state[_GRADIENT, j] += error * error
                state[_BIAS, j] += _RATE * error / np.sqrt(1.0 + state[_GRADIENT, j])
                state[_SLOPE, 1] += error * error * c * c
                state[_SLOPE, 0] += _RATE * error * c / np.sqrt(1.0 + state[_SLOPE, 1])


@compiled
def _move(rival: Rival, state: Array, bucket: int, mean: float) -> None:
    """Every few steps, up if the average exceeds K - 1/2, down if below the next lower K - 1/2."""
    before, tier, tiers = state[_EMA, bucket], int(state[_TIER, bucket]), rival.tiers
    average = mean if np.isnan(before) else before + rival.alpha * (mean - before)
    state[_EMA, bucket] = average
    state[_WAITED, bucket] = (state[_WAITED, bucket] + 1) % _INTERVAL
    if state[_WAITED, bucket] == 0:
        if tier + 1 < len(tiers) and average > tiers[tier] - 0.5:
            state[_TIER, bucket] = tier + 1
        elif tier > 0 and average < tiers[tier - 1] - 0.5:
            state[_TIER, bucket] = tier - 1


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A rival by the name of its spec."""

    name: str
    rival: Rival

    @property
    def needs(self) -> Needs:
        """The drafter, for as many tokens as it ever drafts."""
        longest = int(self.rival.tiers[-1])
        return Needs(drafter=True, neural_len=longest, draft_len=longest)

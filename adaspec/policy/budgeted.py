"""`budget:K`, as in vLLM: K tokens are drafted for every row, and the likeliest of all verified."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, StepShape, step_s, step_shape
from adaspec.jit import compiled
from adaspec.policy.base import Needs
from adaspec.policy.budget import keep_likeliest, ranked

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

LONGEST_BUDGET = 8
_MEMORY, _RATE = 0.999, 0.3
_TRIED, _HIT, _BIAS, _SLOPE, _GRADIENT = range(5)
"""What is believed, by depth."""


def begin() -> Array:
    """What is believed at first: 1.4 of 2 drafts were accepted."""
    state = np.zeros((5, LONGEST_BUDGET))
    state[_TRIED], state[_HIT], state[_BIAS] = 2.0, 1.4, np.log(0.7 / 0.3)
    return state


@compiled
def choose(state: Array, drafted: StepShape, odds: Array, costs: Costs) -> Longs:
    """How many tokens to verify per row: the likeliest, for the most tokens per second.

    How likely follows from the odds of confidences; where there are none, from what was accepted
    so far.
    """
    rows, context, depth = drafted.rows, drafted.context_tokens, drafted.forwards
    survival, lengths = np.empty((rows, depth)), np.full(rows, depth)
    for row in range(rows):
        s = 1.0
        for j in range(depth):
            if len(odds):
                s *= 1.0 / (1.0 + np.exp(-(state[_BIAS, j] + state[_SLOPE, 0] * odds[row, j])))
            else:
                s *= state[_HIT, j] / state[_TRIED, j]
            survival[row, j] = s
    offered = ranked(survival, lengths)
    expected, count = float(rows), 0
    best = expected / step_s(costs, step_shape(rows, context, 0, depth, True))
    for n in range(1, rows * depth + 1):
        expected += offered[n - 1]
        value = expected / step_s(costs, step_shape(rows, context, n, depth, True))
        if value > best:
            best, count = value, n
    keep_likeliest(offered, survival, lengths, count)
    return lengths


@compiled
def learn(state: Array, odds: Array, tried: Longs, accepted: Longs) -> None:
    """Count hits up to the first miss, with a gradient step for each of the odds."""
    for depth in range(LONGEST_BUDGET):
        state[_TRIED, depth] = 1e-3 + (state[_TRIED, depth] - 1e-3) * _MEMORY
        state[_HIT, depth] = 0.7e-3 + (state[_HIT, depth] - 0.7e-3) * _MEMORY
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


@dataclass(frozen=True, slots=True)
class Budgeted:
    """The rival by the name of its spec."""

    name: str
    draft_len: int

    @property
    def needs(self) -> Needs:
        """The drafter, for as many tokens as it drafts."""
        return Needs(drafter=True, neural_len=self.draft_len)

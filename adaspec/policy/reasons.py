"""What a learned policy's last choice for a row rests on, as its planner's memory tells it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.address import planner_at
from adaspec.policy.planner.forwards import best_neural
from adaspec.policy.planner.stages import state_of

Array = NDArray[np.float64]


class Reasons(NamedTuple):
    """What was expected of a row's drafts, and what they were worth."""

    rate: float
    """Tokens per second that time is worth."""
    price: float
    """Tokens that the time of verifying one more token is worth."""
    neural: Array
    """P(the first j tokens are accepted), from j = 1 on, as revised by what was drafted."""
    ngram: Array
    neural_len: int
    """The neural length that is worth most, 0 where none pays; and what it is worth, in tokens, a
    splice behind it included."""
    neural_value: float
    ngram_len: int
    """The copied length that is worth most; and what it is worth."""
    ngram_value: float


def reasons_of(policy: LearnedPolicy, row: int, forwards: int) -> Reasons:
    """Between the choice of a step that ran so many forwards and `learn`."""
    memory = policy.planner.memory
    rate, price, neural_len, neural_value = _read(policy.address, row, forwards)
    return Reasons(
        rate,
        price,
        memory.neural[row, 1:].copy(),
        memory.ngram[row, 1:].copy(),
        neural_len,
        neural_value,
        int(memory.ngram_len[row]),
        float(memory.ngram_value[row]),
    )


@compiled
def _read(address: int, row: int, forwards: int) -> tuple[float, float, int, float]:
    """The rate, the price, and the best neural length with its value."""
    planner = planner_at(address)
    limits, memory = planner.limits[0], planner.memory
    state = state_of(planner, limits.reads_drafts > 0)
    price = planner.late.step[0].price if limits.is_late else state.price
    length, value = best_neural(memory, row, forwards, price, limits.cap)
    return state.rate, price, length, value

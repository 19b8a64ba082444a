"""What is drafted: per row a source and a length, once the forwards are done.

Each row takes the source whose tokens are worth most at the price that the last budget set (see
`budget`), and drafts as far as that source goes. Of all rows' tokens together the likeliest are
verified, as many as the budget holds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled
from adaspec.policy.planner.address import planner_at
from adaspec.policy.planner.forwards import FEWER, MORE, RAN
from adaspec.policy.planner.learning import correct
from adaspec.policy.planner.state import (
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    LONGEST_SPLICE,
    SPLICE_TOKENS,
    SPLICE_WEIGHT,
    Planner,
    State,
)

Array = NDArray[np.float64]
Ints = NDArray[np.int32]


@compiled
def wanted(address: int, forwards: int, neural_len: Ints, ngram_len: Ints) -> None:
    """Correct every row's curves, and fill in its best draft at the step's price, after so many
    forwards."""
    planner = planner_at(address)
    state, price, cap = planner.state, planner.batch_state.step[0].price, planner.run[0].cap
    for row in range(planner.run[0].rows):
        correct(state, row)
        neural_len[row], ngram_len[row], copied = _best_draft(planner, row, forwards, price)
        for number, at in ((forwards - 1, FEWER), (forwards, RAN), (forwards + 1, MORE)):
            value = _best_neural(state, row, number, price, cap)[1]
            state.neural_gain[row, at] = max(value - copied, 0.0)


@compiled
def extended(address: int, forwards: int, neural_len: Ints, ngram_len: Ints) -> None:
    """Let every draft go as far as its source does; rows that chose nothing draft what they can."""
    planner = planner_at(address)
    state, cap = planner.state, planner.run[0].cap
    for row in range(planner.run[0].rows):
        if neural_len[row] > 0:
            ngram_len[row] = spliced_tokens(state, row, neural_len[row], cap)
        elif ngram_len[row] > 0:
            most, copied = min(planner.rows.available[row], cap, LONGEST_NGRAM), 0
            while copied < most and state.ngram[row, copied + 1] > 0:
                copied += 1
            ngram_len[row] = copied
        else:
            neural_len[row], ngram_len[row], _ = _best_draft(planner, row, forwards, 0.0)


@compiled
def spliced_tokens(state: State, row: int, neural: int, cap: int) -> int:
    """How far the copy behind so many neural tokens goes."""
    survival, length = state.splice[row, neural], 0
    while length < min(LONGEST_SPLICE, cap - neural) and survival[length + 1] > 0:
        length += 1
    return length


@compiled
def offer(address: int, neural_len: Ints, ngram_len: Ints) -> None:
    """Fill what every row's draft offers: P(each token of it and all before it are accepted)."""
    state = planner_at(address).state
    for row in range(neural_len.shape[0]):
        neural, offered = neural_len[row], state.offered[row]
        for j in range(neural):
            offered[j] = state.neural[row, j + 1]
        for j in range(ngram_len[row]):
            if neural > 0:
                offered[neural + j] = state.neural[row, neural] * state.splice[row, neural, j + 1]
            else:
                offered[j] = state.ngram[row, j + 1]


@compiled
def _best_draft(planner: Planner, row: int, forwards: int, price: float) -> tuple[int, int, float]:
    """A row's best draft at a price per token: its neural and its copied tokens; and what the best
    one is worth that is only copied.
    """
    state, run = planner.state, planner.run[0]
    weigh_splices(state, row, forwards if run.reads_drafts > 0 else 0, price)
    length, value = _best_neural(state, row, forwards, price, run.cap)
    available = planner.rows.available[row]
    copied, copied_value = _best_ngram(state.ngram[row], available, price, run.cap)
    if value > copied_value:
        return length, int(state.splice_len[row, length]), copied_value
    return 0, copied, copied_value


@compiled
def weigh_splices(state: State, row: int, known: int, price: float) -> None:
    """Fill in what splices are worth at a price, and how long the best ones are.

    The matches behind the first `known` neural tokens are known; elsewhere what a splice is
    expected to bring stands for them.
    """
    neural, gain = state.neural[row], state.splice_expected[row] * SPLICE_WEIGHT
    gain = max(gain - SPLICE_TOKENS * price, 0.0)
    for k in range(1, LONGEST_NEURAL + 1):
        length, value = 0, neural[k] * gain
        if k <= known:
            survival, value = state.splice[row, k], 0.0
            while length < LONGEST_SPLICE:
                reached = neural[k] * survival[length + 1]
                if reached <= 0 or reached < price:
                    break
                value += reached - price
                length += 1
        state.splice_len[row, k], state.splice_value[row, k] = length, value


@compiled
def _best_ngram(survival: Array, available: int, price: float, cap: int) -> tuple[int, float]:
    """The length up to which every token is worth its price, and what the draft is worth."""
    value, length = 0.0, 0
    for j in range(1, min(available, cap, LONGEST_NGRAM) + 1):
        if survival[j] <= 0 or survival[j] < price:
            break
        value += survival[j] - price
        length = j
    return length, value


@compiled
def _best_neural(
    state: State, row: int, forwards: int, price: float, cap: int
) -> tuple[int, float]:
    """The neural length that is worth most with its splice, and its value; 0 where none pays."""
    length, best, value = 0, 0.0, 0.0
    survival, splice_value = state.neural[row], state.splice_value[row]
    for k in range(1, min(forwards, LONGEST_NEURAL) + 1):
        value += survival[k] - price
        with_splice = value + splice_value[k] if k < cap else value
        if with_splice > best:
            length, best = k, with_splice
    return length, best

"""What is verified: per row a source and a length, once the forwards are done.

A token is taken where its chance is worth its time. Where steps are padded to captured sizes,
tokens that fill a size are free and one more pays for a whole size: then the price is looked for
at which plans just fill one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import padded, padded_below
from adaspec.jit import compiled
from adaspec.policy.planner.curves import weigh_splice
from adaspec.policy.planner.forwards import BatchState, best_neural, is_worth_filling, weigh_ngram
from adaspec.policy.planner.memory import LONGEST_NEURAL
from adaspec.policy.planner.recalibration import note_expected

Ints = NDArray[np.int32]

_HALVINGS = 8


@compiled
def choose_lengths(state: BatchState, count: int, neural_len: Ints, ngram_len: Ints) -> None:
    """Per row: so many drafted tokens and what is spliced on, or copied ones, or nothing.

    What is expected of them is noted.
    """
    costs, full = state.costs, state.price
    running = state.rows.slots.shape[0]
    taken, value = _choose_at(state, count, full, neural_len, ngram_len)
    size = padded(costs, running + taken)
    if is_worth_filling(size - running - taken, running):
        best, best_price = value + full * (taken - size), full
        below = padded_below(costs, size)
        for target, low, high in ((size, 0.0, full), (below, full, 1.0)):
            if target < padded(costs, running):
                continue
            price = _price_that_fits(
                state, count, low, high, target - running, neural_len, ngram_len
            )
            taken, value = _choose_at(state, count, price, neural_len, ngram_len)
            net = value + price * taken - full * padded(costs, running + taken)
            if net > best:
                best, best_price = net, price
        _choose_at(state, count, best_price, neural_len, ngram_len)
    note_expected(state.memory, neural_len, ngram_len)


@compiled
def _price_that_fits(
    state: BatchState,
    count: int,
    low: float,
    high: float,
    room: float,
    neural_len: Ints,
    ngram_len: Ints,
) -> float:
    """The lowest price found between these two at which no more tokens are taken than `room`."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        taken, _ = _choose_at(state, count, middle, neural_len, ngram_len)
        if taken <= room:
            high = middle
        else:
            low = middle
    return high


@compiled
def _choose_at(
    state: BatchState, count: int, price: float, neural_len: Ints, ngram_len: Ints
) -> tuple[int, float]:
    """Every row's best draft at a price; how many tokens that is, and what they are worth."""
    memory = state.memory
    weigh_ngram(memory, state.rows, price, state.cap)
    tokens, total = 0, 0.0
    for row in range(state.rows.slots.shape[0]):
        if state.reads_drafts:
            for k in range(1, min(count, LONGEST_NEURAL) + 1):
                weigh_splice(memory, row, k, price)
        length, value = best_neural(memory, row, count, price, state.cap)
        neural_len[row] = ngram_len[row] = 0
        if value > memory.ngram_value[row]:
            neural_len[row], ngram_len[row] = length, memory.splice_len[row, length]
        else:
            ngram_len[row], value = memory.ngram_len[row], memory.ngram_value[row]
        tokens += neural_len[row] + ngram_len[row]
        total += value
    return tokens, total

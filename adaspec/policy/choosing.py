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
from adaspec.policy.desk import LONGEST_NEURAL, Desk
from adaspec.policy.expectation import weigh_splice
from adaspec.policy.planning import best_neural, matters, price_of, weigh_ngram
from adaspec.policy.trust import commit
from adaspec.predict.features import Rows

Array = NDArray[np.float64]
Ints = NDArray[np.int32]

_HALVINGS = 8


@compiled
def choose(
    desk: Desk,
    reads: bool,
    knobs: Array,
    rows: Rows,
    cost: Array,
    cap: int,
    count: int,
    neural_len: Ints,
    ngram_len: Ints,
) -> None:
    """Per row: so many drafted tokens and what is spliced on, or copied ones, or nothing.

    What is expected of them is noted.
    """
    full = price_of(desk, knobs, rows, cost)
    running = rows.slots.shape[0]
    taken, worth = _take(desk, reads, rows, full, cap, count, neural_len, ngram_len)
    size = padded(cost, running + taken)
    if matters(size - running - taken, running):
        best, at = worth + full * (taken - size), full
        below = padded_below(cost, size)
        for target, low, high in ((size, 0.0, full), (below, full, 1.0)):
            if target < padded(cost, running):
                continue
            price = _price_that_fits(
                desk, reads, rows, low, high, target - running, cap, count, neural_len, ngram_len
            )
            taken, worth = _take(desk, reads, rows, price, cap, count, neural_len, ngram_len)
            value = worth + price * taken - full * padded(cost, running + taken)
            if value > best:
                best, at = value, price
        _take(desk, reads, rows, at, cap, count, neural_len, ngram_len)
    commit(desk, neural_len, ngram_len)


@compiled
def _price_that_fits(
    desk: Desk,
    reads: bool,
    rows: Rows,
    low: float,
    high: float,
    room: float,
    cap: int,
    count: int,
    neural_len: Ints,
    ngram_len: Ints,
) -> float:
    """The lowest price found between these two at which no more tokens are taken than `room`."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        taken, _ = _take(desk, reads, rows, middle, cap, count, neural_len, ngram_len)
        if taken <= room:
            high = middle
        else:
            low = middle
    return high


@compiled
def _take(
    desk: Desk,
    reads: bool,
    rows: Rows,
    price: float,
    cap: int,
    count: int,
    neural_len: Ints,
    ngram_len: Ints,
) -> tuple[int, float]:
    """Every row's best draft at a price; how many tokens that is, and what they are worth."""
    weigh_ngram(desk, rows, price, cap)
    tokens, total = 0, 0.0
    for row in range(rows.slots.shape[0]):
        if reads:
            for k in range(1, min(count, LONGEST_NEURAL) + 1):
                weigh_splice(desk, row, k, price)
        length, worth = best_neural(desk, row, count, price, cap)
        neural_len[row] = ngram_len[row] = 0
        if worth > desk.ngram_value[row]:
            neural_len[row], ngram_len[row] = length, desk.splice_len[row, length]
        else:
            ngram_len[row], worth = desk.ngram_best[row], desk.ngram_value[row]
        tokens += neural_len[row] + ngram_len[row]
        total += worth
    return tokens, total

"""How many forwards of the neural drafter a batch runs.

A draft is worth its expected tokens less what verifying it costs in tokens at the running rate.
Forwards are shared by the batch: they are worth what all rows' best drafts gain by them together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, forward_s, padded, paid_forwards, token_price
from adaspec.jit import compiled
from adaspec.policy.planner.memory import LONGEST_NEURAL, LONGEST_NGRAM, Memory
from adaspec.policy.planner.rate import context_of, rate_of
from adaspec.predict.evidence_factors import EvidenceFactors, factor_bin
from adaspec.predict.features import RowFacts

Array = NDArray[np.float64]

_SHARES = np.array([0.0, 0.3, 0.6, 1.0])
"""Shares of the full price at which plans are weighed where tokens may be free."""
_MIN_FREE = 0.25
"""Free tokens a row below which nobody looks for a use of them."""


class BatchState(NamedTuple):
    """One step's batch, and everything else that its plan rests on."""

    memory: Memory
    rows: RowFacts
    costs: Costs
    factors: EvidenceFactors
    rate: float
    """Tokens per second that time is worth."""
    price: float
    """Tokens that the time of verifying one more token is worth."""
    context: int
    cap: int
    neural_cap: int
    reads_drafts: bool
    """Whether drafted tokens change what is expected."""


@compiled
def batch_state(
    memory: Memory,
    rows: RowFacts,
    knobs: Array,
    costs: Costs,
    factors: EvidenceFactors,
    cap: int,
    neural_cap: int,
    reads_drafts: bool,
) -> BatchState:
    """The batch at the running rate."""
    context = context_of(rows)
    rate = rate_of(memory, knobs, costs, rows.slots.shape[0], context)
    price = token_price(costs, rate)
    return BatchState(
        memory, rows, costs, factors, rate, price, context, cap, neural_cap, reads_drafts
    )


@compiled
def weigh_ngram(memory: Memory, rows: RowFacts, price: float, cap: int) -> None:
    """Each row's best n-gram length at this price per token, and what it is worth."""
    for row in range(rows.slots.shape[0]):
        value, length = 0.0, 0
        survival = memory.ngram[row]
        for j in range(1, min(rows.available[row], cap, LONGEST_NGRAM) + 1):
            if survival[j] < price:
                break
            value += survival[j] - price
            length = j
        memory.ngram_value[row], memory.ngram_len[row] = value, length


@compiled
def best_neural(memory: Memory, row: int, most: int, price: float, cap: int) -> tuple[int, float]:
    """The neural length up to `most` that is worth most, and its value; 0 where none pays."""
    length, best, value = 0, 0.0, 0.0
    survival, splice_value = memory.neural[row], memory.splice_value[row]
    for k in range(1, most + 1):
        value += survival[k] - price
        with_splice = value + splice_value[k] if k < cap else value
        if with_splice > best:
            length, best = k, with_splice
    return length, best


@compiled
def add_row_value(state: BatchState, row: int, most: int, price: float, gains: Array) -> None:
    """Add to `gains` what a row's best plan is worth without forwards, and more with each of them.

    There are 0 .. `most` forwards.
    """
    survival, splice_value = state.memory.neural[row], state.memory.splice_value[row]
    best, value = state.memory.ngram_value[row], 0.0
    gains[0] += best
    for k in range(1, most + 1):
        value += survival[k] - price
        with_splice = value + splice_value[k] if k < state.cap else value
        if with_splice > best:
            gains[k] += with_splice - best
            best = with_splice


@compiled
def add_foreseen_value(
    state: BatchState, row: int, count: int, most: int, price: float, gains: Array
) -> None:
    """Add to `gains` the same from `count` forwards on, the next two tokens seen before they count.

    Where a token turns out to be poor, the row falls back on its best plan of before: a forward is
    worth what its token yields, and what it tells. Beyond the second, what is told is not foreseen.
    """
    survival, splice_value = state.memory.neural[row], state.memory.splice_value[row]
    cap, factors = state.cap, state.factors
    first, second = count + 1, count + 2
    now, value = state.memory.ngram_value[row], 0.0
    for k in range(1, first):
        value += survival[k] - price
        now = max(now, value + splice_value[k] if k < cap else value)
    gains[count] += now
    if first > most or survival[first] <= 0:
        return
    belief = survival[first] / survival[count]
    first_factors, most_seen = factors.factors[factor_bin(belief, factors)], 1.0 / belief
    share = 1.0 / first_factors.shape[0]
    second_belief = survival[second] / survival[first] if second <= most else 0.0
    second_factors = factors.factors[factor_bin(second_belief, factors)]
    most_seen_then = 1.0 / second_belief if second_belief > 0 else 0.0
    for factor in first_factors:
        seen = min(factor, most_seen)
        first_value = value + survival[first] * seen - price
        best_first = max(
            now, first_value + splice_value[first] * seen if first < cap else first_value
        )
        gains[first] += (best_first - now) * share
        for second_factor in second_factors:
            both = seen * min(second_factor, most_seen_then)
            best, further = best_first, first_value
            for k in range(second, most + 1):
                # Later tokens survive less often, and what may be spliced on is worth less.
                if survival[k] * both <= price:
                    break
                further += survival[k] * both - price
                with_splice = further + splice_value[k] * both if k < cap else further
                if with_splice > best:
                    gains[k] += (with_splice - best) * share * share
                    best = with_splice


@compiled
def weigh_batch(state: BatchState, count: int, most: int, price: float) -> None:
    """Fill `batch_value`: all rows' best plans together with `count` .. `most` forwards at hand.

    Where drafts are read, what the next ones will tell is foreseen.
    """
    values = state.memory.batch_value
    values[: most + 1] = 0.0
    for row in range(state.rows.slots.shape[0]):
        if state.reads_drafts:
            add_foreseen_value(state, row, count, most, price, values)
        else:
            add_row_value(state, row, most, price, values)
    for forwards in range(1, most + 1):
        values[forwards] += values[forwards - 1]


@compiled
def weigh_plans(state: BatchState, count: int, most: int) -> None:
    """Fill `padded_value`: the same where the tokens that fill a padded batch are free.

    Whatever price plans are made at, what they are worth at it and the free room at it bound what
    plans can be worth; the least bound is met where the plans just fill the room.
    """
    memory, running = state.memory, state.rows.slots.shape[0]
    room = padded(state.costs, running) - running
    memory.padded_value[: most + 1] = np.inf
    shares = _SHARES if is_worth_filling(room, running) else _SHARES[-1:]
    for share in shares:
        price = share * state.price
        weigh_ngram(memory, state.rows, price, state.cap)
        weigh_batch(state, count, most, price)
        free = room * share * state.price
        if count == 0 and memory.batch_value[0] + free < memory.padded_value[0]:
            for row in range(running):
                memory.ngram_value_before[row] = memory.ngram_value[row] + free / running
        for k in range(count, most + 1):
            memory.padded_value[k] = min(memory.padded_value[k], memory.batch_value[k] + free)


@compiled
def is_worth_filling(free: float, running: int) -> bool:
    """Whether so many free tokens are worth looking for a use of them."""
    return free > 0 and free >= _MIN_FREE * running


@compiled
def best_forwards(state: BatchState) -> int:
    """How many forwards are worth most: the value of the rows' plans less the forwards' time."""
    if not state.rows.holds_neural.any():
        return 0
    most = min(state.neural_cap, LONGEST_NEURAL, state.cap)
    weigh_plans(state, 0, most)
    forward = state.rate * forward_s(state.costs, state.rows.slots.shape[0], state.context)
    best, best_value = 0, -np.inf
    for forwards in range(most + 1):
        value = state.memory.padded_value[forwards]
        value -= forward * paid_forwards(forwards, True)
        # More forwards at the same value: evidence that costs nothing.
        if value > best_value - 1e-12:
            best, best_value = forwards, max(value, best_value)
    return best


@compiled
def wants_forward(state: BatchState, count: int) -> bool:
    """Whether the batch gains by more forwards than `count`."""
    weigh_plans(state, count, state.neural_cap)
    value = state.memory.padded_value
    forward = state.rate * forward_s(state.costs, state.rows.slots.shape[0], state.context)
    now = value[count] - forward * paid_forwards(count, True)
    for forwards in range(count + 1, state.neural_cap + 1):
        if value[forwards] - forward * paid_forwards(forwards, True) > now:
            return True
    return False

"""What is verified: per row a source and a length, once the forwards are done.

A token is taken where its chance is worth its time. Where steps are padded to captured sizes,
tokens that fill a size are free and one more pays for a whole size: then the price is looked for
at which plans just fill one.

In an async engine the tokens are paid for before they are chosen (see `late`). Then the price is
looked for at which they just fit that budget; it is 0 where they do not fill it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import padded, padded_below
from adaspec.jit import compiled
from adaspec.policy.planner.curves import weigh_splice
from adaspec.policy.planner.forwards import BatchState, best_neural, is_worth_filling, weigh_ngram
from adaspec.policy.planner.late import REACH, Late
from adaspec.policy.planner.memory import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE, Memory
from adaspec.policy.planner.recalibration import note_expected

Ints = NDArray[np.int32]

_HALVINGS = 8
_BUDGET_HALVINGS = 12
_REFILLS = 8
"""How many rows at most get what a budget has left where no one price uses it up."""
_UNLIMITED = 1 << 30
_SPLICES_KNOWN, _SPLICES_EXPECTED, _NEURAL_CHOSEN = 0, 1, 2
"""What is known as a draft is chosen: the matches behind each neural token; none of them; or those
behind the neural lengths that were chosen, which therefore stay."""


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


@compiled
def choose_within(
    state: BatchState, late: Late, count: int, neural_len: Ints, ngram_len: Ints
) -> None:
    """Per row the most promising tokens that fit the budget, after `count` forwards.

    `use_budget` has to follow: where drafts are not read, once `predict_splices` has told what the
    match behind the neural tokens is worth. Until then no token is taken below the full price.
    """
    what = _SPLICES_KNOWN if state.reads_drafts else _SPLICES_EXPECTED
    _choose_drafts(state, what, count, state.price, neural_len, ngram_len)
    for row in range(state.rows.slots.shape[0]):
        late.wanted[row] = neural_len[row] + ngram_len[row]
    late.step[0].price = state.price
    if not state.reads_drafts:
        _fit_budget(state, late, what, count, state.price, neural_len, ngram_len)


@compiled
def use_budget(
    state: BatchState, late: Late, count: int, neural_len: Ints, ngram_len: Ints
) -> None:
    """Bring the choice to the price at which it just fits the budget; what is expected is noted."""
    memory, step, rows = state.memory, late.step[0], state.rows.slots.shape[0]
    what, least_price = _SPLICES_KNOWN, 0.0
    if not state.reads_drafts:
        what = _NEURAL_CHOSEN
        if step.price > state.price:
            least_price = step.price
        for row in range(rows):
            _, copied, _ = _best_draft(
                state, row, what, count, neural_len[row], state.price, _UNLIMITED
            )
            if neural_len[row] > 0:
                late.wanted[row] += copied
    _fit_budget(state, late, what, count, 0.0, neural_len, ngram_len)
    step.price = max(step.price, least_price)
    _spend_rest(state, late, what, count, neural_len, ngram_len)
    for row in range(rows):
        neural, copied = neural_len[row], ngram_len[row]
        if neural > 0:
            memory.splice_len[row, neural] = copied
            memory.splice_tokens[row, neural] = memory.splice[row, neural, 1 : copied + 1].sum()
        late.reach[row] = _reach(memory, row, neural, copied)
    note_expected(memory, neural_len, ngram_len)


@compiled
def _fit_budget(
    state: BatchState,
    late: Late,
    what: int,
    count: int,
    low: float,
    neural_len: Ints,
    ngram_len: Ints,
) -> None:
    """Choose at the lowest price from `low` on at which the budget holds all tokens."""
    step = late.step[0]
    step.price = low
    taken = _choose_drafts(state, what, count, low, neural_len, ngram_len)
    if taken <= step.budget:
        return
    # What an expected splice is worth is no part of a token's chance: above this, nothing is taken.
    high = 1.0 + LONGEST_SPLICE if what == _SPLICES_EXPECTED else 1.0
    for _ in range(_BUDGET_HALVINGS):
        middle = (low + high) / 2
        if _choose_drafts(state, what, count, middle, neural_len, ngram_len) <= step.budget:
            high = middle
        else:
            low = middle
    step.price = min(high, 1.0)
    _choose_drafts(state, what, count, high, neural_len, ngram_len)


@compiled
def _spend_rest(
    state: BatchState, late: Late, what: int, count: int, neural_len: Ints, ngram_len: Ints
) -> None:
    """Give what the budget has left to the rows that gain most by it, one after another."""
    rest = late.step[0].budget - neural_len.sum() - ngram_len.sum()
    for _ in range(_REFILLS):
        if rest <= 0:
            return
        best_row, best_neural_len, best_copied, best_gain = -1, 0, 0, 0.0
        for row in range(neural_len.shape[0]):
            own, fixed = neural_len[row] + ngram_len[row], neural_len[row]
            _, _, before = _best_draft(state, row, what, count, fixed, 0.0, own)
            neural, copied, value = _best_draft(state, row, what, count, fixed, 0.0, own + rest)
            if value - before > best_gain:
                best_row, best_neural_len, best_copied = row, neural, copied
                best_gain = value - before
        if best_row < 0:
            return
        rest += neural_len[best_row] + ngram_len[best_row] - best_neural_len - best_copied
        neural_len[best_row], ngram_len[best_row] = best_neural_len, best_copied


@compiled
def _choose_drafts(
    state: BatchState, what: int, count: int, price: float, neural_len: Ints, ngram_len: Ints
) -> int:
    """Every row's best draft at a price; how many tokens that is."""
    tokens = 0
    for row in range(state.rows.slots.shape[0]):
        neural, copied, _ = _best_draft(state, row, what, count, neural_len[row], price, _UNLIMITED)
        neural_len[row], ngram_len[row] = neural, copied
        tokens += neural + copied
    return tokens


@compiled
def _best_draft(
    state: BatchState, row: int, what: int, count: int, chosen: int, price: float, limit: int
) -> tuple[int, int, float]:
    """The row's best draft of at most `limit` tokens: neural ones, copied ones, what it is worth.

    `chosen` is its neural length where that is given.
    """
    memory = state.memory
    if what == _NEURAL_CHOSEN and chosen > 0:
        copied, value = _best_splice(memory, row, chosen, price, limit - chosen)
        return chosen, copied, value
    best, length, value = 0.0, 0, 0.0
    survival = memory.ngram[row]
    for j in range(1, min(state.rows.available[row], state.cap, LONGEST_NGRAM, limit) + 1):
        if survival[j] <= 0 or survival[j] < price:
            break
        value += survival[j] - price
        if value > best:
            best, length = value, j
    if what == _NEURAL_CHOSEN:
        return 0, length, best
    neural, value = 0, 0.0
    for k in range(1, min(count, LONGEST_NEURAL, limit) + 1):
        value += memory.neural[row, k] - price
        copied, more = 0, 0.0
        if k < state.cap and what == _SPLICES_KNOWN:
            copied, more = _best_splice(memory, row, k, price, limit - k)
        elif k < state.cap:
            more = memory.splice_value[row, k]
        if value + more > best:
            best, neural, length = value + more, k, copied
    return neural, length, best


@compiled
def _best_splice(
    memory: Memory, row: int, depth: int, price: float, limit: int
) -> tuple[int, float]:
    """How many of at most `limit` tokens to splice on behind `depth` neural ones, their value."""
    length, value = 0, 0.0
    for j in range(1, min(LONGEST_SPLICE, limit) + 1):
        reached = memory.neural[row, depth] * memory.splice[row, depth, j]
        if reached <= 0 or reached < price:
            break
        length, value = j, value + reached - price
    return length, value


@compiled
def _reach(memory: Memory, row: int, neural: int, copied: int) -> float:
    """P(the first REACH tokens of a draft are accepted); -1 where it copies nothing."""
    if copied == 0:
        return -1.0
    tokens = min(neural + copied, REACH)
    if neural == 0:
        return float(memory.ngram[row, tokens])
    if tokens <= neural:
        return float(memory.neural[row, tokens])
    return float(memory.neural[row, neural] * memory.splice[row, neural, tokens - neural])

"""Plans for a batch: the forwards of the drafter, and per row a source and a length.

A draft is worth its expected tokens less what verifying it costs in tokens at the running rate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import PER_TOKEN, forward_s, padded, paid_forwards
from adaspec.jit import compiled
from adaspec.policy.desk import LONGEST_NEURAL, LONGEST_NGRAM, Desk
from adaspec.policy.pace import context_of, rate_of
from adaspec.predict.features import Rows
from adaspec.predict.outlook import Outlook, outlook_of

Array = NDArray[np.float64]

_SHARES = np.array([0.0, 0.3, 0.6, 1.0])
"""Shares of the full price at which plans are weighed where tokens may be free."""
_FEW = 0.25
"""Free tokens a row below which nobody looks for a use of them."""


@compiled
def price_of(desk: Desk, knobs: Array, rows: Rows, cost: Array) -> float:
    """Tokens that the time of verifying one more is worth."""
    count = rows.slots.shape[0]
    return rate_of(desk, knobs, cost, count, context_of(rows)) * cost[PER_TOKEN]


@compiled
def weigh_ngram(desk: Desk, rows: Rows, price: float, cap: int) -> None:
    """Each row's best n-gram length at this price per token, and what it is worth."""
    for row in range(rows.slots.shape[0]):
        worth, length = 0.0, 0
        survives = desk.ngram[row]
        for j in range(1, min(rows.available[row], cap, LONGEST_NGRAM) + 1):
            if survives[j] < price:
                break
            worth += survives[j] - price
            length = j
        desk.ngram_value[row], desk.ngram_best[row] = worth, length


@compiled
def best_neural(desk: Desk, row: int, most: int, price: float, cap: int) -> tuple[int, float]:
    """The neural length up to `most` that is worth most, and its worth; 0 where none pays."""
    length, best, worth = 0, 0.0, 0.0
    survives, hope = desk.neural[row], desk.hope[row]
    for k in range(1, most + 1):
        worth += survives[k] - price
        found = worth + hope[k] if k < cap else worth
        if found > best:
            length, best = k, found
    return length, best


@compiled
def weigh_row(
    copied: float, survives: Array, hope: Array, most: int, price: float, cap: int, total: Array
) -> None:
    """Add to `total` what a row's best plan is worth with 0 .. `most` forwards at hand.

    `copied` is what its n-gram draft is worth.
    """
    best, worth = copied, 0.0
    total[0] += best
    for k in range(1, most + 1):
        worth += survives[k] - price
        best = max(best, worth + hope[k] if k < cap else worth)
        total[k] += best


@compiled
def foresee_row(
    copied: float,
    survives: Array,
    hope: Array,
    outlook: Outlook,
    count: int,
    most: int,
    price: float,
    cap: int,
    total: Array,
) -> None:
    """Add to `total` the same from `count` forwards on, the next two tokens seen before they count.

    Where a token turns out to be poor, the row falls back on its best plan of before: a forward is
    worth what its token yields, and what it tells. Beyond the second, what is told is not foreseen.
    """
    first, second = count + 1, count + 2
    now, worth = copied, 0.0
    for k in range(1, first):
        worth += survives[k] - price
        now = max(now, worth + hope[k] if k < cap else worth)
    total[count] += now
    if first > most or survives[first] <= 0:
        for k in range(first, most + 1):
            total[k] += now
        return
    belief = survives[first] / survives[count]
    factors = outlook.factors[outlook_of(belief, outlook)]
    share = 1.0 / factors.shape[0]
    belief_then = survives[second] / survives[first] if second <= most else 0.0
    factors_then = outlook.factors[outlook_of(belief_then, outlook)]
    for factor in factors:
        seen = min(factor, 1.0 / belief)
        reached = survives[first] * seen
        worth_then = worth + reached - price
        then = max(now, worth_then + hope[first] * seen if first < cap else worth_then)
        total[first] += then * share
        if reached <= 0 or belief_then <= 0:
            for k in range(second, most + 1):
                total[k] += then * share
            continue
        for factor_then in factors_then:
            both = seen * min(factor_then, 1.0 / belief_then)
            best, further = then, worth_then
            for k in range(second, most + 1):
                further += survives[k] * both - price
                best = max(best, further + hope[k] * both if k < cap else further)
                total[k] += best * share * share


@compiled
def weigh_batch(
    desk: Desk,
    outlook: Outlook,
    reads: bool,
    rows: Rows,
    count: int,
    most: int,
    price: float,
    cap: int,
) -> None:
    """Fill `desk.worth`: all rows' best plans together with `count` .. `most` forwards at hand.

    Where drafts are read, what the next ones will tell is foreseen.
    """
    copied, neural, hope, total = desk.ngram_value, desk.neural, desk.hope, desk.worth
    total[: most + 1] = 0.0
    for row in range(rows.slots.shape[0]):
        if reads:
            foresee_row(
                copied[row], neural[row], hope[row], outlook, count, most, price, cap, total
            )
        else:
            weigh_row(copied[row], neural[row], hope[row], most, price, cap, total)


@compiled
def weigh_plans(
    desk: Desk,
    outlook: Outlook,
    reads: bool,
    rows: Rows,
    count: int,
    most: int,
    price: float,
    cost: Array,
    cap: int,
) -> None:
    """Fill `desk.value`: the same where the tokens that fill a padded batch are free.

    Whatever price plans are made at, what they are worth at it and the free room at it bound what
    plans can be worth; the least bound is met where the plans just fill the room.
    """
    running = rows.slots.shape[0]
    room = padded(cost, running) - running
    desk.value[: most + 1] = np.inf
    shares = _SHARES if matters(room, running) else _SHARES[-1:]
    for share in shares:
        weigh_ngram(desk, rows, share * price, cap)
        weigh_batch(desk, outlook, reads, rows, count, most, share * price, cap)
        free = room * share * price
        if count == 0 and desk.worth[0] + free < desk.value[0]:
            for row in range(running):
                desk.alone[row] = desk.ngram_value[row] + free / running
        for k in range(count, most + 1):
            desk.value[k] = min(desk.value[k], desk.worth[k] + free)


@compiled
def matters(free: float, running: int) -> bool:
    """Whether so many free tokens are worth looking for a use of them."""
    return free > 0 and free >= _FEW * running


@compiled
def forwards_of(
    desk: Desk,
    outlook: Outlook,
    reads: bool,
    knobs: Array,
    rows: Rows,
    cost: Array,
    cap: int,
    neural_cap: int,
) -> int:
    """How many forwards are worth most: worth of the rows' plans less the forwards' time."""
    context = context_of(rows)
    count = rows.slots.shape[0]
    rate = rate_of(desk, knobs, cost, count, context)
    price = rate * cost[PER_TOKEN]
    holds = False
    for row in range(count):
        holds |= rows.holds_neural[row]
    if not holds:
        return 0
    most = min(neural_cap, LONGEST_NEURAL, cap)
    weigh_plans(desk, outlook, reads, rows, 0, most, price, cost, cap)
    best, best_value = 0, -np.inf
    for forwards in range(most + 1):
        value = desk.value[forwards]
        value -= rate * paid_forwards(cost, forwards, True) * forward_s(cost, context)
        # More forwards at the same value: evidence that costs nothing.
        if value > best_value - 1e-12:
            best, best_value = forwards, max(value, best_value)
    return best


@compiled
def goes_on(
    desk: Desk,
    outlook: Outlook,
    knobs: Array,
    rows: Rows,
    cost: Array,
    cap: int,
    count: int,
    most: int,
) -> bool:
    """Whether the batch gains by more forwards than `count`, up to `most`."""
    context = context_of(rows)
    rate = rate_of(desk, knobs, cost, rows.slots.shape[0], context)
    price = rate * cost[PER_TOKEN]
    weigh_plans(desk, outlook, True, rows, count, most, price, cost, cap)
    one = rate * forward_s(cost, context)
    now = desk.value[count] - one * paid_forwards(cost, count, True)
    for forwards in range(count + 1, most + 1):
        if desk.value[forwards] - one * paid_forwards(cost, forwards, True) > now:
            return True
    return False

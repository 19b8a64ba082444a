"""What is verified, a row per program: `device.lengths`, and the splices behind chosen lengths.

`choose` takes each row's best draft at one price. So that a batch fits a budget, `count_tokens`
first counts what it would take at all prices that halving might come to. One after the other would
take a launch for every halving; all at once would be 256 prices, so it is done in two rounds of 16.
"""

from __future__ import annotations

import triton
import triton.language as tl

from adaspec.device import lengths
from adaspec.device.kernels.curves import best_ngram, splice_survival, weighed
from adaspec.device.kernels.layout import (
    AGREE,
    AVAILABLE,
    FACTS,
    HISTORY,
    LENGTH,
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    MATCH,
    MATCH_FACTS,
    NEURAL_LANES,
    NGRAM_LANES,
    SEEN,
    SPLICE_LANES,
)
from adaspec.device.kernels.vectors import exact, lane

HIGHEST_PRICE = tl.constexpr(lengths.HIGHEST_PRICE)
ROUNDS = tl.constexpr(2)
LEVELS = tl.constexpr(lengths.HALVINGS // ROUNDS.value)
"""The halvings of a round."""
PRICES = tl.constexpr(1 << LEVELS.value)
"""The prices of a round, at all of which tokens are counted.

Number 0 is the lowest, number 1 halves the range from it to the highest, and number n is followed
by 2n where the batch fits, by 2n + 1 where it does not.
"""


@triton.jit
def _prices(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """A round's prices."""
    number = tl.arange(0, PRICES)
    level = tl.zeros_like(number)
    for step in tl.static_range(1, LEVELS):
        level += (number >= (1 << step)).to(tl.int32)
    first = low
    low += tl.zeros_like(number).to(tl.float64)
    high += tl.zeros_like(number).to(tl.float64)
    for step in tl.static_range(LEVELS - 1):
        goes_on = step < level
        bit = (number >> tl.maximum(level - 1 - step, 0)) & 1
        middle = (low + high) / 2
        high = tl.where(goes_on & (bit == 0), middle, high)
        low = tl.where(goes_on & (bit == 1), middle, low)
    return tl.where(number == 0, first, (low + high) / 2)


@triton.jit
def _narrowed(totals: tl.tensor, budget: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tuple:
    """The range of prices after a round's halvings."""
    number = tl.full((), 1, tl.int32)
    for _ in tl.static_range(LEVELS):
        fits = tl.load(totals + number) <= budget
        middle = (low + high) / 2
        low, high = tl.where(fits, low, middle), tl.where(fits, middle, high)
        number = 2 * number + tl.where(fits, 0, 1)
    return low, high


@triton.jit
def _price_that_fits(totals: tl.tensor, budget: tl.tensor, first: tl.tensor) -> tl.tensor:
    """The lowest price found at which no more tokens are taken."""
    low, high = first, exact(HIGHEST_PRICE)
    for step in tl.static_range(ROUNDS):
        low, high = _narrowed(totals + step * PRICES, budget, low, high)
    return tl.where(tl.load(totals) <= budget, first, high)


@triton.jit(
    do_not_specialize=["count"],
    do_not_specialize_on_alignment=["price", "budget"],
)
def count_tokens(
    rows: tl.tuple,
    price: tl.tensor,
    count: tl.tensor,
    cap: tl.tensor,
    totals: tl.tensor,
    budget: tl.tensor,
    reads_drafts: tl.constexpr,
    rounds: tl.constexpr,
) -> None:
    """Add to the totals how many tokens a row takes at each price, after so many rounds."""
    row = tl.program_id(0)
    low, high = tl.load(price), exact(HIGHEST_PRICE)
    fitting = tl.load(budget).to(tl.int64)
    for step in tl.static_range(rounds):
        low, high = _narrowed(totals + step * PRICES, fitting, low, high)
    prices = _prices(low, high)
    copies = tl.arange(0, NGRAM_LANES)[None, :]
    available = tl.load(rows.facts + row * FACTS + MATCH + AVAILABLE)
    ngram = tl.load(rows.ngram + row * NGRAM_LANES + copies)
    longest = tl.minimum(tl.minimum(available, cap), LONGEST_NGRAM)
    ends = (copies > 0) & ((copies > longest) | (ngram < prices[:, None]))
    copied = tl.min(tl.where(ends, copies, NGRAM_LANES), 1) - 1
    taken = (copies > 0) & (copies <= copied[:, None])
    copied_value = tl.sum(tl.where(taken, ngram - prices[:, None], 0.0), 1)

    lanes = row * NEURAL_LANES
    best = tl.zeros((PRICES,), tl.float64)
    tokens = tl.zeros((PRICES,), tl.int32)
    value = tl.zeros((PRICES,), tl.float64)
    spliced_at = tl.arange(0, SPLICE_LANES)
    depth = tl.full((), 1, tl.int32)
    while depth <= count:
        reached = tl.load(rows.neural + lanes + depth)
        value += reached - prices
        if reads_drafts:
            splice = tl.load(rows.splice + (lanes + depth) * SPLICE_LANES + spliced_at)
            joint = (reached * splice)[None, :]
            stops = (splice[None, :] <= 0) | (joint < prices[:, None])
            stops = stops & (spliced_at[None, :] > 0)
            spliced = tl.min(tl.where(stops, spliced_at[None, :], SPLICE_LANES), 1) - 1
            copied_too = (spliced_at[None, :] > 0) & (spliced_at[None, :] <= spliced[:, None])
            more = tl.sum(tl.where(copied_too, joint - prices[:, None], 0.0), 1)
        else:
            spliced = tl.zeros((PRICES,), tl.int32)
            more = tl.load(rows.splice_value + lanes + depth) + tl.zeros((PRICES,), tl.float64)
        whole = value + tl.where(depth < cap, more, 0.0)
        better = whole > best
        best = tl.where(better, whole, best)
        tokens = tl.where(better, depth + spliced, tokens)
        depth += 1
    tokens = tl.where((best > 0) & (best > copied_value), tokens, copied)
    tl.atomic_add(totals + rounds * PRICES + tl.arange(0, PRICES), tokens, sem="relaxed")


@triton.jit
def _best(
    rows: tl.tuple,
    row: tl.tensor,
    price: tl.tensor,
    count: tl.tensor,
    cap: tl.tensor,
    reads_drafts: tl.constexpr,
) -> tl.tuple:
    """A row's best draft at a price, and what splices behind each depth are then.

    In order: its neural and its n-gram length; by depth, a splice's length, the tokens expected of
    it, and its worth.
    """
    copies, depths = tl.arange(0, NGRAM_LANES), tl.arange(0, NEURAL_LANES)
    available = tl.load(rows.facts + row * FACTS + MATCH + AVAILABLE)
    ngram = tl.load(rows.ngram + row * NGRAM_LANES + copies)
    copied, copied_value = best_ngram(ngram, available, price, cap)
    lanes = row * NEURAL_LANES + depths
    neural = tl.load(rows.neural + lanes)
    worth = tl.load(rows.splice_value + lanes)
    spliced = tl.zeros((NEURAL_LANES,), tl.int64)
    tokens = tl.zeros((NEURAL_LANES,), tl.float64)
    if reads_drafts:
        places = lanes[:, None] * SPLICE_LANES + tl.arange(0, SPLICE_LANES)[None, :]
        length, tokens, worth = weighed(tl.load(rows.splice + places), neural, price)
        spliced = length.to(tl.int64)
    best, value = exact(0.0), exact(0.0)
    chosen = tl.full((), 0, tl.int32)
    depth = tl.full((), 1, tl.int32)
    while depth <= count:
        value += lane(neural, depth, NEURAL_LANES) - price
        whole = value + tl.where(depth < cap, lane(worth, depth, NEURAL_LANES), 0.0)
        better = whole > best
        best = tl.where(better, whole, best)
        chosen = tl.where(better, depth, chosen)
        depth += 1
    takes_neural = (best > 0) & (best > copied_value)
    behind = tl.sum(tl.where(depths == chosen, spliced, 0), 0)
    neural_len = tl.where(takes_neural, chosen, 0)
    ngram_len = tl.where(takes_neural, behind, copied.to(tl.int64))
    return neural_len, ngram_len, spliced, tokens, worth


@triton.jit(
    do_not_specialize=["count"],
    do_not_specialize_on_alignment=["price", "budget"],
)
def choose(
    rows: tl.tuple,
    price: tl.tensor,
    count: tl.tensor,
    cap: tl.tensor,
    totals: tl.tensor,
    budget: tl.tensor,
    neural_len: tl.tensor,
    ngram_len: tl.tensor,
    reads_drafts: tl.constexpr,
    is_within: tl.constexpr,
) -> None:
    """Fill in each row's best draft at a price, or at the one at which all fit the budget."""
    row = tl.program_id(0)
    reading = tl.load(price)
    if is_within:
        reading = _price_that_fits(totals, tl.load(budget).to(tl.int64), reading)
    lanes = row * NEURAL_LANES + tl.arange(0, NEURAL_LANES)
    neural, ngram, length, tokens, value = _best(rows, row, reading, count, cap, reads_drafts)
    if reads_drafts:
        weighs = (tl.arange(0, NEURAL_LANES) > 0) & (tl.arange(0, NEURAL_LANES) <= count)
        tl.store(rows.splice_len + lanes, length, mask=weighs)
        tl.store(rows.splice_tokens + lanes, tokens, mask=weighs)
        tl.store(rows.splice_value + lanes, value, mask=weighs)
    tl.store(neural_len + row, neural)
    tl.store(ngram_len + row, ngram)


@triton.jit(
    do_not_specialize=["count"],
    do_not_specialize_on_alignment=["neural_len", "ngram_len"],
)
def extend(
    rows: tl.tuple,
    count: tl.tensor,
    cap: tl.tensor,
    neural_len: tl.tensor,
    ngram_len: tl.tensor,
    neural_out: tl.tensor,
    ngram_out: tl.tensor,
    reads_drafts: tl.constexpr,
) -> None:
    """Fill in the chosen sources as long as they can draft, others where nothing was chosen."""
    row = tl.program_id(0)
    free_neural, free_ngram, _, _, _ = _best(rows, row, exact(0.0), count, cap, reads_drafts)
    neural, ngram = tl.load(neural_len + row).to(tl.int64), tl.load(ngram_len + row).to(tl.int64)
    copies, splices = tl.arange(0, NGRAM_LANES), tl.arange(0, SPLICE_LANES)
    curve = tl.load(rows.splice + (row * NEURAL_LANES + neural) * SPLICE_LANES + splices)
    spliced = tl.sum(((splices > 0) & (curve > 0)).to(tl.int64), 0)
    spliced = tl.minimum(spliced, cap - neural)
    curve = tl.load(rows.ngram + row * NGRAM_LANES + copies)
    copied = tl.sum(((copies > 0) & (curve > 0)).to(tl.int64), 0)
    available = tl.load(rows.facts + row * FACTS + MATCH + AVAILABLE)
    copied = tl.minimum(tl.minimum(copied, available), cap)
    without = tl.where(ngram > 0, copied, free_ngram)
    tl.store(ngram_out + row, tl.where(neural > 0, spliced, without))
    tl.store(neural_out + row, tl.where((neural > 0) | (ngram > 0), neural, free_neural))


@triton.jit(
    do_not_specialize=["count"],
    do_not_specialize_on_alignment=["slot_of", "factors", "price", "neural_len", "ngram_len"],
)
def splice(
    slot_of: tl.tensor,
    slots: tl.tuple,
    rows: tl.tuple,
    model: tl.tuple,
    factors: tl.tensor,
    price: tl.tensor,
    count: tl.tensor,
    cap: tl.tensor,
    neural_len: tl.tensor,
    ngram_len: tl.tensor,
    spliced_len: tl.tensor,
) -> None:
    """Fill in what is worth copying behind the chosen neural tokens, where drafts are not read."""
    row = tl.program_id(0)
    slot = tl.load(slot_of + row).to(tl.int64)
    depth = tl.load(neural_len + row)
    depths, copies = tl.arange(0, NEURAL_LANES), tl.arange(0, SPLICE_LANES)
    lanes = row * NEURAL_LANES + depths
    neural = tl.load(rows.neural + lanes)
    behind = rows.behind + (row * LONGEST_NEURAL + tl.maximum(depth - 1, 0)) * MATCH_FACTS
    unknown = tl.full((), -1, tl.int64)
    reading = tl.load(price)
    curve = splice_survival(
        model,
        rows.facts + row * FACTS,
        tl.load(rows.holds + row),
        slots.history + slot * HISTORY,
        (
            tl.load(behind + LENGTH),
            tl.load(behind + AGREE),
            tl.load(behind + SEEN),
            tl.load(behind + AVAILABLE),
        ),
        depth,
        lane(neural, depth, NEURAL_LANES),
        unknown,
        unknown,
        factors,
        reading,
        cap,
    )
    curves = tl.where(depths[:, None] == depth, curve[None, :], 0.0)
    tl.store(rows.splice + lanes[:, None] * SPLICE_LANES + copies[None, :], curves)
    length, tokens, _ = weighed(curves, neural, reading)
    weighs = (depths > 0) & (depths <= count)
    tl.store(rows.splice_len + lanes, length, mask=weighs)
    tl.store(rows.splice_tokens + lanes, tokens, mask=weighs)
    spliced = tl.sum(tl.where(weighs & (depths == depth), length, 0), 0).to(tl.int64)
    tl.store(spliced_len + row, tl.where(depth > 0, spliced, tl.load(ngram_len + row)))

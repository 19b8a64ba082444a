"""What is drafted, a row per program: `policy.planner.choose`, and splices behind it."""

from __future__ import annotations

import triton
import triton.language as tl

from adaspec.kernels.curves import best_ngram, splice_survival, weighed
from adaspec.kernels.layout import (
    AGREE,
    AVAILABLE,
    FACTS,
    LENGTH,
    LONGEST_NEURAL,
    MATCH,
    MATCH_FACTS,
    NEURAL_LANES,
    NGRAM_LANES,
    SEEN,
    SPLICE_LANES,
)
from adaspec.kernels.vectors import exact, lane


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

    In order: its neural and its n-gram length; by depth, a splice's length and its worth.
    """
    copies, depths = tl.arange(0, NGRAM_LANES), tl.arange(0, NEURAL_LANES)
    available = tl.load(rows.facts + row * FACTS + MATCH + AVAILABLE)
    ngram = tl.load(rows.ngram + row * NGRAM_LANES + copies)
    copied, copied_value = best_ngram(ngram, available, price, cap)
    lanes = row * NEURAL_LANES + depths
    neural = tl.load(rows.neural + lanes)
    worth = tl.load(rows.splice_value + lanes)
    spliced = tl.zeros((NEURAL_LANES,), tl.int64)
    if reads_drafts:
        places = lanes[:, None] * SPLICE_LANES + tl.arange(0, SPLICE_LANES)[None, :]
        length, worth = weighed(tl.load(rows.splice + places), neural, price)
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
    return neural_len, ngram_len, spliced, worth


@triton.jit(
    do_not_specialize=["count"],
    do_not_specialize_on_alignment=["price"],
)
def choose(
    rows: tl.tuple,
    price: tl.tensor,
    count: tl.tensor,
    cap: tl.tensor,
    neural_len: tl.tensor,
    ngram_len: tl.tensor,
    reads_drafts: tl.constexpr,
) -> None:
    """Fill in each row's best draft at a price."""
    row = tl.program_id(0)
    reading = tl.load(price)
    lanes = row * NEURAL_LANES + tl.arange(0, NEURAL_LANES)
    neural, ngram, length, value = _best(rows, row, reading, count, cap, reads_drafts)
    if reads_drafts:
        weighs = (tl.arange(0, NEURAL_LANES) > 0) & (tl.arange(0, NEURAL_LANES) <= count)
        tl.store(rows.splice_len + lanes, length, mask=weighs)
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
    free_neural, free_ngram, _, _ = _best(rows, row, exact(0.0), count, cap, reads_drafts)
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
    do_not_specialize_on_alignment=["factors", "price", "neural_len", "ngram_len"],
)
def splice(
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
    length, _ = weighed(curves, neural, reading)
    weighs = (depths > 0) & (depths <= count)
    tl.store(rows.splice_len + lanes, length, mask=weighs)
    spliced = tl.sum(tl.where(weighs & (depths == depth), length, 0), 0).to(tl.int64)
    tl.store(spliced_len + row, tl.where(depth > 0, spliced, tl.load(ngram_len + row)))

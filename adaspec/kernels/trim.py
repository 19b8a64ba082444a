"""Which drafted tokens a step verifies, in one program: as many as the budget holds.

The likeliest of all rows are taken, of equal ones those of the first rows. Survival never rises
along a draft, so what is taken of a row is its beginning. The least survival that is taken is found
digit by digit, as its bits are ordered as the numbers are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaspec.kernels.twins import device

DIGIT_BITS = tl.constexpr(8)
DIGITS = tl.constexpr(4)
DIGIT_LANES = tl.constexpr(1 << DIGIT_BITS.value)
LARGEST = tl.constexpr(0x7FFFFFFF)
LANES = 4096
"""The tokens that are looked at side by side."""


@triton.jit
def _ranks(
    survival: tl.tensor,
    slot_of: tl.tensor,
    scheduled: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    cap: tl.constexpr,
    lanes: tl.constexpr,
) -> tl.tensor:
    """(rows, lanes) the order of drafted tokens by their survival, -1 where none is scheduled."""
    column = tl.arange(0, lanes)[None, :]
    slot = tl.load(slot_of + row, mask=row < rows, other=0).to(tl.int64)
    length = tl.load(scheduled + row, mask=row < rows, other=0)
    is_drafted = (column < length[:, None]) & (column < cap)
    reached = tl.load(survival + slot[:, None] * cap + column, mask=is_drafted, other=0.0)
    # A number that is none, or below 0, is as good as 0.
    rank = tl.where(reached > 0, reached, 0.0).to(tl.int32, bitcast=True)
    return tl.where(is_drafted, rank, -1)


@device(
    "vllm.v2.trimming.trim_on_host",
    do_not_specialize=["rows", "budget", "scheduled_in_all", "ends"],
    do_not_specialize_on_alignment=["slot_of", "facts", "cu_num_logits", "query_start_loc"],
)
def trim(
    survival: tl.tensor,
    slot_of: tl.tensor,
    facts: tl.tensor,
    rows: tl.tensor,
    budget: tl.tensor,
    scheduled_in_all: tl.tensor,
    cu_num_logits: tl.tensor,
    query_start_loc: tl.tensor,
    ends: tl.tensor,
    bonus: tl.constexpr,
    cap: tl.constexpr,
    lanes: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Fill in where each row's logits and its tokens begin, and where the last ones end."""
    threshold, ties = tl.full((), -1, tl.int32), tl.full((), 0, tl.int32)
    if budget < scheduled_in_all:
        left, known = tl.full((), 0, tl.int32) + budget, tl.full((), 0, tl.int32)
        digits = tl.arange(0, DIGIT_LANES)
        for place in tl.static_range(DIGITS):
            shift = (DIGITS - 1 - place) * DIGIT_BITS
            counts = tl.zeros((DIGIT_LANES,), tl.int32)
            for start in range(0, rows, block):
                row = start + tl.arange(0, block)
                rank = _ranks(survival, slot_of, facts, row, rows, cap, lanes)
                rank = tl.reshape(rank, (block * lanes,))
                upper = rank >> shift
                counts += tl.histogram(
                    upper & (DIGIT_LANES - 1),
                    DIGIT_LANES,
                    mask=(rank >= 0) & ((upper >> DIGIT_BITS) == known),
                )
            # So many have this digit or a greater one.
            reaching = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
            digit = tl.max(tl.where(reaching >= left, digits, 0), 0)
            left -= tl.sum(tl.where(digits > digit, counts, 0), 0)
            known = (known << DIGIT_BITS) | digit
        threshold = tl.where(budget > 0, known, LARGEST)
        ties = tl.where(budget > 0, left, 0)

    logits_end, tokens_end = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    tl.store(cu_num_logits, logits_end)
    tl.store(query_start_loc, tokens_end)
    for start in range(0, rows, block):
        row = start + tl.arange(0, block)
        rank = _ranks(survival, slot_of, facts, row, rows, cap, lanes)
        above = tl.sum((rank > threshold).to(tl.int32), 1)
        equal = tl.sum(((rank == threshold) & (rank >= 0)).to(tl.int32), 1)
        earlier = tl.cumsum(equal, 0) - equal
        verified = above + tl.minimum(tl.maximum(ties - earlier, 0), equal)
        ties = tl.maximum(ties - tl.sum(equal, 0), 0)
        inside = row < rows
        others = tl.load(facts + rows + row, mask=inside, other=0)
        of_logits = tl.where(inside, verified + bonus, 0)
        of_tokens = tl.where(inside, verified + others, 0)
        at = row + 1
        tl.store(cu_num_logits + at, logits_end + tl.cumsum(of_logits, 0), mask=inside)
        tl.store(query_start_loc + at, tokens_end + tl.cumsum(of_tokens, 0), mask=inside)
        logits_end += tl.sum(of_logits, 0)
        tokens_end += tl.sum(of_tokens, 0)
    for start in range(rows + 1, ends, block):
        at = start + tl.arange(0, block)
        tl.store(query_start_loc + at, tl.zeros((block,), tl.int32) + tokens_end, mask=at < ends)


def launch(
    survival: Tensor,
    slots: Tensor,
    facts: Tensor,
    budget: int,
    scheduled: int,
    bonus: int,
    cu_num_logits: Tensor,
    query_start_loc: Tensor,
) -> None:
    """Fill in `cu_num_logits` and `query_start_loc` as `vllm.v2.trimming.trim_on_host` does.

    Of the `facts`, `scheduled` drafted tokens in all. Any sizes run the same compiled program.
    """
    cap = survival.shape[1]
    lanes = triton.next_power_of_2(cap)
    assert survival.is_contiguous() and facts.is_contiguous()
    assert facts.dtype == cu_num_logits.dtype == query_start_loc.dtype == torch.int32
    trim[(1,)](
        survival,
        slots,
        facts,
        facts.shape[1],
        budget,
        scheduled,
        cu_num_logits,
        query_start_loc,
        len(query_start_loc),
        bonus=bonus,
        cap=cap,
        lanes=lanes,
        block=max(LANES // lanes, 1),
        num_warps=8,
    )

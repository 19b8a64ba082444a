"""The chosen tokens, a row per program."""

from __future__ import annotations

import triton
import triton.language as tl

from adaspec.kernels.answers import IN_ANSWERS, token_in_either
from adaspec.kernels.layout import (
    CONTEXT,
    FACTS,
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    LONGEST_SPLICE,
    MATCH,
    MATCH_FACTS,
    NEURAL_LANES,
    NGRAM_LANES,
    SPLICE_LANES,
    START,
)
from adaspec.kernels.scan import token_at


@triton.jit(
    do_not_specialize=["count"],
    do_not_specialize_on_alignment=["slot_of", "neural_len", "ngram_len"],
)
def propose(
    slot_of: tl.tensor,
    tokens: tl.tensor,
    tokens_stride: tl.tensor,
    rows: tl.tuple,
    count: tl.tensor,
    cap: tl.tensor,
    neural_len: tl.tensor,
    ngram_len: tl.tensor,
    proposed: tl.tensor,
    survival: tl.tensor,
    from_answers: tl.tensor,
    memory: tl.tuple,
    cap_lanes: tl.constexpr,
    remembers: tl.constexpr,
) -> None:
    """Fill in each row's tokens and their survival."""
    row = tl.program_id(0)
    slot = tl.load(slot_of + row).to(tl.int64)
    facts, drafts = rows.facts + row * FACTS, rows.drafts + row * LONGEST_NEURAL
    known, start = tl.load(facts + CONTEXT), tl.load(facts + MATCH + START)
    neural, ngram = tl.load(neural_len + row).to(tl.int64), tl.load(ngram_len + row).to(tl.int64)

    drafted = (neural > 0) & (count > 0)
    at = row * LONGEST_NEURAL + tl.maximum(neural - 1, 0)
    behind = tl.load(rows.behind + at * MATCH_FACTS + START, mask=drafted, other=0)
    start = tl.where(drafted, behind, start)
    column = tl.arange(0, cap_lanes)
    places = tl.where(column < neural, known + column, start + column - neural)
    newest = tl.load(drafts + tl.maximum(count - 1, 0))
    token = token_at(tokens + slot * tokens_stride, known, drafts, newest, count, places, True)
    if remembers:
        token = token_in_either(memory, token, places)
    tl.store(from_answers + row, (start >= IN_ANSWERS) & (ngram > 0))
    inside, lanes = column < neural + ngram, column < cap
    token = tl.where(inside, tl.maximum(token, -1), -1)
    tl.store(proposed + row * cap + column, token, mask=lanes)

    curve = rows.neural + row * NEURAL_LANES
    copy = rows.ngram + row * NGRAM_LANES
    splice = rows.splice + (row * NEURAL_LANES + neural) * SPLICE_LANES
    length = column + 1
    more = tl.minimum(tl.maximum(length - neural, 0), LONGEST_SPLICE)
    spliced = tl.where(length > neural, tl.load(splice + more), 1.0)
    reached = tl.load(curve + tl.minimum(length, neural)) * spliced
    copied = tl.load(copy + tl.minimum(length, LONGEST_NGRAM))
    reached = tl.where(inside, tl.where(neural > 0, reached, copied), 0.0)
    tl.store(survival + row * cap + column, reached, mask=lanes)

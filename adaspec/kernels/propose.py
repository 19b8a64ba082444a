"""What is drafted, a row per program: `policy.choice`, splices behind it, its tokens."""

from __future__ import annotations

import triton.language as tl

from adaspec.kernels.layout import (
    ALL,
    AVAILABLE,
    CONTEXT,
    CURVES,
    EXPECTED_AT,
    FACTS,
    GAINS,
    LAST,
    LONGEST_NEURAL,
    LONGEST_NGRAM,
    LONGEST_SPLICE,
    MATCH,
    MATCH_FACTS,
    NEURAL,
    NEURAL_AT,
    NEURAL_LANES,
    NGRAM,
    NGRAM_AT,
    NGRAM_LANES,
    ONE_MORE,
    PRICE,
    SPLICE,
    SPLICE_AT,
    SPLICE_LANES,
    SPLICE_MATCHES,
    SPLICE_TOKENS,
    SPLICE_WEIGHT,
    START,
    device,
    lane,
    match_at,
)
from adaspec.kernels.model import correct, correct_splices, predict_splice, weigh_splices
from adaspec.kernels.scan import token_at, token_in_either


@device("policy.choice.best_copy")
def best_copy(curve: tl.tensor, available: tl.tensor, price: tl.tensor, cap: tl.tensor) -> tl.tuple:
    """The best length of a copy at a price, and what it is worth."""
    copies = tl.arange(0, NGRAM_LANES)
    longest = tl.minimum(tl.minimum(available, cap), LONGEST_NGRAM)
    ends = (copies > 0) & ((copies > longest) | (curve <= 0) | (curve < price))
    count = tl.min(tl.where(ends, copies, NGRAM_LANES), 0) - 1
    taken = (copies > 0) & (copies <= count)
    return count, tl.sum(tl.where(taken, curve - price, 0.0), 0)


@device("policy.choice.best_draft", "policy.choice.best_neural")
def best_draft(
    curves: tl.tensor,
    ngram: tl.tensor,
    neural: tl.tensor,
    available: tl.tensor,
    price: tl.tensor,
    factor: tl.tensor,
    count: tl.tensor,
    cap: tl.tensor,
    reads_drafts: tl.constexpr,
) -> tl.tuple:
    """A row's best draft at a price: its neural and its copied length, and what forwards bring:
    the last one that ran, one more, and all that ran. `factor` is that of splices."""
    depths, splices = tl.arange(0, NEURAL_LANES), tl.arange(0, SPLICE_LANES)
    copied, copied_value = best_copy(ngram, available, price, cap)
    # What no forward has shown yet is worth what it is expected to bring.
    gain = tl.load(curves + EXPECTED_AT) * factor * SPLICE_WEIGHT - SPLICE_TOKENS * price
    worth = neural * tl.maximum(gain, 0.0)
    spliced = tl.zeros((NEURAL_LANES,), tl.int32)
    if reads_drafts:
        splice = tl.load(curves + SPLICE_AT + depths[:, None] * SPLICE_LANES + splices[None, :])
        known, known_worth = weigh_splices(correct_splices(splice, factor), neural, price)
        spliced = tl.where(depths <= count, known, spliced)
        worth = tl.where(depths <= count, known_worth, worth)
    zero = tl.zeros((), tl.float64)
    fewer, best, value = zero, zero, zero
    chosen = tl.full((), 0, tl.int32)
    depth = tl.full((), 1, tl.int32)
    while depth <= count:
        fewer = best
        value += lane(neural, depth, NEURAL_LANES) - price
        whole = value + tl.where(depth < cap, lane(worth, depth, NEURAL_LANES), 0.0)
        better = whole > best
        best = tl.where(better, whole, best)
        chosen = tl.where(better, depth, chosen)
        depth += 1
    value += lane(neural, depth, NEURAL_LANES) - price
    whole = value + tl.where(depth < cap, lane(worth, depth, NEURAL_LANES), 0.0)
    more = tl.where(depth <= LONGEST_NEURAL, tl.maximum(best, whole), best)
    takes_neural = (best > 0) & (best > copied_value)
    behind = tl.sum(tl.where(depths == chosen, spliced, 0), 0)
    neural_len = tl.where(takes_neural, chosen, 0)
    ngram_len = tl.where(takes_neural, behind, copied)
    fewer = tl.maximum(fewer - copied_value, 0.0)
    ran = tl.maximum(best - copied_value, 0.0)
    more = tl.maximum(more - copied_value, 0.0)
    return neural_len.to(tl.int64), ngram_len.to(tl.int64), ran - fewer, more - ran, ran


@device(
    "policy.choice.draft_rows",
    "policy.choice.extend",
    do_not_specialize=["count"],
    do_not_specialize_on_alignment=["slot_of", "settings"],
)
def propose(
    slot_of: tl.tensor,
    tokens: tl.tensor,
    tokens_stride: tl.tensor,
    rows: tl.tuple,
    ring: tl.tuple,
    model: tl.tuple | None,
    settings: tl.tensor,
    count: tl.tensor,
    cap: tl.tensor,
    slots: tl.tensor,
    lengths: tl.tensor,
    gain: tl.tensor,
    proposed: tl.tensor,
    survival: tl.tensor,
    cap_lanes: tl.constexpr,
    lengths_given: tl.constexpr,
    reads_drafts: tl.constexpr,
    has_ring: tl.constexpr,
) -> None:
    """Fill in each row's lengths, its tokens and their survival.

    Where lengths are given, they are drafted, and certain.
    """
    row = tl.program_id(0)
    slot = tl.load(slot_of + row).to(tl.int64)
    facts, curves = rows.facts + row * FACTS, rows.curves + row * CURVES
    drafts = rows.drafts + row * LONGEST_NEURAL
    known, start = tl.load(facts + CONTEXT), tl.load(facts + MATCH + START)
    available = tl.load(facts + MATCH + AVAILABLE)
    depths, splices = tl.arange(0, NEURAL_LANES), tl.arange(0, SPLICE_LANES)
    copies = tl.arange(0, NGRAM_LANES)
    of_head, of_copy = tl.load(curves + NEURAL_AT + depths), tl.load(curves + NGRAM_AT + copies)
    splice = tl.load(curves + SPLICE_AT + splices)
    if lengths_given:
        neural, ngram = tl.load(lengths + row), tl.load(lengths + slots + row)
    else:
        reached_by_head = of_head
        of_head = correct(of_head, tl.load(settings + NEURAL), NEURAL_LANES)
        of_copy = correct(of_copy, tl.load(settings + NGRAM), NGRAM_LANES)
        price, factor = tl.load(settings + PRICE), tl.load(settings + SPLICE)
        neural, ngram, last, one_more, ran = best_draft(
            curves, of_copy, of_head, available, price, factor, count, cap, reads_drafts
        )
        tl.store(gain + row * GAINS + LAST, last)
        tl.store(gain + row * GAINS + ONE_MORE, one_more)
        tl.store(gain + row * GAINS + ALL, ran)
        # Where nothing is worth its price, what there is.
        nothing = tl.zeros((), tl.float64)
        free, _, _, _, _ = best_draft(
            curves, of_copy, of_head, available, nothing, factor, count, cap, reads_drafts
        )
        neural = tl.where((neural == 0) & (ngram == 0), free, neural)
        splice = tl.load(curves + SPLICE_AT + neural * SPLICE_LANES + splices)
        if not reads_drafts:
            # The match behind the drafted tokens is looked at only now.
            splice_match = facts + SPLICE_MATCHES + tl.maximum(neural - 1, 0) * MATCH_FACTS
            unknown = tl.full((), -1, tl.int64)
            splice = predict_splice(
                model,
                facts,
                tl.load(rows.holds + row),
                match_at(splice_match),
                neural,
                lane(reached_by_head, neural, NEURAL_LANES),
                unknown,
                unknown,
                cap,
            )
        splice = correct(splice, factor, SPLICE_LANES)
        # Each source as far as it goes.
        spliced = tl.sum(((splices > 0) & (splice > 0)).to(tl.int64), 0)
        spliced = tl.minimum(spliced, cap - neural)
        copied = tl.sum(((copies > 0) & (of_copy > 0)).to(tl.int64), 0)
        copied = tl.minimum(tl.minimum(copied, available), cap)
        ngram = tl.where(neural > 0, spliced, copied)
        tl.store(lengths + row, neural)
        tl.store(lengths + slots + row, ngram)

    drafted = (neural > 0) & (count > 0)
    splice_match = facts + SPLICE_MATCHES + tl.maximum(neural - 1, 0) * MATCH_FACTS
    start = tl.where(drafted, tl.load(splice_match + START, mask=drafted, other=0), start)
    column = tl.arange(0, cap_lanes)
    places = tl.where(column < neural, known + column, start + column - neural)
    newest = tl.load(drafts + tl.maximum(count - 1, 0))
    token = token_at(tokens + slot * tokens_stride, known, drafts, newest, count, places, True)
    if has_ring:
        token = token_in_either(ring, token, places)
    inside, lanes = column < neural + ngram, column < cap
    token = tl.where(inside, tl.maximum(token, -1), -1)
    tl.store(proposed + row * cap + column, token, mask=lanes)

    length = column + 1
    more = tl.minimum(tl.maximum(length - neural, 0), LONGEST_SPLICE).to(tl.int32)
    behind_neural = tl.where(length > neural, tl.gather(splice, more, 0), 1.0)
    of_neural = tl.gather(of_head, tl.minimum(length, neural).to(tl.int32), 0)
    reached = of_neural * behind_neural
    copied_too = tl.gather(of_copy, tl.minimum(length, LONGEST_NGRAM).to(tl.int32), 0)
    reached = tl.where(inside, tl.where(neural > 0, reached, copied_too), 0.0)
    if lengths_given:
        reached = inside.to(tl.float64)
    tl.store(survival + row * cap + column, reached, mask=lanes)

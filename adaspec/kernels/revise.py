"""What a forward of the drafter changes, a row per program, behind the scan.

That is what `predict.prediction.predict_behind` predicts, with the curves of `policy.choice`.
"""

from __future__ import annotations

import triton.language as tl

from adaspec.kernels.curves import copy_chance, in_proportion, predict_splice
from adaspec.kernels.layout import (
    CANDIDATE,
    CANDIDATE_AT,
    CONTEXT,
    CURVES,
    FACTS,
    FEATURE_LANES,
    HEAD_LANES,
    LEAST_AT,
    LONGEST_NEURAL,
    MATCH,
    MATCH_FACTS,
    MATCHING_TOKENS,
    NEURAL_AT,
    NEURAL_LANES,
    NGRAM_AT,
    NGRAM_LANES,
    SPLICE_AT,
    SPLICE_LANES,
    SPLICE_MATCHES,
)
from adaspec.kernels.network import predict
from adaspec.kernels.scan import better_match, joined_match
from adaspec.kernels.twins import device
from adaspec.kernels.vectors import lane, noted, side_by_side
from adaspec.predict import model

ACCEPTED_NEXT = tl.constexpr(model.ACCEPTED_NEXT)
NGRAM_AFTER = tl.constexpr(model.NGRAM_AFTER)


@device(
    "predict.prediction.predict_behind",
    "predict.features.evidence_features",
    "policy.choice.fill_curves",
    do_not_specialize=["depth"],
    do_not_specialize_on_alignment=[
        "slot_of",
        "newest",
        "newest_stride",
        "confidences",
        "row_stride",
    ],
)
def revise(
    slot_of: tl.tensor,
    tokens: tl.tensor,
    tokens_stride: tl.tensor,
    newest: tl.tensor,
    newest_stride: tl.tensor,
    confidences: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    depth: tl.tensor,
    model: tl.tuple,
    rows: tl.tuple,
    ring: tl.tuple,
    cap: tl.tensor,
    reads_drafts: tl.constexpr,
    splits: tl.constexpr,
    has_ring: tl.constexpr,
) -> None:
    """Take in the token that each row drafted at a depth, its confidence and the scan's match."""
    row = tl.program_id(0)
    slot = tl.load(slot_of + row).to(tl.int64)
    facts, drafts = rows.facts + row * FACTS, rows.drafts + row * LONGEST_NEURAL
    known = tl.load(facts + CONTEXT)
    token = tl.load(newest + row * newest_stride).to(tl.int32)
    text = tokens + slot * tokens_stride
    match = joined_match(rows.keys, row, text, known, drafts, token, depth, True, splits)
    if has_ring:
        match = better_match(match, ring, rows.ring_keys, row, splits)
    length, start, votes, occurrences, available, follower = match
    holds = tl.load(rows.holds + row)
    drafted = holds & (token >= 0)
    length = tl.where(drafted, length, 0)
    votes, occurrences = tl.where(drafted, votes, 0), tl.where(drafted, occurrences, 0)
    available = tl.where(drafted, available, 0)
    follower = tl.where(drafted, follower, -1)
    start = tl.where(drafted, start, -1)
    match = length, start, votes, occurrences, available, follower
    noted(facts + SPLICE_MATCHES + (depth - 1) * MATCH_FACTS, match)
    tl.store(drafts + depth - 1, token)
    if reads_drafts:
        depths, copies = tl.arange(0, NEURAL_LANES), tl.arange(0, NGRAM_LANES)
        curves = rows.curves + row * CURVES
        neural = tl.load(curves + NEURAL_AT + depths)
        ngram = tl.load(curves + NGRAM_AT + copies)
        reached = lane(neural, depth - 1, NEURAL_LANES)
        before = lane(neural, depth, NEURAL_LANES)
        match_length = tl.load(facts + MATCH)

        matching_tokens = tl.load(facts + MATCHING_TOKENS)
        at = tl.minimum(depth, CANDIDATE) - 1
        matches_copy = (
            (depth <= CANDIDATE) & (token >= 0) & (tl.load(facts + CANDIDATE_AT + at) == token)
        )
        goes_on = matches_copy & (matching_tokens == depth - 1)
        matching_now = tl.where(goes_on, depth, matching_tokens)
        least = curves + LEAST_AT
        least_logprob, least_margin = tl.load(least), tl.load(least + 1)
        confidence = confidences + row * row_stride
        logprob, margin = tl.load(confidence), tl.load(confidence + column_stride)
        found, has_splice_match = match_length > 0, length > 0
        unknown = float("nan")
        expected = tl.where(reached > 0, before / tl.where(reached > 0, reached, 1.0), 0.0)
        evidence = (
            depth,
            expected,
            logprob,
            margin,
            tl.load(confidence + 2 * column_stride),
            tl.where(found, (matching_now >= depth).to(tl.float64), unknown),
            tl.where(found, matching_now.to(tl.float64), unknown),
            match_length,
            lane(ngram, 1, NGRAM_LANES),
            reached,
            least_logprob,
            least_margin,
            length,
            tl.where(has_splice_match, votes.to(tl.float64), unknown),
            tl.where(has_splice_match, occurrences.to(tl.float64), unknown),
        )
        nothing = tl.zeros((FEATURE_LANES,), tl.float32)
        predicted = predict(model.evidence, side_by_side(evidence, nothing))
        # What was not drafted is not accepted.
        accepted = tl.where(token >= 0, lane(predicted, ACCEPTED_NEXT, HEAD_LANES), 0.0)
        after = reached * accepted
        revised = tl.where(depths >= depth, in_proportion(neural, after, before), neural)
        neural = tl.where(holds, revised, neural)

        first = copy_chance(lane(predicted, NGRAM_AFTER, HEAD_LANES))
        revised = in_proportion(ngram, first, lane(ngram, 1, NGRAM_LANES))
        ngram = tl.where(holds & found & (copies > 0), revised, ngram)
        tl.store(curves + NEURAL_AT + depths, neural)
        tl.store(curves + NGRAM_AT + copies, ngram)
        tl.store(facts + MATCHING_TOKENS, matching_now, mask=holds)
        # What is not known is no less.
        lower = (logprob < least_logprob) | (least_logprob != least_logprob)
        tl.store(least, logprob, mask=holds & lower)
        lower = (margin < least_margin) | (least_margin != least_margin)
        tl.store(least + 1, margin, mask=holds & lower)

        spliced = predict_splice(
            model,
            facts,
            holds,
            match,
            depth,
            lane(neural, depth, NEURAL_LANES),
            token,
            follower,
            cap,
        )
        places = SPLICE_AT + depths[:, None] * SPLICE_LANES + tl.arange(0, SPLICE_LANES)[None, :]
        splice = tl.load(curves + places)
        # A copy that says what this token says is had by keeping it; another one is right only
        # where this token is wrong.
        wrong = tl.where(depth > 1, 1.0 - accepted, 1.0)
        splice = tl.where(depths[:, None] == depth - 1, splice * wrong, splice)
        splice = tl.where(depths[:, None] == depth, spliced[None, :], splice)
        tl.store(curves + places, splice)

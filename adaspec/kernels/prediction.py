"""What is predicted of rows, a row per program, as `predict.model` does it, behind the scan.

`begin` starts a step with the match, the features, and what they predict: what
`HostPredictor.begin` does behind the scan. `revise` takes in what a forward of the drafter changes.
"""

from __future__ import annotations

import triton.language as tl

from adaspec.kernels.layout import (
    CANDIDATE,
    CANDIDATE_AT,
    CONTEXT,
    CURVES,
    EXPECTED_AT,
    FACTS,
    FEATURE_LANES,
    HEAD_LANES,
    IN_RING,
    LEAST_AT,
    LONGEST_NEURAL,
    LONGEST_SPLICE,
    MATCH,
    MATCH_FACTS,
    MATCHING_TOKENS,
    NEURAL_AT,
    NEURAL_LANES,
    NGRAM_AT,
    NGRAM_LANES,
    POSITION,
    SPLICE_AT,
    SPLICE_LANES,
    SPLICE_MATCHES,
    device,
    lane,
    noted,
    side_by_side,
)
from adaspec.kernels.model import (
    LEVELS,
    LOG_COUNT,
    MEAN,
    VALUES_PER_LEVEL,
    copy_chance,
    in_proportion,
    predict,
    predict_splice,
    survival,
    values_of,
)
from adaspec.kernels.scan import better_match, joined_match, token_at, token_in_either
from adaspec.predict import features, model

TABLES_AT = tl.constexpr(len(features.BEFORE_FEATURES) - LEVELS.value * VALUES_PER_LEVEL.value)
"""Where the features of the token tables begin."""
NGRAM_FIRST, NGRAM_MORE = tl.constexpr(model.NGRAM_FIRST), tl.constexpr(model.NGRAM_MORE)
NEURAL_FIRST, NEURAL_MORE = tl.constexpr(model.NEURAL_FIRST), tl.constexpr(model.NEURAL_MORE)
SPLICE_GAIN = tl.constexpr(model.SPLICE_GAIN)


@device("predict.model.predict_before", "predict.features.before_features")
def begin(
    batch: tl.tuple,
    tokens_stride: tl.tensor,
    model: tl.tuple,
    tables: tl.tuple,
    rows: tl.tuple,
    ring: tl.tuple,
    emitted_tokens: tl.tensor,
    cap: tl.tensor,
    splits: tl.constexpr,
    emitted_lanes: tl.constexpr,
    has_ring: tl.constexpr,
) -> None:
    """Take in the scan's match; fill in each row's facts, and what is expected of its drafts."""
    row = tl.program_id(0)
    slot = tl.load(batch.slots + row).to(tl.int64)
    text = batch.tokens + slot * tokens_stride
    known = tl.load(batch.context_tokens + slot).to(tl.int64)
    prompt = tl.load(batch.prompt_tokens + slot).to(tl.int64)
    sampled = tl.load(batch.sampled + row).to(tl.int64)
    may_draft = tl.load(batch.holds_neural + slot)

    match = joined_match(rows.keys, row, text, known, text, 0, 0, False, splits)
    if has_ring:
        match = better_match(match, ring, rows.ring_keys, row, splits)
    length, start, votes, occurrences, available, _ = match
    lanes = tl.arange(0, CANDIDATE)
    places = tl.where(start < 0, -CANDIDATE, start) + lanes
    candidate = token_at(text, known, text, 0, 0, places, False)
    if has_ring:
        candidate = token_in_either(ring, candidate, places)
        candidate = tl.where(lanes < available, candidate, -1)
    candidate = tl.maximum(candidate, -1)
    last = tl.maximum(token_at(text, known, text, 0, 0, known - 1, False), -1)
    second = tl.maximum(token_at(text, known, text, 0, 0, known - 2, False), -1)
    third = tl.maximum(token_at(text, known, text, 0, 0, known - 3, False), -1)
    position = known - prompt

    facts = rows.facts + row * FACTS
    tl.store(facts + CONTEXT, known)
    tl.store(facts + POSITION, position)
    noted(facts + MATCH, match)
    tl.store(facts + CANDIDATE_AT + lanes, candidate)
    tl.store(facts + MATCHING_TOKENS, 0)
    tl.store(rows.holds + row, may_draft)
    tl.store(rows.decides + row, sampled > 0)
    column = tl.arange(0, emitted_lanes)
    token = token_at(text, known, text, 0, 0, known - sampled + column, False)
    token = tl.where(column < sampled, tl.maximum(token, -1), -1)
    tl.store(emitted_tokens + row * (cap + 1) + column, token, mask=column <= cap)

    found = length > 0
    # A match in the ring counts as one at the prompt's first token.
    place = tl.where(start < IN_RING, start, 0)
    back, in_prompt = tl.log((known - place).to(tl.float64)), (place < prompt).to(tl.float64)
    first = tl.sum(tl.where(lanes == 0, candidate, 0), 0)
    after = tl.sum(tl.where(lanes == 1, candidate, 0), 0)
    mean, count, depth = values_of(tables, last, second, third, first, after)
    at = tl.arange(0, FEATURE_LANES)
    of_tables = (at >= TABLES_AT) & (at < TABLES_AT + VALUES_PER_LEVEL * LEVELS)
    column = tl.where(of_tables, at - TABLES_AT, 0)
    level, value = column // VALUES_PER_LEVEL, column % VALUES_PER_LEVEL
    x = tl.where(value == MEAN, tl.gather(mean, level, 0), tl.gather(depth, level, 0))
    x = tl.where(value == LOG_COUNT, tl.gather(count, level, 0), x)
    unknown, copied = float("nan"), tl.minimum(available, 64).to(tl.float64)
    before = (
        length,
        tl.where(found, votes.to(tl.float64), unknown),
        tl.where(found, occurrences.to(tl.float64), unknown),
        tl.where(found, back, unknown),
        tl.where(found, copied, unknown),
        tl.where(found, in_prompt, unknown),
        position,
        tl.log(known.to(tl.float64)),
        prompt,
    )
    predicted = predict(model.network, side_by_side(before, tl.where(of_tables, x, 0.0)))
    chance = copy_chance(lane(predicted, NGRAM_FIRST, HEAD_LANES))
    chance = tl.where(found, chance, 0.0)
    ngram = survival(model.ngram, chance, lane(predicted, NGRAM_MORE, HEAD_LANES), NGRAM_LANES)
    chance = tl.where(may_draft, lane(predicted, NEURAL_FIRST, HEAD_LANES), 0.0)
    neural = survival(model.neural, chance, lane(predicted, NEURAL_MORE, HEAD_LANES), NEURAL_LANES)
    gain = tl.exp(lane(predicted, SPLICE_GAIN, HEAD_LANES)) - 1.0
    gain = tl.maximum(tl.minimum(gain, LONGEST_SPLICE), 0.0)

    curves = rows.curves + row * CURVES
    tl.store(curves + NGRAM_AT + tl.arange(0, NGRAM_LANES), ngram)
    tl.store(curves + NEURAL_AT + tl.arange(0, NEURAL_LANES), neural)
    tl.store(curves + EXPECTED_AT, gain)
    tl.store(curves + LEAST_AT + tl.arange(0, 2), tl.full((2,), float("nan"), tl.float64))


ACCEPTED_NEXT = tl.constexpr(model.ACCEPTED_NEXT)
NGRAM_AFTER = tl.constexpr(model.NGRAM_AFTER)


@device(
    "predict.model.predict_behind",
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

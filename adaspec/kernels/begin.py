"""The start of a step, a row per program: the match, the features, and what they predict.

`begin` does what `HostPredictor.begin` does behind the scan: `before_features` of
`predict.features`, and `predict_before` of `predict.prediction`.
"""

from __future__ import annotations

import triton.language as tl

from adaspec.kernels.curves import copy_chance, survival
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
    LONGEST_SPLICE,
    MATCH,
    MATCHING_TOKENS,
    NEURAL_AT,
    NEURAL_LANES,
    NGRAM_AT,
    NGRAM_LANES,
    POSITION,
)
from adaspec.kernels.network import predict
from adaspec.kernels.scan import better_match, joined_match, token_at, token_in_either
from adaspec.kernels.tables import LEVELS, LOG_COUNT, MEAN, VALUES_PER_LEVEL, values_of
from adaspec.kernels.twins import device
from adaspec.kernels.vectors import lane, noted, side_by_side
from adaspec.predict import features, model

TABLES_AT = tl.constexpr(len(features.BEFORE_FEATURES) - LEVELS.value * VALUES_PER_LEVEL.value)
"""Where the features of the token tables begin."""
NGRAM_FIRST, NGRAM_MORE = tl.constexpr(model.NGRAM_FIRST), tl.constexpr(model.NGRAM_MORE)
NEURAL_FIRST, NEURAL_MORE = tl.constexpr(model.NEURAL_FIRST), tl.constexpr(model.NEURAL_MORE)
SPLICE_GAIN = tl.constexpr(model.SPLICE_GAIN)


@device("predict.prediction.predict_before", "predict.features.before_features")
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

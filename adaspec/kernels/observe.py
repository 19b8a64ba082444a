"""The start of a step, a row per program: the match and the features.

`observe` does what `HostPredictor.begin` does behind the scan and `predict.features.observe` with
it, and `expect` what `policy.planner.curves.predict_before_drafting` makes of the features.
"""

from __future__ import annotations

import triton
import triton.language as tl

from adaspec.kernels.answers import IN_ANSWERS, best_match, token_in_either
from adaspec.kernels.curves import recalibrated, survival
from adaspec.kernels.layout import (
    CANDIDATE,
    CONTEXT,
    FACTS,
    FEATURE_LANES,
    FEATURES,
    FIRST,
    HEAD_LANES,
    LEVEL_LANES,
    LONGEST_SPLICE,
    MATCH,
    NEURAL_LANES,
    NGRAM_LANES,
    POSITION,
    PROMPT,
    SPLICE_LANES,
    TAIL,
)
from adaspec.kernels.network import predict
from adaspec.kernels.scan import find_match, token_at
from adaspec.kernels.tables import look_up
from adaspec.kernels.vectors import lane, noted
from adaspec.policy.planner import memory
from adaspec.predict import features, model
from adaspec.predict.tables import LEVELS as _LEVELS
from adaspec.predict.tables import TOLD as _TOLD

TABLES_AT, LEVELS, TOLD = (tl.constexpr(n) for n in (features.TABLES_AT, _LEVELS, _TOLD))
NGRAM, NEURAL, SPLICE = (
    tl.constexpr(source) for source in (memory.NGRAM, memory.NEURAL, memory.SPLICE)
)
NGRAM_EXPONENT = tl.constexpr(memory.NGRAM_EXPONENT)
NEURAL_EXPONENT = tl.constexpr(memory.NEURAL_EXPONENT)
SPLICE_WEIGHT = tl.constexpr(memory.SPLICE_WEIGHT)
SPLICE_TOKENS = tl.constexpr(memory.SPLICE_TOKENS)
NGRAM_FIRST, NGRAM_MORE = tl.constexpr(model.NGRAM_FIRST), tl.constexpr(model.NGRAM_MORE)
NEURAL_FIRST, NEURAL_MORE = tl.constexpr(model.NEURAL_FIRST), tl.constexpr(model.NEURAL_MORE)
SPLICE_GAIN = tl.constexpr(model.SPLICE_GAIN)


@triton.jit
def observe(
    batch: tl.tuple,
    tokens_stride: tl.tensor,
    tables: tl.tuple,
    rows: tl.tuple,
    memory: tl.tuple,
    emitted_tokens: tl.tensor,
    cap: tl.tensor,
    splits: tl.constexpr,
    emitted_lanes: tl.constexpr,
    remembers: tl.constexpr,
) -> None:
    """Take in the scan's match; fill in each row's facts and features."""
    row = tl.program_id(0)
    slot = tl.load(batch.slots + row).to(tl.int64)
    text = batch.tokens + slot * tokens_stride
    known = tl.load(batch.context_tokens + slot).to(tl.int64)
    prompt = tl.load(batch.prompt_tokens + slot).to(tl.int64)
    sampled = tl.load(batch.sampled + row).to(tl.int64)

    match = find_match(rows.keys, row, text, known, text, 0, 0, False, splits)
    if remembers:
        match = best_match(match, memory, slot, text, known, text, 0, 0, False)
    length, start, agree, seen, available, follower = match
    lanes = tl.arange(0, CANDIDATE)
    places = tl.where(start < 0, -CANDIDATE, start) + lanes
    candidate = token_at(text, known, text, 0, 0, places, False)
    if remembers:
        candidate = token_in_either(memory, candidate, places)
        candidate = tl.where(lanes < available, candidate, -1)
    candidate = tl.maximum(candidate, -1)
    last = tl.maximum(token_at(text, known, text, 0, 0, known - 1, False), -1)
    second = tl.maximum(token_at(text, known, text, 0, 0, known - 2, False), -1)
    third = tl.maximum(token_at(text, known, text, 0, 0, known - 3, False), -1)
    position = known - prompt

    facts = rows.facts + row * FACTS
    tl.store(facts + CONTEXT, known)
    tl.store(facts + PROMPT, prompt)
    tl.store(facts + POSITION, position)
    tl.store(facts + TAIL, third)
    tl.store(facts + TAIL + 1, second)
    tl.store(facts + TAIL + 2, last)
    noted(facts + MATCH, length, start, agree, seen, available, follower)
    tl.store(facts + FIRST + lanes, candidate)
    tl.store(rows.holds + row, tl.load(batch.holds_neural + slot))
    tl.store(rows.decides + row, sampled > 0)
    column = tl.arange(0, emitted_lanes)
    token = token_at(text, known, text, 0, 0, known - sampled + column, False)
    token = tl.where(column < sampled, tl.maximum(token, -1), -1)
    tl.store(emitted_tokens + row * (cap + 1) + column, token, mask=column <= cap)

    x = rows.features + row * FEATURES
    found = length > 0
    own = start < IN_ANSWERS
    back = tl.log((known - tl.where(own, start, 0)).to(tl.float64))
    back, in_prompt = tl.where(own, back, -1.0), (start < prompt).to(tl.float64)
    tl.store(x, length)
    tl.store(x + 1, tl.where(found, agree.to(tl.float64), float("nan")))
    tl.store(x + 2, tl.where(found, seen.to(tl.float64), float("nan")))
    tl.store(x + 3, tl.where(found, back, float("nan")))
    tl.store(x + 4, tl.where(found, tl.minimum(available, 64).to(tl.float64), float("nan")))
    tl.store(x + 5, tl.where(found, tl.where(own, in_prompt, -1.0), float("nan")))
    tl.store(x + 6, position)
    tl.store(x + 7, tl.log(known.to(tl.float64)))
    tl.store(x + 8, prompt)
    first = tl.sum(tl.where(lanes == 0, candidate, 0), 0)
    after = tl.sum(tl.where(lanes == 1, candidate, 0), 0)
    mean, count, depth = look_up(tables, last, second, third, first, after)
    level = tl.arange(0, LEVEL_LANES)
    told = x + TABLES_AT + level * TOLD
    tl.store(told, mean, mask=level < LEVELS)
    tl.store(told + 1, count, mask=level < LEVELS)
    tl.store(told + 2, depth, mask=level < LEVELS)


@triton.jit(
    do_not_specialize_on_alignment=["factors", "price"],
)
def expect(
    rows: tl.tuple,
    model: tl.tuple,
    knobs: tl.tensor,
    factors: tl.tensor,
    price: tl.tensor,
) -> None:
    """Fill in what is expected of each row's drafts before drafting."""
    row = tl.program_id(0)
    at = tl.arange(0, FEATURE_LANES)
    x = tl.load(rows.features + row * FEATURES + at, mask=at < FEATURES, other=0.0)
    predicted = predict(model.network, x)
    facts = rows.facts + row * FACTS
    first = recalibrated(
        lane(predicted, NGRAM_FIRST, HEAD_LANES),
        tl.load(knobs + NGRAM_EXPONENT),
        tl.load(factors + NGRAM),
    )
    first = tl.where(tl.load(facts + MATCH) > 0, first, 0.0)
    ngram = survival(model.ngram, first, lane(predicted, NGRAM_MORE, HEAD_LANES))
    first = recalibrated(
        lane(predicted, NEURAL_FIRST, HEAD_LANES),
        tl.load(knobs + NEURAL_EXPONENT),
        tl.load(factors + NEURAL),
    )
    first = tl.where(tl.load(rows.holds + row), first, 0.0)
    neural = survival(model.neural, first, lane(predicted, NEURAL_MORE, HEAD_LANES))
    reading = tl.load(price)
    gain = tl.exp(lane(predicted, SPLICE_GAIN, HEAD_LANES)) - 1.0
    gain = tl.minimum(gain, LONGEST_SPLICE)
    weight = tl.load(knobs + SPLICE_WEIGHT) * tl.load(factors + SPLICE)
    gain = gain * weight - tl.load(knobs + SPLICE_TOKENS) * reading
    splice_expected = tl.where(gain > 0, gain, 0.0)

    depths, copies = tl.arange(0, NEURAL_LANES), tl.arange(0, NGRAM_LANES)
    tl.store(rows.ngram + row * NGRAM_LANES + copies, ngram)
    tl.store(rows.neural + row * NEURAL_LANES + depths, neural)
    tl.store(rows.splice_expected + row, splice_expected)
    tl.store(rows.splice_value + row * NEURAL_LANES + depths, neural * splice_expected)
    none = tl.zeros((NEURAL_LANES,), tl.int64)
    tl.store(rows.splice_len + row * NEURAL_LANES + depths, none)
    spliced = (row * NEURAL_LANES + depths[:, None]) * SPLICE_LANES
    spliced += tl.arange(0, SPLICE_LANES)[None, :]
    tl.store(rows.splice + spliced, tl.zeros((NEURAL_LANES, SPLICE_LANES), tl.float64))
    tl.store(rows.agreed + row, 0)
    tl.store(rows.least + row * 2 + tl.arange(0, 2), tl.full((2,), float("nan"), tl.float32))

"""The start of a step, a row per program: the last outcome, the match, and the features.

`observe` does what `Predictor.begin` does behind the scan, and `expect` what follows from features.
"""

from __future__ import annotations

import triton
import triton.language as tl

from adaspec.device.kernels.answers import IN_ANSWERS, best_match, token_in_either
from adaspec.device.kernels.curves import best_ngram, recalibrated, survival
from adaspec.device.kernels.layout import (
    AVAILABLE,
    CANDIDATE,
    CONTEXT,
    FACTS,
    FEATURE_LANES,
    FEATURES,
    FIRST,
    HEAD_LANES,
    HISTORY,
    LEVEL_LANES,
    LONGEST_SPLICE,
    MATCH,
    NEURAL_LANES,
    NGRAM_LANES,
    POSITION,
    PROMPT,
    PROPOSED,
    PROPOSED_CANDIDATE,
    PROPOSED_CONTEXT,
    PROPOSED_LENGTH,
    PROPOSED_NEURAL,
    PROPOSED_START,
    SPLICE_LANES,
    TAIL,
)
from adaspec.device.kernels.network import predict
from adaspec.device.kernels.scan import find_match, token_at
from adaspec.device.kernels.tables import look_up
from adaspec.device.kernels.vectors import exact, lane, noted
from adaspec.policy.planner import memory
from adaspec.predict import features, model
from adaspec.predict.tables import LEVELS as _LEVELS
from adaspec.predict.tables import TOLD as _TOLD

(
    HIT,
    NEURAL_HIT,
    NEURAL_MEAN,
    COPIED,
    GOES_ON_AT,
    EMITTED,
    NEURAL_HITS,
    NEURAL_DRAFTS,
    NEURAL_SURPRISE,
    NGRAM_SURPRISE,
    WHOLE,
    COPY,
    SPLICE_HIT,
    NEURAL_EXPECTED,
    NGRAM_EXPECTED,
) = (tl.constexpr(column) for column in range(features.HISTORY))
NGRAM_MEMORY = tl.constexpr(features.NGRAM_MEMORY)
NEURAL_MEMORY = tl.constexpr(features.NEURAL_MEMORY)
SURPRISE_MEMORY = tl.constexpr(features.SURPRISE_MEMORY)
SPLICE_MEMORY = tl.constexpr(features.SPLICE_MEMORY)
IMAGINED_DRAFTS = tl.constexpr(features.IMAGINED_DRAFTS)
IMAGINED_HITS = tl.constexpr(features.IMAGINED_DRAFTS * features.NEURAL_START)
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
def _moved(mean: tl.tensor, value: tl.tensor, memory: tl.constexpr, where: tl.tensor) -> tl.tensor:
    return tl.where(where, mean + exact(memory) * (value - mean), mean)


@triton.jit
def _remember(
    past: tl.tensor,
    proposed: tl.tensor,
    text: tl.tensor,
    known: tl.tensor,
    sampled: tl.tensor,
    rejected: tl.tensor,
) -> tl.tuple:
    """A row's history with a step's outcome, where it is the last proposal's; all but the last two.

    The columns are those of `device.features.History`, in their order.
    """
    hit, neural_hit = tl.load(past + HIT), tl.load(past + NEURAL_HIT)
    neural_mean, copied = tl.load(past + NEURAL_MEAN), tl.load(past + COPIED)
    goes_on_at, emitted = tl.load(past + GOES_ON_AT), tl.load(past + EMITTED)
    hits, drafts = tl.load(past + NEURAL_HITS), tl.load(past + NEURAL_DRAFTS)
    neural_surprise = tl.load(past + NEURAL_SURPRISE)
    ngram_surprise = tl.load(past + NGRAM_SURPRISE)
    whole, copy, splice_hit = (
        tl.load(past + WHOLE),
        tl.load(past + COPY),
        tl.load(past + SPLICE_HIT),
    )
    neural_expected = tl.load(past + NEURAL_EXPECTED)
    ngram_expected = tl.load(past + NGRAM_EXPECTED)

    before = known - sampled
    count = tl.where(tl.load(proposed + PROPOSED_CONTEXT) == before, sampled, 0)
    told = count > 0
    lanes = tl.arange(0, CANDIDATE)
    candidate = tl.load(proposed + PROPOSED_CANDIDATE + lanes)
    came = token_at(text, known, text, 0, 0, before + lanes, False)
    same = (candidate == came) & (lanes < count)
    right = tl.min(tl.where(same, CANDIDATE, lanes), 0)
    was_hit = (right > 0).to(tl.float64)
    found = told & (tl.load(proposed + PROPOSED_LENGTH) > 0)
    start = tl.load(proposed + PROPOSED_START)
    is_copied = found & (right == tl.minimum(count, CANDIDATE))
    longer = count + tl.where(start == goes_on_at, copied, 0.0)

    accepted = sampled - 1
    drafted = accepted + rejected
    neural = tl.minimum(tl.load(proposed + PROPOSED_NEURAL), drafted)
    taken = tl.minimum(accepted, neural)
    drew = told & (neural > 0)
    was_neural_hit = (taken > 0).to(tl.float64)
    # A fully accepted draft is censored, so it counts for the mean only as a lower bound.
    counts = drew & ((taken < neural) | (taken > neural_mean))
    spliced = drew & (taken == neural) & (drafted > neural)
    was_whole = tl.where(drafted > 0, (accepted >= drafted).to(tl.float64), float("nan"))
    was_copy = ((drafted > 0) & (neural == 0)).to(tl.float64)
    went_on = (accepted > neural).to(tl.float64)
    neural_surprised, ngram_surprised = was_neural_hit - neural_expected, was_hit - ngram_expected
    return (
        _moved(hit, was_hit, NGRAM_MEMORY, found),
        _moved(neural_hit, was_neural_hit, NEURAL_MEMORY, drew),
        _moved(neural_mean, taken.to(tl.float64), NEURAL_MEMORY, counts),
        tl.where(told, tl.where(is_copied, longer, 0.0), copied),
        tl.where(told, tl.where(is_copied, (start + count).to(tl.float64), -1.0), goes_on_at),
        tl.where(told, count.to(tl.float64), emitted),
        hits + (drew & (taken > 0)).to(tl.float64),
        drafts + drew.to(tl.float64),
        _moved(neural_surprise, neural_surprised, SURPRISE_MEMORY, drew),
        _moved(ngram_surprise, ngram_surprised, SURPRISE_MEMORY, found),
        tl.where(told, was_whole, whole),
        tl.where(told, was_copy, copy),
        _moved(splice_hit, went_on, SPLICE_MEMORY, spliced),
    )


@triton.jit
def observe(
    batch: tl.tuple,
    tokens_stride: tl.tensor,
    tables: tl.tuple,
    slots: tl.tuple,
    rows: tl.tuple,
    memory: tl.tuple,
    emitted_tokens: tl.tensor,
    cap: tl.tensor,
    splits: tl.constexpr,
    emitted_lanes: tl.constexpr,
    remembers: tl.constexpr,
) -> None:
    """Take in the last outcome and the scan's match; fill in each row's facts and features."""
    row = tl.program_id(0)
    slot = tl.load(batch.slots + row).to(tl.int64)
    text = batch.tokens + slot * tokens_stride
    known = tl.load(batch.context_tokens + slot).to(tl.int64)
    prompt = tl.load(batch.prompt_tokens + slot).to(tl.int64)
    sampled = tl.load(batch.sampled + row).to(tl.int64)
    rejected = tl.load(batch.rejected + row).to(tl.int64)
    past = slots.history + slot * HISTORY
    (
        hit,
        neural_hit,
        neural_mean,
        copied,
        goes_on_at,
        emitted,
        hits,
        drafts,
        neural_surprise,
        ngram_surprise,
        whole,
        copy,
        splice_hit,
    ) = _remember(past, slots.proposed + slot * PROPOSED, text, known, sampled, rejected)

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
    goes_on = (start == goes_on_at).to(tl.float64)
    own = start < IN_ANSWERS
    back = tl.log((known - tl.where(own, start, 0)).to(tl.float64))
    back, in_prompt = tl.where(own, back, -1.0), (start < prompt).to(tl.float64)
    tl.store(x, length)
    tl.store(x + 1, tl.where(found, agree.to(tl.float64), float("nan")))
    tl.store(x + 2, tl.where(found, seen.to(tl.float64), float("nan")))
    tl.store(x + 3, tl.where(found, back, float("nan")))
    tl.store(x + 4, tl.where(found, tl.minimum(available, 64).to(tl.float64), float("nan")))
    tl.store(x + 5, tl.where(found, tl.where(own, in_prompt, -1.0), float("nan")))
    tl.store(x + 6, tl.where(found, goes_on, float("nan")))
    tl.store(x + 7, tl.where(found, copied * goes_on, float("nan")))
    tl.store(x + 8, hit)
    tl.store(x + 9, neural_hit)
    tl.store(x + 10, neural_mean)
    tl.store(x + 11, (hits + IMAGINED_HITS) / (drafts + IMAGINED_DRAFTS))
    tl.store(x + 12, neural_surprise)
    tl.store(x + 13, ngram_surprise)
    tl.store(x + 14, emitted)
    tl.store(x + 15, whole)
    tl.store(x + 16, copy)
    tl.store(x + 17, position)
    tl.store(x + 18, tl.log(known.to(tl.float64)))
    tl.store(x + 19, prompt)
    first = tl.sum(tl.where(lanes == 0, candidate, 0), 0)
    after = tl.sum(tl.where(lanes == 1, candidate, 0), 0)
    mean, count, depth = look_up(tables, last, second, third, first, after)
    level = tl.arange(0, LEVEL_LANES)
    told = x + TABLES_AT + level * TOLD
    tl.store(told, mean, mask=level < LEVELS)
    tl.store(told + 1, count, mask=level < LEVELS)
    tl.store(told + 2, depth, mask=level < LEVELS)
    tl.store(past + HIT, hit)
    tl.store(past + NEURAL_HIT, neural_hit)
    tl.store(past + NEURAL_MEAN, neural_mean)
    tl.store(past + COPIED, copied)
    tl.store(past + GOES_ON_AT, goes_on_at)
    tl.store(past + EMITTED, emitted)
    tl.store(past + NEURAL_HITS, hits)
    tl.store(past + NEURAL_DRAFTS, drafts)
    tl.store(past + NEURAL_SURPRISE, neural_surprise)
    tl.store(past + NGRAM_SURPRISE, ngram_surprise)
    tl.store(past + WHOLE, whole)
    tl.store(past + COPY, copy)
    tl.store(past + SPLICE_HIT, splice_hit)
    tl.store(past + NEURAL_EXPECTED, lane(mean, 2, LEVEL_LANES))
    tl.store(past + NGRAM_EXPECTED, lane(mean, 4, LEVEL_LANES))


@triton.jit(
    do_not_specialize_on_alignment=["factors", "price"],
)
def expect(
    rows: tl.tuple,
    model: tl.tuple,
    knobs: tl.tensor,
    factors: tl.tensor,
    price: tl.tensor,
    cap: tl.tensor,
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
    available = tl.load(facts + MATCH + AVAILABLE)
    _, copied_value = best_ngram(ngram, available, reading, cap)
    tl.store(rows.ngram_value + row, copied_value)
    tl.store(rows.ngram + row * NGRAM_LANES + copies, ngram)
    tl.store(rows.neural + row * NEURAL_LANES + depths, neural)
    tl.store(rows.splice_expected + row, splice_expected)
    tl.store(rows.splice_value + row * NEURAL_LANES + depths, neural * splice_expected)
    none = tl.zeros((NEURAL_LANES,), tl.int64)
    tl.store(rows.splice_len + row * NEURAL_LANES + depths, none)
    tl.store(rows.splice_tokens + row * NEURAL_LANES + depths, none.to(tl.float64))
    spliced = (row * NEURAL_LANES + depths[:, None]) * SPLICE_LANES
    spliced += tl.arange(0, SPLICE_LANES)[None, :]
    tl.store(rows.splice + spliced, tl.zeros((NEURAL_LANES, SPLICE_LANES), tl.float64))
    tl.store(rows.agreed + row, 0)
    tl.store(rows.least + row * 2 + tl.arange(0, 2), tl.full((2,), float("nan"), tl.float32))

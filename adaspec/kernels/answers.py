"""The look-up of `draft.answers` in earlier answers, by the program that has the row."""

from __future__ import annotations

import triton
import triton.language as tl

from adaspec.draft import answers, match
from adaspec.kernels.scan import token_at
from adaspec.kernels.vectors import shifted

CAPACITY, HEAD = tl.constexpr(answers.CAPACITY), tl.constexpr(answers.HEAD)
HEADER_WORDS = tl.constexpr(answers.HEADER_WORDS)
WORDS_OF_BUCKET = tl.constexpr(answers.WORDS_OF_BUCKET)
LEVELS, SMALLEST, LARGEST = (
    tl.constexpr(number) for number in (len(answers.SIZES), answers.SIZES[0], answers.SIZES[-1])
)
"""Each level hashes twice as many tokens as the one before."""
IN_ANSWERS = tl.constexpr(answers.IN_ANSWERS)
AHEAD, LEAST_OCCURRENCES = tl.constexpr(answers.AHEAD), tl.constexpr(answers.LEAST_OCCURRENCES)
MOST_OCCURRENCES, WALK = tl.constexpr(match.MOST_OCCURRENCES), tl.constexpr(answers.WALK)
LONGEST_COPY = tl.constexpr(answers.LONGEST_COPY)
LONGEST_MATCH = tl.constexpr(match.LONGEST_MATCH)
_FIRST_FACTOR, _SECOND_FACTOR = (
    tl.constexpr(number - (1 << 64)) for number in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
)
"""The constants of the index's hash as signed numbers: products wrap around alike."""


@triton.jit
def best_match(
    own: tl.tuple,
    answers: tl.tuple,
    slot: tl.tensor,
    text: tl.tensor,
    known: tl.tensor,
    drafts: tl.tensor,
    newest: tl.tensor,
    depth: tl.tensor,
    behind_drafts: tl.constexpr,
) -> tl.tuple:
    """The match among the answers where it is better than the own text's, else that."""
    length, start, votes, occurrences, available, follower = own
    lanes = tl.arange(0, LONGEST_MATCH)
    back = known + depth - 1 - lanes
    last = token_at(text, known, drafts, newest, depth, back, behind_drafts).to(tl.int64)
    owner = tl.load(answers.owners + slot)
    capacity = tl.load(answers.words + CAPACITY).to(tl.int64)
    places = tl.full((MOST_OCCURRENCES,), 0, tl.int64)
    found = tl.full((), 0, tl.int32)
    for down in tl.static_range(LEVELS):
        if found == 0:
            level: tl.constexpr = LEVELS - 1 - down
            found, places = _occurrences(answers.words, capacity, owner, last, level)
    if found > 0:
        tokens = answers.words + HEADER_WORDS
        place, found_votes = _followed(tokens, places, found)
        repeated = _repeated(tokens, place, last)
        is_settled = (found >= LEAST_OCCURRENCES) & (4 * found_votes >= 3 * found)
        least = tl.where(is_settled | (length == 0), length, length + AHEAD)
        if repeated > least:
            steps = tl.arange(0, LONGEST_COPY)
            inside = place + steps < capacity
            ahead = tl.load(tokens + place + steps, mask=inside, other=-1)
            length, start = repeated.to(length.dtype), (place + IN_ANSWERS).to(start.dtype)
            votes, occurrences = found_votes.to(votes.dtype), found.to(occurrences.dtype)
            ends = tl.min(tl.where(ahead < 0, steps, LONGEST_COPY), 0)
            available = ends.to(available.dtype)
            first = tl.sum(tl.where(steps == 0, ahead, 0), 0)
            follower = first.to(follower.dtype)
    return length, start, votes, occurrences, available, follower


@triton.jit
def token_in_either(answers: tl.tuple, token: tl.tensor, place: tl.tensor) -> tl.tensor:
    """The token at each place: that of an answer from `IN_ANSWERS` on, else the given one."""
    there = place >= IN_ANSWERS
    at = answers.words + HEADER_WORDS + (place - IN_ANSWERS)
    return tl.where(there, tl.load(at, mask=there, other=-1), token)


@triton.jit
def _occurrences(
    words: tl.tensor,
    capacity: tl.tensor,
    owner: tl.tensor,
    last: tl.tensor,
    level: tl.constexpr,
) -> tl.tuple:
    """How many of the latest occurrences of as many tokens as a level hashes count, and where."""
    size: tl.constexpr = SMALLEST << level
    lanes = tl.arange(0, LONGEST_MATCH)
    key = _mixed(owner.to(tl.int64))
    for back in tl.static_range(size):
        key = _mixed(key ^ tl.sum(tl.where(lanes == back, last, 0), 0))
    tokens = words + HEADER_WORDS
    owners = tokens + capacity
    previous = owners + capacity * (1 + level)
    tables = owners + capacity * (1 + LEVELS + level * WORDS_OF_BUCKET)
    bucket = tables + ((shifted(key, 32) * capacity) >> 32) * WORDS_OF_BUCKET
    place = tl.load(bucket).to(tl.int64) - 1
    if _repeated(tokens, place, last) < size:
        place = tl.load(bucket + 1).to(tl.int64) - 1
    order = tl.arange(0, MOST_OCCURRENCES)
    places = tl.full((MOST_OCCURRENCES,), 0, tl.int64)
    head = tl.load(words + HEAD).to(tl.int64)
    found, step = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    age = tl.full((), 0, tl.int64)
    while (place >= 0) & (found < MOST_OCCURRENCES) & (step < WALK):
        ago = head - place + tl.where(place < head, 0, capacity)
        # What has been overwritten may lead anywhere, but never to what is younger.
        is_sound = (ago > age) & (_repeated(tokens, place, last) >= size)
        counts = is_sound & (tl.load(owners + place) == owner)
        places = tl.where(counts & (order == found), place, places)
        found += counts.to(tl.int32)
        age = ago
        before = tl.load(previous + place).to(tl.int64)
        place = tl.where(is_sound, before, -1)
        step += 1
    return found, places


@triton.jit
def _followed(tokens: tl.tensor, places: tl.tensor, found: tl.tensor) -> tl.tuple:
    """The place whose tokens most occurrences say, and how many say the first."""
    order = tl.arange(0, MOST_OCCURRENCES)
    alive = (order < found).to(tl.int32)
    votes, step = found, tl.full((), 0, tl.int32)
    goes_on = found > 0
    while goes_on & (step < LONGEST_COPY):
        token = tl.load(tokens + places + step, mask=alive > 0, other=-1)
        says = token >= 0
        same = (token[:, None] == token[None, :]) & says[:, None] & says[None, :]
        # The earliest in the order are the latest occurrences.
        rank = tl.sum(same.to(tl.int32), 1) * MOST_OCCURRENCES + MOST_OCCURRENCES - 1 - order
        rank = tl.where(says, rank, -1)
        most = tl.max(rank, 0)
        chosen = tl.sum(tl.where(says & (rank == most), token, 0), 0)
        alive = tl.where(most >= 0, (says & (token == chosen)).to(tl.int32), alive)
        left = tl.sum(alive, 0)
        votes = tl.where(step == 0, left, votes)
        goes_on = (most >= 0) & (left > 1)
        step += 1
    first = tl.min(tl.where(alive > 0, order, MOST_OCCURRENCES - 1), 0)
    return tl.sum(tl.where(order == first, places, 0), 0), votes


@triton.jit
def _repeated(tokens: tl.tensor, place: tl.tensor, last: tl.tensor) -> tl.tensor:
    """How many tokens before a place are the text's `last`, the last one first."""
    lanes = tl.arange(0, LONGEST_MATCH)
    at = place - 1 - lanes
    stored = tl.load(tokens + at, mask=at >= 0, other=-1)
    same = (stored == last) & (stored >= 0)
    return tl.min(tl.where(same, LONGEST_MATCH, lanes), 0)


@triton.jit
def _mixed(key: tl.tensor) -> tl.tensor:
    key = key * _FIRST_FACTOR
    key = (key ^ shifted(key, 32)) * _SECOND_FACTOR
    return key ^ shifted(key, 29)

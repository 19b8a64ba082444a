"""Look-up behind a hypothetical continuation of the context: the index is read, never changed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.extend import LANES, fetch_record, fetch_tokens
from adaspec.draft.kernels import (
    AGREE,
    AVAILABLE,
    EARLIEST,
    FACTS,
    LENGTH,
    SEEN,
    START,
    first_closed,
    read_facts,
)
from adaspec.draft.layout import (
    BUCKET_WORDS,
    BUCKETS,
    FIRST,
    LAST,
    LONGEST_MATCH,
    MAX_MATCH,
    NODE_BITS,
    NODE_MASK,
    RING,
    SENTINEL,
    TABLE_AT,
    TOKENS,
    TOKENS_AT,
    bucket_of,
    find_from,
    key_of,
)
from adaspec.draft.memory import load, prefetch
from adaspec.draft.trie import record_of
from adaspec.jit import compiled

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


@compiled
def token_behind(base: int, tail: Ints, length: int, back: int) -> int:
    """The `back`-th token from the end of context + tail[:length]; the sentinel at the start."""
    if back < length:
        return int(tail[length - 1 - back])
    return load(base, load(base, TOKENS_AT) + load(base, TOKENS) - 1 - (back - length))


@compiled
def match_within_tail(base: int, tail: Ints, length: int, end: int, limit: int) -> int:
    """How long a suffix of context + tail[:length] ends at `end` tokens into the tail, too."""
    shift = length - end
    for back in range(limit):
        if token_behind(base, tail, length, back) != token_behind(base, tail, length, back + shift):
            return back
    return limit


@compiled
def fetch_branch_behind(
    base: int, tail: Ints, length: int, parent: int, keys: Longs, buckets: Longs, lane: int
) -> None:
    """Work out the branch of context + tail[:length] below `parent` and ask for its bucket."""
    token = token_behind(base, tail, length, parent >> NODE_BITS)
    keys[lane] = key_of(parent & NODE_MASK, token)
    buckets[lane] = bucket_of(keys[lane], load(base, BUCKETS))
    prefetch(base + 4 * (load(base, TABLE_AT) + buckets[lane] * BUCKET_WORDS))


@compiled
def longest_behind(
    base: int, tail: Ints, length: int, limit: int, other: int, path: Longs, steps: int, leaf: int
) -> tuple[int, int]:
    """(length, holder) of the longest match that ends within the context.

    The descent took `steps` nodes, `path`, and ended in `leaf` or, where that is 0, in the last of
    them; `other` is an end below. `holder` is the leaf or node that has the match's occurrences.
    """
    tokens = base + 4 * load(base, TOKENS_AT)
    matched = 0
    if other:
        while matched < limit and token_behind(base, tail, length, matched) == load(
            tokens, other - 1 - matched
        ):
            matched += 1
    if matched == 0:
        return 0, 0
    holder = leaf if leaf != 0 else path[steps - 1]
    while steps > 0 and path[steps - 1] >> NODE_BITS > matched:
        steps -= 1
        holder = path[steps]
    return matched, holder


@compiled
def write_behind(
    base: int, tail: Ints, length: int, longest: int, holder: int, facts: Ints, row: int
) -> None:
    """Join the match within the context with those that end in the tail, and write the facts."""
    known = load(base, TOKENS)
    if holder == ~known:
        # The newest end itself: its follower is the tail's first token, so it is found below.
        longest = 0
    in_index = longest
    for end in range(length):
        limit = min(load(base, MAX_MATCH), known + end)
        longest = max(longest, match_within_tail(base, tail, length, end, limit))
    for fact in range(FACTS):
        facts[fact, row] = 0
    facts[START, row] = facts[EARLIEST, row] = -1
    if longest == 0:
        return
    start = earliest = -1
    follower = seen = agree = 0
    for end in range(length - 1, -1, -1):
        limit = min(longest, known + end)
        if match_within_tail(base, tail, length, end, limit) < longest:
            continue
        earliest = known + end
        if start < 0:
            start, follower = earliest, int(tail[end])
        if seen < RING:
            seen += 1
            agree += int(tail[end]) == follower
    if in_index == longest:
        if holder < 0:
            earliest = ~holder
            if start < 0:
                start, follower = earliest, load(base, load(base, TOKENS_AT) + earliest)
            if seen < RING:
                seen += 1
                agree += load(base, load(base, TOKENS_AT) + earliest) == follower
        else:
            record = record_of(base, holder & NODE_MASK)
            last = load(record, LAST)
            earliest = load(record, FIRST)
            if start < 0:
                start, follower = last >> 3, load(record, last & (RING - 1))
            for back in range(RING):
                token = load(record, (last - back) & (RING - 1))
                if seen < RING and token != SENTINEL:
                    seen += 1
                    agree += token == follower
    facts[LENGTH, row] = longest
    facts[START, row] = start
    facts[EARLIEST, row] = earliest
    facts[AGREE, row] = agree
    facts[SEEN, row] = seen
    facts[AVAILABLE, row] = known + length - start


@compiled
def read_behind(
    bases: Longs, tails: Ints, tail_rows: Longs, lengths: Longs, facts: Ints, first: int, lanes: int
) -> None:
    """Write what `read_facts` would had lane i's tail been appended to column first + i of `facts`.

    Lane i asks behind tails[tail_rows[i], :lengths[i]]; at most LANES of them, in step as in
    `append_lanes`.
    """
    work = np.empty((8, LANES), np.int64)
    keys, buckets, limits, live, steps, leaves, others, holders = (
        work[0],
        work[1],
        work[2],
        work[3],
        work[4],
        work[5],
        work[6],
        work[7],
    )
    path = np.empty((LANES, LONGEST_MATCH + 1), np.int64)
    count = 0
    for lane in range(lanes):
        base, length = bases[lane], lengths[lane]
        steps[lane] = leaves[lane] = 0
        if length == 0:
            read_facts(base, facts, first + lane)
            continue
        limits[lane] = min(load(base, MAX_MATCH), load(base, TOKENS) + length)
        fetch_branch_behind(base, tails[tail_rows[lane]], length, 0, keys, buckets, lane)
        live[count] = lane
        count += 1
    while count:
        kept = 0
        for place in range(count):
            lane = live[place]
            base = bases[lane]
            table = base + 4 * load(base, TABLE_AT)
            at = find_from(table, load(base, BUCKETS), buckets[lane], keys[lane])
            child = load(at, 0) if at != 0 else 0
            if child < 0:
                leaves[lane] = child
                fetch_tokens(base, ~child)
                continue
            if child > 0:
                path[lane, steps[lane]] = child
                steps[lane] += 1
            if child > 0 and child >> NODE_BITS < limits[lane]:
                tail = tails[tail_rows[lane]]
                fetch_branch_behind(base, tail, lengths[lane], child, keys, buckets, lane)
                live[kept] = lane
                kept += 1
            elif steps[lane] > 0:
                fetch_record(base, path[lane, steps[lane] - 1])
        count = kept
    for lane in range(lanes):
        others[lane] = ~leaves[lane] if leaves[lane] < 0 else 0
        if others[lane] == 0 and steps[lane] > 0:
            node = path[lane, steps[lane] - 1] & NODE_MASK
            others[lane] = load(record_of(bases[lane], node), LAST) >> 3
            fetch_tokens(bases[lane], others[lane])
    longest = keys
    for lane in range(lanes):
        if lengths[lane] > 0:
            longest[lane], holders[lane] = longest_behind(
                bases[lane],
                tails[tail_rows[lane]],
                lengths[lane],
                limits[lane],
                others[lane],
                path[lane],
                steps[lane],
                leaves[lane],
            )
            if holders[lane] > 0:
                fetch_record(bases[lane], holders[lane])
    for lane in range(lanes):
        if lengths[lane] > 0:
            write_behind(
                bases[lane],
                tails[tail_rows[lane]],
                lengths[lane],
                longest[lane],
                holders[lane],
                facts,
                first + lane,
            )


@compiled
def lookup_behind_rows(
    bases: Longs, slots: Longs, tails: Ints, tail_lengths: Longs, facts: Ints
) -> int:
    """Fill `facts` as `lookup_rows` would after extending every row by its tail.

    Returns the first row whose slot is not open, or -1.
    """
    closed = first_closed(bases, slots)
    if closed >= 0:
        return closed
    rows = np.arange(len(slots))
    for first in range(0, len(slots), LANES):
        last = min(first + LANES, len(slots))
        read_behind(
            bases[slots[first:last]],
            tails,
            rows[first:last],
            tail_lengths[first:last],
            facts,
            first,
            last - first,
        )
    return -1

"""Appending to a whole batch of requests, side by side.

Each request's trie lies elsewhere in memory and is cold by the next step. Row after row, every
look into it would wait for memory; in lanes that advance together the waits overlap, and each
address is asked for one stage before it is needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.layout import (
    BUCKET_WORDS,
    BUCKETS,
    BUSY,
    LINE_WORDS,
    NODE_BITS,
    NODE_MASK,
    PATH,
    PATH_AT,
    TABLE_AT,
    TOKENS,
    TOKENS_AT,
    bucket_of,
    key_of,
    short_of_room,
)
from adaspec.draft.memory import load, prefetch, store
from adaspec.draft.trie import (
    ALONE,
    NOTHING,
    attach,
    branch_of,
    compare_limit,
    deepest,
    descend,
    record_of,
    register,
    representative,
    settle,
)
from adaspec.jit import compiled

Longs = NDArray[np.int64]

READY, MISCOUNTED, CLOSED, TWICE, FULL = range(5)
LANES = 16
LINE = 4 * LINE_WORDS


@compiled
def check_rows(bases: Longs, slots: Longs, counts: Longs) -> tuple[int, int]:
    """Whether all rows may be extended: READY, or what is wrong and at which row first."""
    verdict, at = READY, -1
    for row in range(len(slots)):
        slot = slots[row]
        if slot < 0 or slot >= len(bases) or bases[slot] == 0:
            verdict, at = CLOSED, row
            break
        if load(bases[slot], BUSY) != 0:
            verdict, at = TWICE, row
            break
        store(bases[slot], BUSY, 1)
        if verdict == READY and short_of_room(bases[slot], counts[row]):
            verdict, at = FULL, row
    for row in range(at if verdict in (CLOSED, TWICE) else len(slots)):
        store(bases[slots[row]], BUSY, 0)
    return verdict, at


@compiled
def add_up(counts: Longs, rows: int, tokens: int) -> bool:
    """Whether there is one count >= 0 per row and they add up to the tokens given."""
    total = 0
    for count in counts:
        if count < 0:
            return False
        total += count
    return len(counts) == rows and total == tokens


@compiled
def fetch_record(base: int, node: int) -> None:
    """Ask for a node's record, which may lie across two lines."""
    record = record_of(base, node & NODE_MASK)
    prefetch(record)
    prefetch(record + 36)


@compiled
def fetch_branch(base: int, parent: int, keys: Longs, buckets: Longs, lane: int) -> None:
    """Work out the newest end's branch below `parent` and ask for its bucket."""
    key, bucket = branch_of(base, parent)
    keys[lane], buckets[lane] = key, bucket
    prefetch(base + 4 * (load(base, TABLE_AT) + bucket * BUCKET_WORDS))


@compiled
def fetch_leaves(base: int, below: int, other: int) -> None:
    """Ask for the buckets that `attach` will write to."""
    if below == NOTHING:
        return
    node = deepest(base)
    buckets, table = load(base, BUCKETS), base + 4 * load(base, TABLE_AT)
    tokens = load(base, TOKENS_AT) - 1 - (node >> NODE_BITS)
    if below != ALONE:
        key = key_of(node & NODE_MASK, load(base, tokens + other))
        prefetch(table + 4 * BUCKET_WORDS * bucket_of(key, buckets))
        key = key_of(node & NODE_MASK, load(base, tokens + load(base, TOKENS)))
        prefetch(table + 4 * BUCKET_WORDS * bucket_of(key, buckets))


@compiled
def fetch_tokens(base: int, end: int) -> None:
    """Ask for the tokens just before `end`."""
    prefetch(base + 4 * (load(base, TOKENS_AT) + end - 1))


@compiled
def fetch_request(base: int) -> None:
    """Ask for all that `register` writes, and for the newest tokens."""
    for step in range(load(base, PATH)):
        fetch_record(base, load(base, PATH_AT + step))
    fetch_tokens(base, load(base, TOKENS) + 1)
    fetch_tokens(base, load(base, TOKENS) - LINE_WORDS)


@compiled
def append_lanes(bases: Longs, tokens: Longs, lanes: int, work: NDArray[np.int64]) -> None:
    """Append tokens[i] to the request at bases[i] for each of the first `lanes`."""
    keys, buckets, reached, limits, live = work[0], work[1], work[2], work[3], work[4]
    for lane in range(lanes):
        base = bases[lane]
        register(base, tokens[lane])
        limits[lane] = compare_limit(base)
        fetch_branch(base, 0, keys, buckets, lane)
        live[lane] = lane
    count = lanes
    while count:
        kept = 0
        for place in range(count):
            lane = live[place]
            base = bases[lane]
            child = descend(base, keys[lane], buckets[lane])
            reached[lane] = child
            if child < 0:
                fetch_tokens(base, ~child)
            elif child == 0 or child >> NODE_BITS >= limits[lane]:
                fetch_record(base, deepest(base))
            else:
                fetch_branch(base, child, keys, buckets, lane)
                live[kept] = lane
                kept += 1
        count = kept
    others = keys
    for lane in range(lanes):
        others[lane] = representative(bases[lane], reached[lane])
        fetch_tokens(bases[lane], others[lane])
    for lane in range(lanes):
        below = settle(bases[lane], limits[lane], reached[lane], others[lane])
        reached[lane] = below
        fetch_leaves(bases[lane], below, others[lane])
    for lane in range(lanes):
        attach(bases[lane], reached[lane], others[lane])


@compiled
def extend_rows(
    bases: Longs, slots: Longs, tokens: NDArray[np.int32], counts: Longs
) -> tuple[int, int]:
    """Append counts[i] tokens to slots[i], all of them or none; see `check_rows`."""
    if not add_up(counts, len(slots), len(tokens)):
        return MISCOUNTED, -1
    verdict, at = check_rows(bases, slots, counts)
    if verdict != READY:
        return verdict, at
    work = np.empty((8, LANES), np.int64)
    lane_bases, lane_tokens, starts = work[5], work[6], work[7]
    taken = 0
    for first in range(0, len(slots), LANES):
        rows = min(LANES, len(slots) - first)
        longest = 0
        for row in range(rows):
            starts[row] = taken
            taken += counts[first + row]
            longest = max(longest, counts[first + row])
            fetch_request(bases[slots[first + row]])
        for step in range(longest):
            lanes = 0
            for row in range(rows):
                if step < counts[first + row]:
                    lane_bases[lanes] = bases[slots[first + row]]
                    lane_tokens[lanes] = tokens[starts[row] + step]
                    lanes += 1
            append_lanes(lane_bases, lane_tokens, lanes, work)
    return READY, -1

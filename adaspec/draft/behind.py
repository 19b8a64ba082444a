"""Look-up behind a hypothetical continuation of the context: the index is read, never changed."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from adaspec.draft.kernels import AGREE, AVAILABLE, EARLIEST, FACTS, LENGTH, SEEN, START, read_facts
from adaspec.draft.layout import (
    BUCKETS,
    FIRST,
    LAST,
    MAX_MATCH,
    NODE_BITS,
    NODE_MASK,
    RING,
    SENTINEL,
    TABLE_AT,
    TOKENS,
    TOKENS_AT,
    find,
)
from adaspec.draft.memory import load
from adaspec.draft.trie import record_of


@njit(cache=True, nogil=True)
def token_behind(base: int, tail: NDArray[np.int32], length: int, back: int) -> int:
    """The `back`-th token from the end of context + tail[:length]; the sentinel at the start."""
    if back < length:
        return int(tail[length - 1 - back])
    return load(base, load(base, TOKENS_AT) + load(base, TOKENS) - 1 - (back - length))


@njit(cache=True, nogil=True)
def match_within_tail(base: int, tail: NDArray[np.int32], length: int, end: int, limit: int) -> int:
    """How long a suffix of context + tail[:length] ends at `end` tokens into the tail, too."""
    shift = length - end
    for back in range(limit):
        if token_behind(base, tail, length, back) != token_behind(base, tail, length, back + shift):
            return back
    return limit


@njit(cache=True, nogil=True)
def find_behind(base: int, tail: NDArray[np.int32], length: int) -> tuple[int, int]:
    """(length, child) of the longest match that ends within the context.

    `child` is the leaf or node, as the table writes it, that holds its occurrences; 0 if none.
    """
    known = load(base, TOKENS)
    tokens = base + 4 * load(base, TOKENS_AT)
    table = base + 4 * load(base, TABLE_AT)
    buckets = load(base, BUCKETS)
    limit = min(load(base, MAX_MATCH), known + length)
    matched = depth = holder = 0
    while depth < limit:
        at = find(table, buckets, holder & NODE_MASK, token_behind(base, tail, length, depth))
        if at == 0:
            return matched, holder
        child = load(at, 0)
        if child < 0:
            other, branch = ~child, limit
        else:
            other = load(record_of(base, child & NODE_MASK), LAST) >> 3
            branch = min(limit, child >> NODE_BITS)
        matched += 1
        while matched < branch and token_behind(base, tail, length, matched) == load(
            tokens, other - 1 - matched
        ):
            matched += 1
        holder, depth = child, child >> NODE_BITS
        if child < 0 or matched < depth:
            return matched, holder
    return matched, holder


@njit(cache=True, nogil=True)
def read_behind(
    base: int, tail: NDArray[np.int32], length: int, facts: NDArray[np.int32], row: int
) -> None:
    """What `read_facts` would write had tail[:length] been appended."""
    if length == 0:
        read_facts(base, facts, row)
        return
    known = load(base, TOKENS)
    longest, holder = find_behind(base, tail, length)
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


@njit(cache=True, nogil=True)
def lookup_behind_rows(
    bases: NDArray[np.int64],
    slots: NDArray[np.int64],
    tails: NDArray[np.int32],
    tail_lengths: NDArray[np.int64],
    facts: NDArray[np.int32],
) -> None:
    """Fill `facts` as `lookup_rows` would after extending every row by its tail."""
    for row in range(len(slots)):
        read_behind(bases[slots[row]], tails[row], tail_lengths[row], facts, row)

"""Look-up behind a hypothetical continuation of the context, without changing the index.

`tail[:length]` are the tokens that might follow the context.
"""

from __future__ import annotations

import numpy as np

from adaspec.draft.answers import LONGEST_MATCH
from adaspec.draft.batch import (
    AGREE,
    AVAILABLE,
    EARLIEST,
    FACTS,
    GROUP,
    LENGTH,
    SEEN,
    START,
    Ints,
    Longs,
    fetch_bucket,
    fetch_record,
    fetch_tokens,
    first_closed,
    read_answers,
    read_facts,
)
from adaspec.draft.memory import load, load_long
from adaspec.draft.trie import (
    ANSWERS,
    FIRST,
    LAST,
    MAX_MATCH,
    NODE_BITS,
    RING,
    SENTINEL,
    TOKEN_COUNT,
    find_child,
    key_of,
    record_of,
    token_address,
)
from adaspec.jit import compiled


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
    for first in range(0, len(slots), GROUP):
        last = min(first + GROUP, len(slots))
        read_behind(
            bases[slots[first:last]],
            tails,
            rows[first:last],
            tail_lengths[first:last],
            facts,
            first,
        )
    return -1


@compiled
def read_behind(
    bases: Longs, tails: Ints, tail_rows: Longs, lengths: Longs, facts: Ints, first: int
) -> None:
    """Write to column first + i of `facts` what `read_facts` would write after appending tail i.

    The tail of the request at bases[i] is tails[tail_rows[i], :lengths[i]]. There are at most
    GROUP requests, and they advance together as in `extend_rows`.
    """
    work = np.empty((8, GROUP), np.int64)
    keys, buckets, limits, unfinished = work[0], work[1], work[2], work[3]
    steps, leaves, others, holders = work[4], work[5], work[6], work[7]
    path = np.empty((GROUP, MAX_MATCH + 1), np.int64)
    count = 0
    for row in range(len(bases)):
        base, length = bases[row], lengths[row]
        steps[row] = leaves[row] = 0
        if length == 0:
            read_facts(base, facts, first + row)
            continue
        limits[row] = min(MAX_MATCH, load(base, TOKEN_COUNT) + length)
        keys[row] = _key_behind(base, tails[tail_rows[row]], length, 0)
        buckets[row] = fetch_bucket(base, keys[row])
        unfinished[count] = row
        count += 1
    while count:
        kept = 0
        for place in range(count):
            row = unfinished[place]
            base = bases[row]
            address = find_child(base, keys[row], buckets[row])
            child = load(address, 0) if address != 0 else 0
            if child < 0:
                leaves[row] = child
                fetch_tokens(base, ~child)
                continue
            if child > 0:
                path[row, steps[row]] = child
                steps[row] += 1
            if child > 0 and child >> NODE_BITS < limits[row]:
                keys[row] = _key_behind(base, tails[tail_rows[row]], lengths[row], child)
                buckets[row] = fetch_bucket(base, keys[row])
                unfinished[kept] = row
                kept += 1
            elif steps[row] > 0:
                fetch_record(base, path[row, steps[row] - 1])
        count = kept
    for row in range(len(bases)):
        others[row] = ~leaves[row] if leaves[row] < 0 else 0
        if others[row] == 0 and steps[row] > 0:
            others[row] = load(record_of(bases[row], path[row, steps[row] - 1]), LAST) >> 3
            fetch_tokens(bases[row], others[row])
    longest = keys
    for row in range(len(bases)):
        if lengths[row] > 0:
            base, tail = bases[row], tails[tail_rows[row]]
            matched = 0
            if others[row]:
                end = others[row] - load(base, TOKEN_COUNT)
                matched = _match_within(base, tail, lengths[row], end, limits[row])
            longest[row] = matched
            holders[row] = _holder(path[row], steps[row], leaves[row], matched)
            if holders[row] > 0:
                fetch_record(base, holders[row])
    for row in range(len(bases)):
        if lengths[row] > 0:
            tail = tails[tail_rows[row]]
            _write_facts(
                bases[row], tail, lengths[row], longest[row], holders[row], facts, first + row
            )
            if load_long(bases[row], ANSWERS) != 0:
                _read_answers_behind(bases[row], tail, lengths[row], facts, first + row)


@compiled
def _read_answers_behind(base: int, tail: Ints, length: int, facts: Ints, column: int) -> None:
    """As `read_answers`, behind context + tail[:length]."""
    known = min(load(base, TOKEN_COUNT) + length, LONGEST_MATCH)
    last = np.empty(known, np.int32)
    for back in range(known):
        last[back] = _token_back(base, tail, length, back)
    read_answers(base, last, known, facts, column)


@compiled
def _token_back(base: int, tail: Ints, end: int, back: int) -> int:
    """The token `back` places before the end of context + tail[:end], or the sentinel at its start.

    With a negative `end`, that many tokens at the end of the context are left out.
    """
    if back < end:
        return int(tail[end - 1 - back])
    return load(token_address(base, load(base, TOKEN_COUNT) - 1), end - back)


@compiled
def _match_within(base: int, tail: Ints, length: int, end: int, limit: int) -> int:
    """How many last tokens context + tail[:length] shares with context + tail[:end], to `limit`."""
    for back in range(limit):
        if _token_back(base, tail, length, back) != _token_back(base, tail, end, back):
            return back
    return limit


@compiled
def _key_behind(base: int, tail: Ints, length: int, parent: int) -> int:
    """The key of the branch of context + tail[:length] below `parent`."""
    return key_of(parent, _token_back(base, tail, length, parent >> NODE_BITS))


@compiled
def _holder(path: Longs, steps: int, leaf: int, matched: int) -> int:
    """The leaf or node with the occurrences of the longest match within the context, or 0.

    The descent took the first `steps` nodes of `path`, and ended in `leaf` unless that is 0.
    """
    if matched == 0:
        return 0
    holder = leaf if leaf != 0 else path[steps - 1]
    while steps > 0 and path[steps - 1] >> NODE_BITS > matched:
        steps -= 1
        holder = path[steps]
    return holder


@compiled
def _write_facts(
    base: int, tail: Ints, length: int, longest: int, holder: int, facts: Ints, column: int
) -> None:
    """Combine the match within the context with those that end in the tail, and write the facts."""
    known = load(base, TOKEN_COUNT)
    if holder == ~known:
        # This is the newest end; the loop below finds it, as the tail's first token follows it.
        longest = 0
    longest_in_context = longest
    for end in range(length):
        limit = min(MAX_MATCH, known + end)
        longest = max(longest, _match_within(base, tail, length, end, limit))
    for fact in range(FACTS):
        facts[fact, column] = 0
    facts[START, column] = facts[EARLIEST, column] = -1
    if longest == 0:
        return
    start = earliest = -1
    follower = seen = agree = 0
    for end in range(length - 1, -1, -1):
        limit = min(longest, known + end)
        if _match_within(base, tail, length, end, limit) < longest:
            continue
        earliest = known + end
        if start < 0:
            start, follower = earliest, int(tail[end])
        if seen < RING:
            seen += 1
            agree += int(tail[end]) == follower
    if longest_in_context == longest:
        if holder < 0:
            earliest = ~holder
            token = load(token_address(base, earliest), 0)
            if start < 0:
                start, follower = earliest, token
            if seen < RING:
                seen += 1
                agree += token == follower
        else:
            record = record_of(base, holder)
            last = load(record, LAST)
            earliest = load(record, FIRST)
            if start < 0:
                start, follower = last >> 3, load(record, last & (RING - 1))
            for back in range(RING):
                token = load(record, (last - back) & (RING - 1))
                if seen < RING and token != SENTINEL:
                    seen += 1
                    agree += token == follower
    facts[LENGTH, column] = longest
    facts[START, column] = start
    facts[EARLIEST, column] = earliest
    facts[AGREE, column] = agree
    facts[SEEN, column] = seen
    facts[AVAILABLE, column] = known + length - start

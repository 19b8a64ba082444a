"""Compiled functions that work on the index of many requests at once.

Every function over rows takes `bases`, the address of each slot's buffer (0 if closed), and the
wanted slots. It returns the first row whose slot is not open, or -1. The facts about matches are
written to the rows LENGTH .. AVAILABLE of an int32 array, with one column per request.

The tries of the requests are far apart in memory, and no longer in the cache at the next step. If
requests were handled one after another, every access would wait for memory. So requests advance
together in groups: their waits overlap, and each address is prefetched one stage before it is
needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.answers import IN_ANSWERS, LONGEST_MATCH, answer_token, find_answer, is_better
from adaspec.draft.memory import load, load_long, prefetch
from adaspec.draft.trie import (
    ANSWERS,
    FIRST,
    LAST,
    LINE_WORDS,
    NO_LEAF,
    NO_SIBLING,
    NODE_BITS,
    OWNER,
    PATH_LENGTH,
    PATH_OFFSET,
    RING,
    SENTINEL,
    TOKEN_COUNT,
    append,
    attach_leaf,
    bucket_address,
    bucket_of,
    deepest,
    descend,
    end_below,
    key_below,
    lacks_room,
    locate,
    max_compared,
    record_of,
    register,
    token_address,
)
from adaspec.jit import compiled

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

LENGTH, START, EARLIEST, AGREE, SEEN, AVAILABLE, FACTS = range(7)
READY, MISCOUNTED, CLOSED, FULL = range(4)
"""The states that `extend_rows` returns: done, or the kind of error."""
GROUP = 16


@compiled
def read_facts(base: int, facts: Ints, column: int) -> None:
    """Write the facts about the match at a request's newest end to a column of `facts`."""
    _read_own(base, facts, column)
    if load_long(base, ANSWERS) != 0:
        known = min(load(base, TOKEN_COUNT), LONGEST_MATCH)
        end, tail = token_address(base, load(base, TOKEN_COUNT)), np.empty(known, np.int32)
        for back in range(known):
            tail[back] = load(end, -1 - back)
        read_answers(base, tail, known, facts, column)


@compiled
def read_answers(base: int, tail: Ints, known: int, facts: Ints, column: int) -> None:
    """Write the facts about a match in earlier answers, if it is better than the own one.

    `tail` has the last `known` tokens, the last one first.
    """
    own = facts[LENGTH, column]
    if own >= LONGEST_MATCH:
        return
    length, place, agree, seen, available = find_answer(
        load_long(base, ANSWERS), load(base, OWNER), tail, known, own
    )
    if length > 0 and is_better(own, length, agree, seen):
        facts[LENGTH, column] = length
        facts[START, column] = facts[EARLIEST, column] = IN_ANSWERS + place
        facts[AGREE, column], facts[SEEN, column] = agree, seen
        facts[AVAILABLE, column] = available


@compiled
def copied_token(base: int, start: int, step: int) -> int:
    """The token `step` behind where a match continues, in the own text or in earlier answers."""
    if start >= IN_ANSWERS:
        return answer_token(load_long(base, ANSWERS), start - IN_ANSWERS, step)
    return load(token_address(base, start), step)


@compiled
def _read_own(base: int, facts: Ints, column: int) -> None:
    """Write the facts about the match in a request's own text."""
    node = deepest(base)
    if node == 0:
        for fact in range(FACTS):
            facts[fact, column] = 0
        facts[START, column] = facts[EARLIEST, column] = -1
        return
    record = record_of(base, node)
    last = load(record, LAST)
    follower = load(record, last & (RING - 1))
    agree = seen = 0
    for slot in range(RING):
        token = load(record, slot)
        agree += token == follower
        seen += token != SENTINEL
    facts[LENGTH, column] = node >> NODE_BITS
    facts[START, column] = last >> 3
    facts[EARLIEST, column] = load(record, FIRST)
    facts[AGREE, column] = agree
    facts[SEEN, column] = seen
    facts[AVAILABLE, column] = load(base, TOKEN_COUNT) - (last >> 3)


@compiled
def earliest_at_most(base: int, min_n: int, max_n: int) -> tuple[int, int]:
    """(earliest start, length) of the longest match of min_n to max_n tokens; (-1, 0) if none."""
    length = min(deepest(base) >> NODE_BITS, max_n)
    if length < min_n or length == 0:
        return -1, 0
    step = 0
    while load(base, PATH_OFFSET + step) >> NODE_BITS < length:
        step += 1
    return load(record_of(base, load(base, PATH_OFFSET + step)), FIRST), length


@compiled
def append_run(base: int, tokens: Ints, first: int) -> int:
    """Append tokens[first:] to one request until there is no room; returns where it stopped."""
    while first < len(tokens) and not lacks_room(base, 1):
        append(base, tokens[first])
        first += 1
    return first


@compiled
def first_closed(bases: Longs, slots: Longs) -> int:
    """The first row whose slot is not open, or -1."""
    for row in range(len(slots)):
        slot = slots[row]
        if slot < 0 or slot >= len(bases) or bases[slot] == 0:
            return row
    return -1


@compiled
def lookup_rows(bases: Longs, slots: Longs, facts: Ints) -> int:
    """Fill `facts` with the facts about each row's match."""
    closed = first_closed(bases, slots)
    if closed < 0:
        for row in range(len(slots)):
            read_facts(bases[slots[row]], facts, row)
    return closed


@compiled
def tail_rows(bases: Longs, slots: Longs, tail: Ints) -> int:
    """Write the last tokens of each row to `tail`, flush right; words to their left are kept."""
    closed = first_closed(bases, slots)
    if closed < 0:
        for row in range(len(slots)):
            base = bases[slots[row]]
            known, width = load(base, TOKEN_COUNT), tail.shape[1]
            end = token_address(base, known)
            for back in range(1, min(width, known) + 1):
                tail[row, width - back] = load(end, -back)
    return closed


@compiled
def copy_rows(bases: Longs, slots: Longs, starts: Longs | Ints, tokens: Ints) -> int:
    """Fill each row with the tokens of its context from its start on, up to the context's end."""
    closed = first_closed(bases, slots)
    if closed < 0:
        for row in range(len(slots)):
            base, start = bases[slots[row]], starts[row]
            if start < 0:
                continue
            ends_at = tokens.shape[1]
            if start < IN_ANSWERS:
                ends_at = min(ends_at, load(base, TOKEN_COUNT) - start)
            for step in range(ends_at):
                tokens[row, step] = copied_token(base, start, step)
                if tokens[row, step] < 0:
                    break
    return closed


@compiled
def survey_rows(bases: Longs, slots: Longs, facts: Ints, tail: Ints, copied: Ints) -> int:
    """Run `lookup_rows`, `tail_rows`, and `copy_rows` from the starts of the matches."""
    closed = lookup_rows(bases, slots, facts)
    if closed < 0:
        tail_rows(bases, slots, tail)
        copy_rows(bases, slots, facts[START], copied)
    return closed


@compiled
def match_vllm_rows(
    bases: Longs, slots: Longs, min_n: int, max_n: int, starts: Ints, lengths: Ints
) -> int:
    """Fill `starts` and `lengths` with the match that vLLM's look-up uses, (-1, 0) if none."""
    closed = first_closed(bases, slots)
    if closed < 0:
        for row in range(len(slots)):
            starts[row], lengths[row] = earliest_at_most(bases[slots[row]], min_n, max_n)
    return closed


@compiled
def propose_rows(
    bases: Longs,
    slots: Longs,
    starts: Longs,
    counts: Longs,
    tails: Ints,
    tail_lengths: Longs,
    drafts: Ints,
) -> int:
    """Copy counts[i] tokens from starts[i] of the context and its tail into row i of `drafts`."""
    closed = first_closed(bases, slots)
    if closed >= 0:
        return closed
    for row in range(len(slots)):
        start = starts[row]
        if start < 0:
            continue
        base = bases[slots[row]]
        if start >= IN_ANSWERS:
            for step in range(counts[row]):
                drafts[row, step] = copied_token(base, start, step)
                if drafts[row, step] < 0:
                    break
            continue
        known, tokens = load(base, TOKEN_COUNT), token_address(base, 0)
        for step in range(min(counts[row], known + tail_lengths[row] - start)):
            place = start + step
            drafts[row, step] = load(tokens, place) if place < known else tails[row, place - known]
    return -1


@compiled
def all_within(values: Longs, most: int) -> bool:
    """Whether all values are from 0 to `most`."""
    fits = True
    for value in values:
        fits &= 0 <= value <= most
    return fits


@compiled
def extend_rows(bases: Longs, slots: Longs, tokens: Ints, counts: Longs) -> tuple[int, int]:
    """Append counts[i] tokens to slots[i], all or none; returns (READY, -1) or (error, row)."""
    fits = len(counts) == len(slots) and counts.sum() == len(tokens)
    if not fits or not all_within(counts, len(tokens)):
        return MISCOUNTED, -1
    state, wrong_row = _check_rows(bases, slots, counts)
    if state != READY:
        return state, wrong_row
    work = np.empty((8, GROUP), np.int64)
    group_bases, group_tokens, starts = work[5], work[6], work[7]
    taken = 0
    for first in range(0, len(slots), GROUP):
        rows = min(GROUP, len(slots) - first)
        longest = 0
        for row in range(rows):
            starts[row] = taken
            taken += counts[first + row]
            longest = max(longest, counts[first + row])
            _fetch_request(bases[slots[first + row]])
        for step in range(longest):
            size = 0
            for row in range(rows):
                if step < counts[first + row]:
                    group_bases[size] = bases[slots[first + row]]
                    group_tokens[size] = tokens[starts[row] + step]
                    size += 1
            _append_group(group_bases, group_tokens, size, work)
    return READY, -1


@compiled
def _check_rows(bases: Longs, slots: Longs, counts: Longs) -> tuple[int, int]:
    """(READY, -1), or the kind of error and the first row that has it."""
    closed = first_closed(bases, slots)
    if closed >= 0:
        return CLOSED, closed
    for row in range(len(slots)):
        if lacks_room(bases[slots[row]], counts[row]):
            return FULL, row
    return READY, -1


@compiled
def _append_group(bases: Longs, tokens: Longs, size: int, work: Longs) -> None:
    """Append tokens[i] to the request at bases[i] for each of the first `size`."""
    keys, buckets, children, limits, unfinished = work[0], work[1], work[2], work[3], work[4]
    for row in range(size):
        base = bases[row]
        register(base, tokens[row])
        limits[row] = max_compared(base)
        _fetch_branch(base, 0, keys, buckets, row)
        unfinished[row] = row
    count = size
    while count:
        kept = 0
        for place in range(count):
            row = unfinished[place]
            base = bases[row]
            child = descend(base, keys[row], buckets[row])
            children[row] = child
            if child < 0:
                fetch_tokens(base, ~child)
            elif child == 0 or child >> NODE_BITS >= limits[row]:
                fetch_record(base, deepest(base))
            else:
                _fetch_branch(base, child, keys, buckets, row)
                unfinished[kept] = row
                kept += 1
        count = kept
    others, siblings = keys, children
    for row in range(size):
        others[row] = end_below(bases[row], children[row])
        fetch_tokens(bases[row], others[row])
    for row in range(size):
        siblings[row] = locate(bases[row], limits[row], children[row], others[row])
        _fetch_leaves(bases[row], siblings[row], others[row])
    for row in range(size):
        attach_leaf(bases[row], siblings[row], others[row])


@compiled
def fetch_record(base: int, node: int) -> None:
    """Prefetch a node's record, which may span two cache lines."""
    record = record_of(base, node)
    prefetch(record)
    prefetch(record + 36)


@compiled
def fetch_tokens(base: int, end: int) -> None:
    """Prefetch the tokens just before `end`."""
    prefetch(token_address(base, end - 1))


@compiled
def fetch_bucket(base: int, key: int) -> int:
    """Prefetch the bucket in which the search for `key` starts, and return it."""
    bucket = bucket_of(base, key)
    prefetch(bucket_address(base, bucket))
    return bucket


@compiled
def _fetch_branch(base: int, parent: int, keys: Longs, buckets: Longs, row: int) -> None:
    """Compute the key of the newest end's branch below `parent`, and prefetch its bucket."""
    keys[row] = key_below(base, parent, load(base, TOKEN_COUNT))
    buckets[row] = fetch_bucket(base, keys[row])


@compiled
def _fetch_leaves(base: int, sibling: int, other: int) -> None:
    """Prefetch the buckets that `attach_leaf` will write, unless `descend` has just used them."""
    if sibling != NO_LEAF and sibling != NO_SIBLING:
        node = deepest(base)
        fetch_bucket(base, key_below(base, node, other))
        fetch_bucket(base, key_below(base, node, load(base, TOKEN_COUNT)))


@compiled
def _fetch_request(base: int) -> None:
    """Prefetch all that `register` writes, and the newest tokens."""
    for step in range(load(base, PATH_LENGTH)):
        fetch_record(base, load(base, PATH_OFFSET + step))
    fetch_tokens(base, load(base, TOKEN_COUNT) + 1)
    fetch_tokens(base, load(base, TOKEN_COUNT) - LINE_WORDS)

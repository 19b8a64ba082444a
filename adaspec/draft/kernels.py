"""What is done to a batch of requests at once, in compiled code.

Every kernel takes `bases`, the address of each slot's buffer (0: closed), and the slots asked for.
Facts are rows of an int32 array, in the order of LENGTH .. AVAILABLE.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.layout import (
    FIRST,
    LAST,
    NODE_BITS,
    NODE_MASK,
    PATH_AT,
    RING,
    SENTINEL,
    TOKENS,
    TOKENS_AT,
    short_of_room,
)
from adaspec.draft.memory import load
from adaspec.draft.trie import append, deepest, record_of
from adaspec.jit import compiled

LENGTH, START, EARLIEST, AGREE, SEEN, AVAILABLE, FACTS = range(7)


@compiled
def read_facts(base: int, facts: NDArray[np.int32], row: int) -> None:
    """Write what is known about the newest end to column `row` of `facts`."""
    node = deepest(base)
    if node == 0:
        for fact in range(FACTS):
            facts[fact, row] = 0
        facts[START, row] = facts[EARLIEST, row] = -1
        return
    record = record_of(base, node & NODE_MASK)
    last = load(record, LAST)
    follower = load(record, last & (RING - 1))
    agree = seen = 0
    for slot in range(RING):
        token = load(record, slot)
        agree += token == follower
        seen += token != SENTINEL
    facts[LENGTH, row] = node >> NODE_BITS
    facts[START, row] = last >> 3
    facts[EARLIEST, row] = load(record, FIRST)
    facts[AGREE, row] = agree
    facts[SEEN, row] = seen
    facts[AVAILABLE, row] = load(base, TOKENS) - (last >> 3)


@compiled
def append_run(base: int, tokens: NDArray[np.int32], at: int) -> int:
    """Append tokens[at:] to one request until its room runs out; returns where it stopped."""
    while at < len(tokens) and not short_of_room(base, 1):
        append(base, tokens[at])
        at += 1
    return at


@compiled
def append_positions(
    base: int, tokens: NDArray[np.int32], at: int, facts: NDArray[np.int32]
) -> int:
    """The same as `append_run`, noting before each append what is known: column p of `facts`."""
    while at < len(tokens) and not short_of_room(base, 1):
        read_facts(base, facts, at)
        append(base, tokens[at])
        at += 1
    return at


@compiled
def first_closed(bases: NDArray[np.int64], slots: NDArray[np.int64]) -> int:
    """The first row whose slot is not open, or -1."""
    for row in range(len(slots)):
        slot = slots[row]
        if slot < 0 or slot >= len(bases) or bases[slot] == 0:
            return row
    return -1


@compiled
def lookup_rows(
    bases: NDArray[np.int64], slots: NDArray[np.int64], facts: NDArray[np.int32]
) -> int:
    """Fill `facts`; returns the first row whose slot is not open, or -1."""
    closed = first_closed(bases, slots)
    if closed < 0:
        for row in range(len(slots)):
            read_facts(bases[slots[row]], facts, row)
    return closed


@compiled
def survey_rows(
    bases: NDArray[np.int64],
    slots: NDArray[np.int64],
    facts: NDArray[np.int32],
    tail: NDArray[np.int32],
    copied: NDArray[np.int32],
) -> int:
    """`lookup_rows`, `tail_rows`, and `copy_rows` from where the matches start, in one pass."""
    closed = first_closed(bases, slots)
    if closed >= 0:
        return closed
    for row in range(len(slots)):
        base = bases[slots[row]]
        read_facts(base, facts, row)
        known, at = load(base, TOKENS), load(base, TOKENS_AT)
        for back in range(1, min(tail.shape[1], known) + 1):
            tail[row, tail.shape[1] - back] = load(base, at + known - back)
        start = facts[START, row]
        if start >= 0:
            for step in range(min(copied.shape[1], known - start)):
                copied[row, step] = load(base, at + start + step)
    return -1


@compiled
def earliest_at_most(base: int, min_n: int, max_n: int) -> tuple[int, int]:
    """(earliest start, length) of the longest match of min_n to max_n tokens; (-1, 0) if none."""
    length = min(deepest(base) >> NODE_BITS, max_n)
    if length < min_n or length == 0:
        return -1, 0
    step = 0
    while load(base, PATH_AT + step) >> NODE_BITS < length:
        step += 1
    return load(record_of(base, load(base, PATH_AT + step) & NODE_MASK), FIRST), length


@compiled
def propose_vllm_rows(
    bases: NDArray[np.int64],
    slots: NDArray[np.int64],
    min_n: int,
    max_n: int,
    drafts: NDArray[np.int32],
    lengths: NDArray[np.int32],
) -> None:
    """Fill `drafts` (padded with -1 already) and `lengths` with what vLLM would draft."""
    for row in range(len(slots)):
        base = bases[slots[row]]
        start, matched = earliest_at_most(base, min_n, max_n)
        if matched:
            at = load(base, TOKENS_AT) + start
            count = min(drafts.shape[1], load(base, TOKENS) - start)
            for step in range(count):
                drafts[row, step] = load(base, at + step)
            lengths[row] = count


@compiled
def match_vllm_rows(
    bases: NDArray[np.int64],
    slots: NDArray[np.int64],
    min_n: int,
    max_n: int,
    starts: NDArray[np.int32],
    lengths: NDArray[np.int32],
) -> None:
    """Fill `starts` and `lengths` with the match that vLLM's look-up uses, (-1, 0) if none."""
    for row in range(len(slots)):
        starts[row], lengths[row] = earliest_at_most(bases[slots[row]], min_n, max_n)


@compiled
def propose_rows(
    bases: NDArray[np.int64],
    slots: NDArray[np.int64],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    tails: NDArray[np.int32],
    tail_lengths: NDArray[np.int64],
    drafts: NDArray[np.int32],
) -> int:
    """Copy counts[i] tokens from starts[i] of the context and its tail into row i of `drafts`.

    Returns the first row whose slot is not open, or -1.
    """
    closed = first_closed(bases, slots)
    if closed >= 0:
        return closed
    for row in range(len(slots)):
        base = bases[slots[row]]
        known, tokens_at = load(base, TOKENS), load(base, TOKENS_AT)
        start = starts[row]
        if start < 0:
            continue
        for step in range(min(counts[row], known + tail_lengths[row] - start)):
            at = start + step
            drafts[row, step] = load(base, tokens_at + at) if at < known else tails[row, at - known]
    return -1


@compiled
def all_within(values: NDArray[np.int64], most: int) -> bool:
    """Whether all of them are from 0 to `most`."""
    fits = True
    for value in values:
        fits &= 0 <= value <= most
    return fits


@compiled
def copy_rows(
    bases: NDArray[np.int64],
    slots: NDArray[np.int64],
    starts: NDArray[np.int64],
    tokens: NDArray[np.int32],
) -> int:
    """Fill each row with what its context holds from its start on, as far as that goes.

    Returns the first row whose slot is not open, or -1.
    """
    closed = first_closed(bases, slots)
    if closed < 0:
        for row in range(len(slots)):
            base, start = bases[slots[row]], starts[row]
            if start >= 0:
                at = load(base, TOKENS_AT) + start
                for step in range(min(tokens.shape[1], load(base, TOKENS) - start)):
                    tokens[row, step] = load(base, at + step)
    return closed


@compiled
def tail_rows(bases: NDArray[np.int64], slots: NDArray[np.int64], tail: NDArray[np.int32]) -> int:
    """Write the last tokens of each row, flush right; what is left of them stays as it is.

    Returns the first row whose slot is not open, or -1.
    """
    closed = first_closed(bases, slots)
    if closed < 0:
        width = tail.shape[1]
        for row in range(len(slots)):
            base = bases[slots[row]]
            end = load(base, TOKENS_AT) + load(base, TOKENS)
            for back in range(1, min(width, load(base, TOKENS)) + 1):
                tail[row, width - back] = load(base, end - back)
    return closed


@compiled
def count_rows(
    bases: NDArray[np.int64], slots: NDArray[np.int64], counts: NDArray[np.int32]
) -> None:
    """Write how many tokens each row's context has."""
    for row in range(len(slots)):
        counts[row] = load(bases[slots[row]], TOKENS)


@compiled
def copy_context(base: int, context: NDArray[np.int32]) -> None:
    """Copy the first len(context) tokens of a request."""
    at = load(base, TOKENS_AT)
    for step in range(len(context)):
        context[step] = load(base, at + step)

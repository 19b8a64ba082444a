"""The trie of one request: its layout in the buffer, and how a token is appended.

It is a Patricia trie over the reversed context, cut off at MAX_MATCH tokens. Its strings are the
ends: end e reads c[e-1], c[e-2], .. A leaf is one end and has no record. A node is a string of
`depth` tokens that more than one end starts with: the n-gram and its occurrences.

    header  the counts and offsets below, whose answers are looked up as well (`answers.py`), then
            the path: the nodes on the way to the newest end, shallowest first, as in the table
    tokens  the word before token 0 is SENTINEL, so that no comparison runs past the start
    nodes   NODE_WORDS each: the followers of the latest 8 occurrences (a ring), the latest
            occurrence's end with the ring's head in its low 3 bits, the earliest occurrence's end
    table   buckets of one cache line: 5 keys (parent node, token), 5 children, how many are used
            child > 0: depth << NODE_BITS | node. child < 0: the leaf ~end. 0 is the root

An end is added to the records of its nodes only when its follower is known, one token later.
`append` does the steps (`register`, `descend`, `locate`, `attach_leaf`) for one request, and
`batch` does them for many side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.memory import load, load_long, store, store_long
from adaspec.jit import compiled

TOKEN_COUNT, TOKEN_ROOM, NODE_COUNT, NODE_ROOM, ENTRY_COUNT, ENTRY_ROOM = range(6)
BUCKET_COUNT, PATH_LENGTH, TOKENS_OFFSET, NODES_OFFSET, TABLE_OFFSET, OWNER = range(6, 12)
ANSWERS = 6
"""The index, in words of 64 bits, of the address of the answers; 0 where there are none."""
PATH_OFFSET = 16
MAX_MATCH = 32
HEADER_WORDS = PATH_OFFSET + MAX_MATCH

RING = 8
LAST, FIRST = RING, RING + 1
NODE_WORDS = RING + 2
NODE_BITS = 25
NODE_MASK = (1 << NODE_BITS) - 1
MAX_TOKENS = NODE_MASK - 1

BUCKET_WORDS = 16
BUCKET_KEYS = 5
BUCKET_LOAD = 4
CHILDREN, USED = 10, 15

SENTINEL = -(1 << 31)
LINE_WORDS = 16

NO_SIBLING, NO_LEAF = 0, 1
"""The results of `locate` if no leaf or node moves; leaves are negative, and nodes have a depth."""


@dataclass(frozen=True, slots=True)
class Room:
    """The numbers of tokens, nodes and table entries that a buffer has room for."""

    tokens: int
    nodes: int
    entries: int

    @property
    def words(self) -> int:
        """The size of the buffer in words."""
        return self._table_offset + self._buckets * BUCKET_WORDS

    @property
    def _buckets(self) -> int:
        """The number of buckets of the table; the last few are for the overflow of full ones."""
        return self.entries // BUCKET_LOAD + 2

    @property
    def _nodes_offset(self) -> int:
        return HEADER_WORDS + 1 + self.tokens

    @property
    def _table_offset(self) -> int:
        """The word at which the table starts, which is on a cache line."""
        end = self._nodes_offset + (self.nodes + 1) * NODE_WORDS
        return -(-end // LINE_WORDS) * LINE_WORDS

    def lay_out(self, words: NDArray[np.int32]) -> None:
        """Make `words` an empty request's buffer."""
        words[:HEADER_WORDS] = 0
        words[self._table_offset :] = 0
        words[HEADER_WORDS] = SENTINEL
        words[TOKEN_ROOM] = self.tokens
        words[NODE_COUNT] = 1  # node 0 is the root and has no record
        words[NODE_ROOM] = self.nodes + 1
        words[ENTRY_ROOM] = (self._buckets - 1) * BUCKET_LOAD
        words[BUCKET_COUNT] = self._buckets
        words[TOKENS_OFFSET] = HEADER_WORDS + 1
        words[NODES_OFFSET] = self._nodes_offset
        words[TABLE_OFFSET] = self._table_offset


@compiled
def lacks_room(base: int, tokens: int) -> bool:
    """Whether appending `tokens` tokens might need more room than the buffer has."""
    return (
        load(base, TOKEN_COUNT) + tokens > load(base, TOKEN_ROOM)
        or load(base, NODE_COUNT) + tokens > load(base, NODE_ROOM)
        or load(base, ENTRY_COUNT) + 2 * tokens > load(base, ENTRY_ROOM)
    )


@compiled
def key_of(node: int, token: int) -> int:
    """The table's key of (node, token); it is never 0, which marks an unused key."""
    return (((node & NODE_MASK) + 1) << 32) | (token & 0xFFFFFFFF)


@compiled
def bucket_of(base: int, key: int) -> int:
    """The bucket in which the search for `key` starts."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    buckets = np.uint64(load(base, BUCKET_COUNT))
    return int(np.int64(((mixed >> np.uint64(32)) * buckets) >> np.uint64(32)))


@compiled
def bucket_address(base: int, bucket: int) -> int:
    """The address of a bucket of the table."""
    return base + 4 * (load(base, TABLE_OFFSET) + bucket * BUCKET_WORDS)


@compiled
def find_child(base: int, key: int, bucket: int) -> int:
    """The address of the child under `key`, or 0; the search starts at `bucket`."""
    while True:
        line = bucket_address(base, bucket)
        match = -1
        for slot in range(BUCKET_KEYS):
            match = slot if load_long(line, slot) == key else match
        if match >= 0:
            return line + 4 * (CHILDREN + match)
        if load(line, USED) < BUCKET_KEYS:
            return 0
        bucket = bucket + 1 if bucket + 1 < load(base, BUCKET_COUNT) else 0


@compiled
def insert_child(base: int, key: int, child: int) -> None:
    """Add `child` under `key`, which must not be there yet."""
    bucket = bucket_of(base, key)
    while True:
        line = bucket_address(base, bucket)
        used = load(line, USED)
        if used < BUCKET_KEYS:
            store_long(line, used, key)
            store(line, CHILDREN + used, child)
            store(line, USED, used + 1)
            store(base, ENTRY_COUNT, load(base, ENTRY_COUNT) + 1)
            return
        bucket = bucket + 1 if bucket + 1 < load(base, BUCKET_COUNT) else 0


@compiled
def copy_table(old: int, new: int) -> None:
    """Add all children of the request at address `old` to the larger, empty table of `new`."""
    for bucket in range(load(old, BUCKET_COUNT)):
        line = bucket_address(old, bucket)
        for slot in range(load(line, USED)):
            insert_child(new, load_long(line, slot), load(line, CHILDREN + slot))


@compiled
def token_address(base: int, position: int) -> int:
    """The address of a token; `position` -1 is that of the sentinel."""
    return base + 4 * (load(base, TOKENS_OFFSET) + position)


@compiled
def record_of(base: int, node: int) -> int:
    """The address of a node's record; `node` may be in the form of the table."""
    return base + 4 * (load(base, NODES_OFFSET) + (node & NODE_MASK) * NODE_WORDS)


@compiled
def deepest(base: int) -> int:
    """The last node on the path, in the form of the table; 0, the root, if there is none."""
    length = load(base, PATH_LENGTH)
    return load(base, PATH_OFFSET + length - 1) if length > 0 else 0


@compiled
def key_below(base: int, parent: int, end: int) -> int:
    """The key of an end's branch below `parent`, a node in the form of the table."""
    return key_of(parent, load(token_address(base, end - 1), -(parent >> NODE_BITS)))


@compiled
def register(base: int, token: int) -> None:
    """Append `token`, and add the end before it to the records of all nodes on the path."""
    end = load(base, TOKEN_COUNT)
    for step in range(load(base, PATH_LENGTH)):
        record = record_of(base, load(base, PATH_OFFSET + step))
        head = (load(record, LAST) + 1) & (RING - 1)
        store(record, head, token)
        store(record, LAST, end << 3 | head)
    store(token_address(base, end), 0, token)
    store(base, TOKEN_COUNT, end + 1)
    store(base, PATH_LENGTH, 0)


@compiled
def descend(base: int, key: int, bucket: int) -> int:
    """Follow a branch from its key and first bucket; returns the child, or 0 if there is none.

    An inner node is added to the path. Only the branch's first token is compared, because `locate`
    compares the rest once, at the end of the descent.
    """
    address = find_child(base, key, bucket)
    if address == 0:
        return 0
    child = load(address, 0)
    if child >= 0:
        length = load(base, PATH_LENGTH)
        store(base, PATH_OFFSET + length, child)
        store(base, PATH_LENGTH, length + 1)
    return child


@compiled
def end_below(base: int, child: int) -> int:
    """Any end below the place where a descent ended with `child`; 0 at the root."""
    if child < 0:
        return ~child
    node = deepest(base)
    return load(record_of(base, node), LAST) >> 3 if node > 0 else 0


@compiled
def max_compared(base: int) -> int:
    """The number of tokens of the newest end's string to compare at most, sentinel included."""
    return min(MAX_MATCH, load(base, TOKEN_COUNT) + 1)


@compiled
def locate(base: int, limit: int, child: int, other: int) -> int:
    """Cut the path so that it ends in the node of the newest end's longest match.

    The descent ended at `child`, with the end `other` below it, and at most `limit` tokens are
    compared. Returns the sibling that `attach_leaf` moves below that node beside the new leaf, or
    NO_SIBLING, or NO_LEAF if no leaf is added either.
    """
    end = load(base, TOKEN_COUNT)
    if other == 0:
        return NO_SIBLING
    tokens = token_address(base, 0)
    length = 0
    while length < limit and load(tokens, end - 1 - length) == load(tokens, other - 1 - length):
        length += 1

    sibling = min(child, 0)
    steps = load(base, PATH_LENGTH)
    while steps > 0 and load(base, PATH_OFFSET + steps - 1) >> NODE_BITS > length:
        steps -= 1
        sibling = load(base, PATH_OFFSET + steps)
    store(base, PATH_LENGTH, steps)
    is_cut_off = length >= MAX_MATCH
    if sibling == 0:
        return NO_LEAF if is_cut_off else NO_SIBLING

    key = key_below(base, deepest(base), end)
    node = length << NODE_BITS | split(base, sibling)
    store(base, PATH_OFFSET + steps, node)
    store(base, PATH_LENGTH, steps + 1)
    store(find_child(base, key, bucket_of(base, key)), 0, node)
    return NO_LEAF if is_cut_off else sibling


@compiled
def split(base: int, child: int) -> int:
    """A new node with the occurrences of `child`, a leaf or node in the form of the table."""
    node = load(base, NODE_COUNT)
    store(base, NODE_COUNT, node + 1)
    record = record_of(base, node)
    if child > 0:
        source = record_of(base, child)
        for word in range(NODE_WORDS):
            store(record, word, load(source, word))
        return node
    store(record, 0, load(token_address(base, ~child), 0))
    for slot in range(1, RING):
        store(record, slot, SENTINEL)
    store(record, LAST, ~child << 3)
    store(record, FIRST, ~child)
    return node


@compiled
def attach_leaf(base: int, sibling: int, other: int) -> None:
    """Add the newest end's leaf, with `sibling` beside it, below the node of its longest match."""
    if sibling == NO_LEAF:
        return
    node, end = deepest(base), load(base, TOKEN_COUNT)
    if sibling != NO_SIBLING:
        insert_child(base, key_below(base, node, other), sibling)
    insert_child(base, key_below(base, node, end), ~end)


@compiled
def append(base: int, token: int) -> None:
    """Append one token to a request that has room for it."""
    register(base, token)
    end, limit = load(base, TOKEN_COUNT), max_compared(base)
    child = 0
    while True:
        key = key_below(base, child, end)
        child = descend(base, key, bucket_of(base, key))
        if child <= 0 or child >> NODE_BITS >= limit:
            break
    other = end_below(base, child)
    attach_leaf(base, locate(base, limit, child, other), other)

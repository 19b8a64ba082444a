"""One request's buffer: header, tokens, nodes, table; how large it is made and how it is moved.

The buffer holds a Patricia trie over the reversed context, cut off at `max_match` tokens. Its
strings are the ends: end e reads c[e-1], c[e-2], .. A leaf is one end and has no record. A node is
a string of `depth` tokens that more than one end starts with: the n-gram and its occurrences.

    header  counts and offsets below, then the path: the nodes on the way to the newest end,
            shallowest first, as the table writes them
    tokens  the word before token 0 is SENTINEL, so that no comparison runs past the start
    nodes   NODE_WORDS each: the followers of the latest 8 occurrences (a ring), the latest
            occurrence's end with the ring's head in its low 3 bits, the earliest occurrence's end
    table   buckets of one cache line: 5 keys (parent node, token), 5 children, how many are used
            child >= 0: depth << NODE_BITS | node. child < 0: the leaf ~end

An end joins its nodes' records only when its follower is known, one token later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.memory import load, load_long, store, store_long
from adaspec.jit import compiled

TOKENS, TOKEN_ROOM, NODES, NODE_ROOM, ENTRIES, ENTRY_ROOM, BUCKETS, PATH = range(8)
TOKENS_AT, NODES_AT, TABLE_AT, MAX_MATCH, BUSY = range(8, 13)
PATH_AT = 16
LONGEST_MATCH = 32
HEADER_WORDS = PATH_AT + LONGEST_MATCH
TOKENS_START = HEADER_WORDS + 1

RING = 8
LAST, FIRST = RING, RING + 1
NODE_WORDS = RING + 2
NODE_BITS = 25
NODE_MASK = (1 << NODE_BITS) - 1
MOST_TOKENS = NODE_MASK - 1

BUCKET_WORDS = 16
BUCKET_KEYS = 5
BUCKET_LOAD = 4
CHILDREN, USED = 10, 15

SENTINEL = -(1 << 31)
LINE_WORDS = 16


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens, nodes and table entries a buffer has room for."""

    tokens: int
    nodes: int
    entries: int

    @property
    def words(self) -> int:
        """Words of such a buffer."""
        return self.table_at + self.buckets * BUCKET_WORDS

    @property
    def buckets(self) -> int:
        """Buckets of the table: the last few stay for unlucky ones to spill into."""
        return self.entries // BUCKET_LOAD + 2

    @property
    def nodes_at(self) -> int:
        """Where the nodes start."""
        return TOKENS_START + self.tokens

    @property
    def table_at(self) -> int:
        """Where the table starts, on a cache line."""
        return -(-(self.nodes_at + (self.nodes + 1) * NODE_WORDS) // LINE_WORDS) * LINE_WORDS

    def lay_out(self, words: NDArray[np.int32], max_match: int) -> None:
        """Make `words` an empty request's buffer."""
        words[:HEADER_WORDS] = 0
        words[self.table_at :] = 0
        words[TOKENS_START - 1] = SENTINEL
        words[TOKEN_ROOM] = self.tokens
        words[NODES] = 1  # node 0 is the root and has no record
        words[NODE_ROOM] = self.nodes + 1
        words[ENTRY_ROOM] = (self.buckets - 1) * BUCKET_LOAD
        words[BUCKETS] = self.buckets
        words[TOKENS_AT] = TOKENS_START
        words[NODES_AT] = self.nodes_at
        words[TABLE_AT] = self.table_at
        words[MAX_MATCH] = max_match


@compiled
def key_of(node: int, token: int) -> int:
    """The table's key of (node, token); never 0, which is what an unused key holds."""
    return ((node + 1) << 32) | (token & 0xFFFFFFFF)


@compiled
def bucket_of(key: int, buckets: int) -> int:
    """The bucket in which the search for `key` starts."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return int(np.int64(((mixed >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)))


@compiled
def find_from(table: int, buckets: int, bucket: int, key: int) -> int:
    """The address of the child under `key`, searched for from `bucket` on, or 0."""
    while True:
        line = table + bucket * (4 * BUCKET_WORDS)
        found = -1
        for slot in range(BUCKET_KEYS):
            found = slot if load_long(line, slot) == key else found
        if found >= 0:
            return line + 4 * (CHILDREN + found)
        if load(line, USED) < BUCKET_KEYS:
            return 0
        bucket = bucket + 1 if bucket + 1 < buckets else 0


@compiled
def find(table: int, buckets: int, node: int, token: int) -> int:
    """The address of the child of `node` along `token`, or 0."""
    key = key_of(node, token)
    return find_from(table, buckets, bucket_of(key, buckets), key)


@compiled
def insert(base: int, node: int, token: int, child: int) -> None:
    """Add the child of `node` along `token`, which must not be there yet."""
    table = base + 4 * load(base, TABLE_AT)
    buckets = load(base, BUCKETS)
    key = key_of(node, token)
    bucket = bucket_of(key, buckets)
    while True:
        line = table + bucket * (4 * BUCKET_WORDS)
        used = load(line, USED)
        if used < BUCKET_KEYS:
            store_long(line, used, key)
            store(line, CHILDREN + used, child)
            store(line, USED, used + 1)
            store(base, ENTRIES, load(base, ENTRIES) + 1)
            return
        bucket = bucket + 1 if bucket + 1 < buckets else 0


@compiled
def short_of_room(base: int, tokens: int) -> bool:
    """Whether appending so many tokens might need more room than the buffer has."""
    return (
        load(base, TOKENS) + tokens > load(base, TOKEN_ROOM)
        or load(base, NODES) + tokens > load(base, NODE_ROOM)
        or load(base, ENTRIES) + 2 * tokens > load(base, ENTRY_ROOM)
    )


@compiled
def move(old: int, new: int) -> None:
    """Copy the request at base `old` into the larger, empty buffer at base `new`."""
    store(new, PATH, load(old, PATH))
    for at in range(PATH_AT, HEADER_WORDS):
        store(new, at, load(old, at))
    store(new, TOKENS, load(old, TOKENS))
    source, target = old + 4 * load(old, TOKENS_AT), new + 4 * load(new, TOKENS_AT)
    for at in range(load(old, TOKENS)):
        store(target, at, load(source, at))
    store(new, NODES, load(old, NODES))
    source, target = old + 4 * load(old, NODES_AT), new + 4 * load(new, NODES_AT)
    for at in range(NODE_WORDS, load(old, NODES) * NODE_WORDS):
        store(target, at, load(source, at))
    line = old + 4 * load(old, TABLE_AT)
    for _ in range(load(old, BUCKETS)):
        for slot in range(load(line, USED)):
            key = load_long(line, slot)
            insert(new, (key >> 32) - 1, key & 0xFFFFFFFF, load(line, CHILDREN + slot))
        line += 4 * BUCKET_WORDS


@compiled
def read_header(base: int, word: int) -> int:
    """One word of the header."""
    return load(base, word)

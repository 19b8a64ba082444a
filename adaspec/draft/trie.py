"""The trie's steps: append one token, read what is known about the newest end.

`append` is `register`, `descend`, `settle`, `attach`; a batch runs these side by side.
"""

from __future__ import annotations

from adaspec.draft.layout import (
    BUCKETS,
    FIRST,
    LAST,
    MAX_MATCH,
    NODE_BITS,
    NODE_MASK,
    NODE_WORDS,
    NODES,
    NODES_AT,
    PATH,
    PATH_AT,
    RING,
    SENTINEL,
    TABLE_AT,
    TOKENS,
    TOKENS_AT,
    bucket_of,
    find,
    find_from,
    insert,
    key_of,
)
from adaspec.draft.memory import load, store
from adaspec.jit import compiled

ALONE, NOTHING = 0, 1
"""Answers of `settle` that no leaf and no node has: leaves are negative, nodes have a depth."""


@compiled
def record_of(base: int, node: int) -> int:
    """The address of a node's record."""
    return base + 4 * (load(base, NODES_AT) + node * NODE_WORDS)


@compiled
def register(base: int, token: int) -> None:
    """Append `token`, and add the end it follows to the record of every node on the path."""
    end = load(base, TOKENS)
    for step in range(load(base, PATH)):
        record = record_of(base, load(base, PATH_AT + step) & NODE_MASK)
        head = (load(record, LAST) + 1) & (RING - 1)
        store(record, head, token)
        store(record, LAST, end << 3 | head)
    store(base, load(base, TOKENS_AT) + end, token)
    store(base, TOKENS, end + 1)
    store(base, PATH, 0)


@compiled
def branch_of(base: int, parent: int) -> tuple[int, int]:
    """(key, bucket) of the newest end's branch below `parent`, given as the table writes it."""
    newest = load(base, TOKENS_AT) + load(base, TOKENS) - 1
    key = key_of(parent & NODE_MASK, load(base, newest - (parent >> NODE_BITS)))
    return key, bucket_of(key, load(base, BUCKETS))


@compiled
def descend(base: int, key: int, bucket: int) -> int:
    """Follow the branch that `branch_of` gave: the child, or 0 if there is none.

    Adds an inner node to the path. Only the branch's first token is compared: `settle` compares
    the rest once, where the descent ends.
    """
    at = find_from(base + 4 * load(base, TABLE_AT), load(base, BUCKETS), bucket, key)
    if at == 0:
        return 0
    child = load(at, 0)
    if child >= 0:
        step = load(base, PATH)
        store(base, PATH_AT + step, child)
        store(base, PATH, step + 1)
    return child


@compiled
def deepest(base: int) -> int:
    """The last node on the path, as the table writes it; 0, the root, if there is none."""
    step = load(base, PATH)
    return load(base, PATH_AT + step - 1) if step > 0 else 0


@compiled
def representative(base: int, reached: int) -> int:
    """An end below the place where the descent ended, given its last answer; 0 at the root."""
    if reached < 0:
        return ~reached
    last = deepest(base)
    return load(record_of(base, last & NODE_MASK), LAST) >> 3 if last > 0 else 0


@compiled
def settle(base: int, limit: int, reached: int, other: int) -> int:
    """Find where the newest end belongs; its path then ends in the node of its longest match.

    `reached` is the last answer of `descend`, `other` its representative; `limit` is how many
    tokens may be compared. Returns what `attach` is to hang below that node beside the new leaf,
    ALONE or NOTHING.
    """
    end = load(base, TOKENS)
    tokens = base + 4 * load(base, TOKENS_AT)
    if other == 0:
        return ALONE
    length = 0
    while length < limit and load(tokens, end - 1 - length) == load(tokens, other - 1 - length):
        length += 1
    most = load(base, MAX_MATCH)

    below = reached if reached < 0 else 0
    steps = load(base, PATH)
    while steps > 0 and load(base, PATH_AT + steps - 1) >> NODE_BITS > length:
        steps -= 1
        below = load(base, PATH_AT + steps)
    store(base, PATH, steps)
    if below == 0:
        return ALONE if length < most else NOTHING

    parent = deepest(base)
    child = length << NODE_BITS | split(base, below)
    store(base, PATH_AT + steps, child)
    store(base, PATH, steps + 1)
    table = base + 4 * load(base, TABLE_AT)
    branch = load(tokens, end - 1 - (parent >> NODE_BITS))
    store(find(table, load(base, BUCKETS), parent & NODE_MASK, branch), 0, child)
    return below if length < most else NOTHING


@compiled
def split(base: int, below: int) -> int:
    """A new node with the occurrences of `below`, a leaf or node as the table writes it."""
    node = load(base, NODES)
    store(base, NODES, node + 1)
    record = record_of(base, node)
    if below > 0:
        source = record_of(base, below & NODE_MASK)
        for word in range(NODE_WORDS):
            store(record, word, load(source, word))
        return node
    store(record, 0, load(base, load(base, TOKENS_AT) + ~below))
    for slot in range(1, RING):
        store(record, slot, SENTINEL)
    store(record, LAST, ~below << 3)
    store(record, FIRST, ~below)
    return node


@compiled
def attach(base: int, below: int, other: int) -> None:
    """Hang the newest end's leaf, and `below` beside it, under the node of its longest match."""
    if below == NOTHING:
        return
    node = deepest(base)
    end = load(base, TOKENS)
    tokens = load(base, TOKENS_AT) - 1 - (node >> NODE_BITS)
    if below != ALONE:
        insert(base, node & NODE_MASK, load(base, tokens + other), below)
    insert(base, node & NODE_MASK, load(base, tokens + end), ~end)


@compiled
def compare_limit(base: int) -> int:
    """How many tokens of the newest end's string may be compared, the sentinel included."""
    return min(load(base, MAX_MATCH), load(base, TOKENS) + 1)


@compiled
def append(base: int, token: int) -> None:
    """Append one token to a request that has room for it."""
    register(base, token)
    limit = compare_limit(base)
    reached = 0
    while True:
        key, bucket = branch_of(base, reached)
        reached = descend(base, key, bucket)
        if reached <= 0 or reached >> NODE_BITS >= limit:
            break
    other = representative(base, reached)
    attach(base, settle(base, limit, reached, other), other)

"""The memory of requests: each has a buffer, which is part of one of a few large slabs.

A step touches some twenty scattered cache lines of every request's buffer. With small pages, nearly
each of them also waits for an address translation. Slabs of this size get huge pages if the system
has them (numpy asks for them), which made a step with 128 x 32k tokens a third shorter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.draft import batch
from adaspec.draft.trie import (
    ANSWERS,
    ENTRY_COUNT,
    HEADER_WORDS,
    LINE_WORDS,
    NODE_COUNT,
    NODE_WORDS,
    NODES_OFFSET,
    OWNER,
    PATH_LENGTH,
    PATH_OFFSET,
    TOKEN_COUNT,
    TOKENS_OFFSET,
    Room,
    copy_table,
)

Ints = NDArray[np.int32]

SLAB_WORDS = (16 << 20) // 4

# Recorded chats, articles and code edits have 0.35-0.5 nodes and 1.25-1.4 entries per token.
NODES_PER_TOKEN = 0.48
ENTRIES_PER_TOKEN = 1.4
SLACK = 1.1
GROWTH = 1.2
SPARE = 32


@dataclass(frozen=True, slots=True)
class Block:
    """Words for one request, starting on a cache line, and the slab they came from."""

    words: Ints
    slab: Slab

    @property
    def base(self) -> int:
        """The address of the first word."""
        return self.words.ctypes.data


def aligned_words(count: int) -> Ints:
    """`count` uninitialised words, starting on a cache line."""
    memory = np.empty(count + LINE_WORDS, np.int32)
    skip = -(memory.ctypes.data // 4) % LINE_WORDS
    return memory[skip : skip + count]


class Slab:
    """One large block, which gives out its first hole that is large enough and joins free holes."""

    def __init__(self, words: int) -> None:
        self._words = aligned_words(words)
        self._base = self._words.ctypes.data
        self._holes = [(0, words)]
        self._touched = 0

    @property
    def nbytes(self) -> int:
        """Bytes up to the highest word ever given out; the system has given no memory beyond it."""
        return self._touched * 4

    @property
    def empty(self) -> bool:
        """Whether everything has been given back."""
        return self._holes == [(0, len(self._words))]

    def take(self, words: int) -> Block | None:
        """A block of `words` words (a multiple of a line), or None if no hole is large enough."""
        for number, (start, size) in enumerate(self._holes):
            if size >= words:
                rest = [(start + words, size - words)] if size > words else []
                self._holes[number : number + 1] = rest
                self._touched = max(self._touched, start + words)
                return Block(self._words[start : start + words], self)
        return None

    def give(self, block: Block) -> None:
        """Take a block back."""
        start = (block.base - self._base) // 4
        holes = sorted([*self._holes, (start, len(block.words))])
        joined = holes[:1]
        for start, size in holes[1:]:
            last_start, last_size = joined[-1]
            if last_start + last_size == start:
                joined[-1] = (last_start, last_size + size)
            else:
                joined.append((start, size))
        self._holes = joined


class Slabs:
    """All slabs; they give out blocks and take them back, and an empty slab is freed.

    With `slab_words=0` every block gets a slab of its size.
    """

    def __init__(self, slab_words: int = SLAB_WORDS) -> None:
        self._slab_words = slab_words
        self._slabs: list[Slab] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all slabs, holes included."""
        return sum(slab.nbytes for slab in self._slabs)

    def take(self, words: int) -> Block:
        """A block of at least `words` words."""
        words = -(-words // LINE_WORDS) * LINE_WORDS
        for slab in self._slabs:
            block = slab.take(words)
            if block is not None:
                return block
        self._slabs.append(Slab(max(self._slab_words, words)))
        return self.take(words)

    def give(self, block: Block) -> None:
        """Take a block back; nothing may use it afterwards."""
        block.slab.give(block)
        if block.slab.empty:
            self._slabs.remove(block.slab)


class RequestBuffer:
    """The block of one request, which grows with it; `base` is its address until it grows again."""

    def __init__(self, prompt_tokens: int, slabs: Slabs, answers: int = 0, owner: int = 0) -> None:
        """`answers` is the address of answers of the same `owner` that are looked up as well."""
        self._slabs = slabs
        tokens = int(prompt_tokens * SLACK) + SPARE
        room = Room(tokens, int(tokens * NODES_PER_TOKEN), int(tokens * ENTRIES_PER_TOKEN))
        self._block = slabs.take(room.words)
        room.lay_out(self._block.words)
        self._block.words[OWNER] = owner
        self._block.words.view(np.int64)[ANSWERS] = answers
        self.base = self._block.base

    def free(self) -> None:
        """Give the memory back; the request must not be used afterwards."""
        self._slabs.give(self._block)

    def append(self, tokens: Ints) -> None:
        """Append any number of tokens."""
        done = 0
        while (done := batch.append_run(self.base, tokens, done)) < len(tokens):
            self._grow_for_run(len(tokens) - done)

    def grow(self, tokens: int) -> None:
        """Make room for `tokens` more tokens, even if none of them repeats."""
        known, nodes, entries = self._counts()
        self._move_to(
            known * GROWTH + tokens, nodes * GROWTH + tokens, entries * GROWTH + 2 * tokens
        )

    def _grow_for_run(self, tokens: int) -> None:
        """Make room for a long run, guessing its nodes and entries from the tokens so far."""
        known, nodes, entries = self._counts()
        growth = min(max(SLACK * (known + tokens) / max(known, 1), GROWTH), 2.0)
        self._move_to(max(known + tokens, known * SLACK), nodes * growth, entries * growth)

    def _counts(self) -> list[int]:
        return self._block.words[[TOKEN_COUNT, NODE_COUNT, ENTRY_COUNT]].tolist()

    def _move_to(self, tokens: float, nodes: float, entries: float) -> None:
        room = Room(int(tokens) + SPARE, int(nodes) + SPARE, int(entries) + SPARE)
        # The copy goes through scratch memory, so that the old block can be given back first. Its
        # room and a hole beside it can then become the new block, which leaves fewer holes.
        scratch = aligned_words(room.words)
        room.lay_out(scratch)
        _copy_request(self._block.words, scratch)
        self._slabs.give(self._block)
        self._block = self._slabs.take(room.words)
        self._block.words[: len(scratch)] = scratch
        self.base = self._block.base


def _copy_request(old: Ints, new: Ints) -> None:
    """Copy a request into a larger, empty buffer."""
    kept = [TOKEN_COUNT, NODE_COUNT, PATH_LENGTH, OWNER, 2 * ANSWERS, 2 * ANSWERS + 1]
    new[kept] = old[kept]
    new[PATH_OFFSET:HEADER_WORDS] = old[PATH_OFFSET:HEADER_WORDS]
    for offset, words in (
        (TOKENS_OFFSET, old[TOKEN_COUNT]),
        (NODES_OFFSET, old[NODE_COUNT] * NODE_WORDS),
    ):
        new[new[offset] : new[offset] + words] = old[old[offset] : old[offset] + words]
    copy_table(old.ctypes.data, new.ctypes.data)

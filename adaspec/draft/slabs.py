"""Memory for many requests, carved out of a few large blocks.

A step touches some twenty scattered lines of every request's buffer. In small pages nearly each of
them waits for an address translation too; blocks of this size are given huge pages where the
system has them (numpy asks for them), which took a third off a step with 128 x 32k tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.layout import LINE_WORDS

Ints = NDArray[np.int32]
SLAB_WORDS = (16 << 20) // 4


@dataclass(frozen=True, slots=True)
class Block:
    """Words for one request, on a cache line's boundary, and the slab they came from."""

    words: Ints
    slab: Slab | None = None

    @property
    def base(self) -> int:
        """The address of the first word."""
        return self.words.ctypes.data


def aligned_words(words: int) -> Ints:
    """So many uninitialised words, starting on a cache line's boundary."""
    memory = np.empty(words + LINE_WORDS, np.int32)
    skip = -(memory.ctypes.data // 4) % LINE_WORDS
    return memory[skip : skip + words]


class Slab:
    """One large block: gives out its first hole that is large enough, joins holes again."""

    def __init__(self, words: int) -> None:
        self._words = aligned_words(words)
        self._base = self._words.ctypes.data
        self._holes = [(0, words)]
        self._touched = 0

    @property
    def nbytes(self) -> int:
        """Bytes up to the highest word ever given out; beyond it the system has lent no memory."""
        return self._touched * 4

    @property
    def empty(self) -> bool:
        """Whether everything has been given back."""
        return self._holes == [(0, len(self._words))]

    def take(self, words: int) -> Block | None:
        """A block of so many words (a multiple of a line), or None if no hole is large enough."""
        for at, (start, size) in enumerate(self._holes):
            if size >= words:
                self._holes[at : at + 1] = [(start + words, size - words)] if size > words else []
                self._touched = max(self._touched, start + words)
                return Block(self._words[start : start + words], self)
        return None

    def give(self, block: Block) -> None:
        """Take a block back."""
        start = (block.base - self._base) // 4
        holes = sorted([*self._holes, (start, len(block.words))])
        joined = holes[:1]
        for start, size in holes[1:]:
            before, extent = joined[-1]
            if before + extent == start:
                joined[-1] = (before, extent + size)
            else:
                joined.append((start, size))
        self._holes = joined


class Slabs:
    """Gives and takes blocks; a slab in which nothing is left is freed."""

    def __init__(self) -> None:
        self._slabs: list[Slab] = []

    @property
    def nbytes(self) -> int:
        """Bytes held, holes included."""
        return sum(slab.nbytes for slab in self._slabs)

    def take(self, words: int) -> Block:
        """A block of at least so many words."""
        whole = -(-words // LINE_WORDS) * LINE_WORDS
        for slab in self._slabs:
            block = slab.take(whole)
            if block is not None:
                return block
        self._slabs.append(Slab(max(SLAB_WORDS, whole)))
        return self.take(whole)

    def give(self, block: Block) -> None:
        """Take a block back; nothing may use it any more."""
        if block.slab is None:
            return
        block.slab.give(block)
        if block.slab.empty:
            self._slabs.remove(block.slab)


class PrivateMemory:
    """The same for one short-lived request: a block of its own, freed with the last reference."""

    def take(self, words: int) -> Block:
        """A block of so many words."""
        return Block(aligned_words(words))

    def give(self, block: Block) -> None:
        """Nothing to do."""

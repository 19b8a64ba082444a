"""One request's memory: made for a prompt, grown as the request goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adaspec.draft import kernels
from adaspec.draft.layout import ENTRIES, NODES, TOKENS, Room, move, read_header
from adaspec.draft.slabs import Block, PrivateMemory, aligned_words

# Recorded chats, articles and code edits: 0.35-0.5 nodes, 1.25-1.4 entries per token.
NODES_PER_TOKEN = 0.48
ENTRIES_PER_TOKEN = 1.4
SLACK = 1.1
GROWTH = 1.2
SPARE = 32


class Memory(Protocol):
    """Where blocks come from."""

    def take(self, words: int) -> Block:
        """A block of at least so many words."""

    def give(self, block: Block) -> None:
        """Take a block back."""


class RequestBuffer:
    """Holds the block of one request; `base` is its address until the next growth."""

    def __init__(self, prompt_tokens: int, max_match: int, memory: Memory | None = None) -> None:
        self._max_match = max_match
        self._memory = memory or PrivateMemory()
        tokens = int(prompt_tokens * SLACK) + SPARE
        room = Room(tokens, int(tokens * NODES_PER_TOKEN), int(tokens * ENTRIES_PER_TOKEN))
        self._block = self._memory.take(room.words)
        room.lay_out(self._block.words, max_match)
        self.base = self._block.base

    @property
    def nbytes(self) -> int:
        """Bytes held, slack included."""
        return self._block.words.nbytes

    def free(self) -> None:
        """Give the memory back; the request must not be used any more."""
        self._memory.give(self._block)

    def grow(self, tokens: int) -> None:
        """Make room for `tokens` more, however unlucky they are."""
        known, nodes, entries = self._counts()
        self._move_to(
            Room(
                int(known * GROWTH) + tokens + SPARE,
                int(nodes * GROWTH) + tokens + SPARE,
                int(entries * GROWTH) + 2 * tokens + SPARE,
            )
        )

    def append(
        self,
        tokens: NDArray[np.int32],
        step: Callable[[int, NDArray[np.int32], int], int] = kernels.append_run,
    ) -> None:
        """Append a run of any length; `step(base, tokens, at)` does it while there is room."""
        at = 0
        while (at := step(self.base, tokens, at)) < len(tokens):
            self._grow_for_run(len(tokens) - at)

    def context(self) -> NDArray[np.int32]:
        """A copy of the tokens."""
        context = np.empty(self._counts()[0], np.int32)
        kernels.copy_context(self.base, context)
        return context

    def _grow_for_run(self, tokens: int) -> None:
        """Make room for a long run, guessing from the tokens so far what it will need."""
        known, nodes, entries = self._counts()
        growth = min(max(SLACK * (known + tokens) / max(known, 1), GROWTH), 2.0)
        self._move_to(
            Room(
                int(max(known + tokens, known * SLACK)) + SPARE,
                int(nodes * growth) + SPARE,
                int(entries * growth) + SPARE,
            )
        )

    def _move_to(self, room: Room) -> None:
        # By way of scratch memory: the old block is given back first, so that a hole beside it
        # and its own room can serve again, and growth leaves fewer holes between requests.
        scratch = aligned_words(room.words)
        room.lay_out(scratch, self._max_match)
        move(self.base, scratch.ctypes.data)
        self._memory.give(self._block)
        self._block = self._memory.take(room.words)
        self._block.words[: len(scratch)] = scratch
        self.base = self._block.base

    def _counts(self) -> tuple[int, int, int]:
        return (
            read_header(self.base, TOKENS),
            read_header(self.base, NODES),
            read_header(self.base, ENTRIES),
        )

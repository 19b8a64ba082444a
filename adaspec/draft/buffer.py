"""One request's memory: made for a prompt, grown as the request goes on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adaspec.draft import kernels
from adaspec.draft.layout import (
    ENTRIES,
    ENTRIES_PER_TOKEN,
    GROWTH,
    NODES,
    NODES_PER_TOKEN,
    SPARE,
    TOKENS,
    allocate,
    move,
    read_header,
)


class RequestBuffer:
    """Owns the buffer of one request; `base` is its address until the next `grow`."""

    def __init__(self, prompt_tokens: int, max_match: int) -> None:
        self._max_match = max_match
        room = int(prompt_tokens * 1.1) + SPARE
        self._buffer, self.base = allocate(
            room,
            int(room * NODES_PER_TOKEN),
            int(room * ENTRIES_PER_TOKEN),
            max_match,
        )

    @property
    def nbytes(self) -> int:
        """Bytes held, slack included."""
        return self._buffer.nbytes

    def grow(self, tokens: int) -> None:
        """Move to a larger buffer with room for `tokens` more, however unlucky they are."""
        known, nodes, entries = self._counts()
        buffer, base = allocate(
            int(known * GROWTH) + tokens + SPARE,
            int(nodes * GROWTH) + tokens + SPARE,
            int(entries * GROWTH) + 2 * tokens + SPARE,
            self._max_match,
        )
        move(self.base, base)
        self._buffer, self.base = buffer, base

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
        share = (known + tokens) / max(known, 1) * 1.1
        grown = min(share, 2.0) if known > SPARE else 1.0
        buffer, base = allocate(
            int((known + tokens) * 1.1) + SPARE,
            int(max(nodes * grown, nodes * GROWTH)) + SPARE,
            int(max(entries * grown, entries * GROWTH)) + SPARE,
            self._max_match,
        )
        move(self.base, base)
        self._buffer, self.base = buffer, base

    def _counts(self) -> tuple[int, int, int]:
        return (
            read_header(self.base, TOKENS),
            read_header(self.base, NODES),
            read_header(self.base, ENTRIES),
        )

"""The answers of earlier requests while serving: stored by the host, looked up on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from adaspec.draft.answers import HEAD, AnswerIndex
from adaspec.kernels.batch import Answers
from adaspec.policy.protocol import Ints
from adaspec.vllm.v2.report import to_device

TOKENS_A_STEP = 8192
"""A step stores no further answer once it has stored so many tokens: many may end in one step."""


class Memory:
    """An index of answers, and the same on the device, a step's new ones at a time."""

    def __init__(self, index: AnswerIndex, slots: int, device: torch.device) -> None:
        self.index, self.answers = index, Answers.of(index, slots, device)
        self._waiting: deque[tuple[Ints, int]] = deque()

    @property
    def waits(self) -> bool:
        """Whether answers wait to be stored."""
        return bool(self._waiting)

    def enter(self, slots: Sequence[int], owners: Sequence[int]) -> None:
        """Requests of these owners take these slots."""
        device = self.answers.words.device
        places, values = np.array(slots, np.int64), np.array(owners, np.int32)
        self.answers.owners.index_copy_(0, to_device(places, device), to_device(values, device))

    def add(self, output: Sequence[int], owner: int) -> None:
        """Remember an answer, as far as its tokens are known; -1 is one that is not."""
        tokens = np.array(output, np.int32)
        unknown = np.flatnonzero(tokens < 0)
        self._waiting.append((tokens[: unknown[0]] if len(unknown) else tokens, owner))

    def give_up(self) -> None:
        """Let no request find an answer any more: the device may lack words that the host has."""
        self.answers.owners.zero_()

    def store(self) -> None:
        """Store answers that wait, in the order in which they came."""
        changed: list[NDArray[np.int64]] = []
        stored = 0
        while self._waiting and stored < TOKENS_A_STEP:
            tokens, owner = self._waiting.popleft()
            head = int(self.index.words[HEAD])
            added = self.index.add(tokens, owner)
            if added is not None:
                changed.append(self.index.changed(head, added))
                stored += added.tokens
        if changed:
            # Where a word was changed twice, both say what it is now.
            places = np.concatenate(changed)
            device = self.answers.words.device
            words = to_device(self.index.words[places], device)
            self.answers.write(to_device(places, device), words)

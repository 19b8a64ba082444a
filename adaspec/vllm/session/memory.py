"""The answers of earlier requests while serving: stored by the host, looked up where it drafts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from adaspec.draft.answers import HEAD, AnswerIndex
from adaspec.kernels.batch import AnswersOnDevice
from adaspec.policy.protocol import Ints
from adaspec.vllm.session.report import to_device

TOKENS_A_STEP = 8192
"""A step stores no further answer once it has stored so many tokens: many may end in one step."""


class AnswerMemory:
    """An index of answers, and the same on an accelerator, a step's new ones at a time."""

    def __init__(self, index: AnswerIndex) -> None:
        self.index = index
        self.answers: AnswersOnDevice | None = None
        """What the device has of it, where that looks answers up."""
        self._waiting: deque[tuple[Ints, int]] = deque()

    def on_device(self, slots: int, device: torch.device) -> AnswersOnDevice:
        """What the index holds, on a device: that has a copy of its own from now on."""
        self.answers = AnswersOnDevice.of(self.index, slots, device)
        return self.answers

    @property
    def waits(self) -> bool:
        """Whether answers wait to be stored."""
        return bool(self._waiting)

    def add(self, output: Sequence[int], owner: int) -> None:
        """Remember an answer, as far as its tokens are known; -1 is one that is not."""
        tokens = np.array(output, np.int32)
        unknown = np.flatnonzero(tokens < 0)
        self._waiting.append((tokens[: unknown[0]] if len(unknown) else tokens, owner))

    def give_up(self) -> None:
        """Let no request find an answer any more: the device may lack words that the host has."""
        if self.answers is not None:
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
                stored += added.tokens
                if self.answers is not None:
                    changed.append(self.index.changed(head, added))
        if changed and self.answers is not None:
            # Where a word was changed twice, both say what it is now.
            places = np.concatenate(changed)
            device = self.answers.words.device
            words = to_device(self.index.words[places], device)
            self.answers.write(to_device(places, device), words)

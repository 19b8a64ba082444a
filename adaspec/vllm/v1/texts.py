"""The texts of an engine's requests, each at a place of its own as long as it may run.

vLLM moves a request's row as others leave; what is remembered of a request stays in its slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaspec.kernels.batch import Batch
from adaspec.policy.protocol import Ints
from adaspec.vllm.session.report import Outcome


class Texts:
    """The texts and their slots."""

    def __init__(self, slots: int, longest: int) -> None:
        self.tokens = np.zeros((slots, longest), np.int32)
        self.context_tokens = np.zeros(slots, np.int32)
        self.prompt_tokens = np.zeros(slots, np.int32)
        self._slots: dict[str, int] = {}
        self._free = list(range(slots))

    def leave(self, requests: Iterable[str]) -> None:
        """Free the slots of these requests, as far as they have any."""
        for name in requests:
            slot = self._slots.pop(name, None)
            if slot is not None:
                self._free.append(slot)
                self.context_tokens[slot] = 0

    def slots_of(self, requests: Sequence[str]) -> NDArray[np.int64]:
        """The slots of a batch's requests; those that had none get one.

        Where none is free, those that are not in the batch lose theirs.
        """
        entering = [name for name in requests if name not in self._slots]
        if len(entering) > len(self._free):
            self.leave(self._slots.keys() - set(requests))
        for name in entering:
            self._slots[name] = self._free.pop()
        return np.array([self._slots[name] for name in requests], np.int64)

    def write(self, slots: NDArray[np.int64], prompts: Ints, rows: Ints, outcome: Outcome) -> None:
        """Take in each row's text, which `rows` has but for what the step emitted."""
        known = outcome.context - outcome.sampled
        for row in np.flatnonzero(self.context_tokens[slots] != known).tolist():
            # Whoever is new, or had a step of which nothing was told; or its text was replaced.
            self.tokens[slots[row], : known[row]] = rows[row, : known[row]]
        columns = np.arange(outcome.emitted.shape[1])
        at, column = np.nonzero(columns < outcome.sampled[:, None])
        self.tokens[slots[at], known[at] + column] = outcome.emitted[at, column]
        self.prompt_tokens[slots], self.context_tokens[slots] = prompts, outcome.context

    def batch(self, slots: NDArray[np.int64], holds: Tensor, outcome: Outcome) -> Batch:
        """What the session's predictor reads of a step, given who holds the drafter."""
        return Batch(
            slots=torch.from_numpy(slots),
            tokens=torch.from_numpy(self.tokens),
            context_tokens=torch.from_numpy(self.context_tokens),
            prompt_tokens=torch.from_numpy(self.prompt_tokens),
            holds_neural=holds,
            sampled=torch.from_numpy(outcome.sampled),
            rejected=torch.from_numpy(outcome.rejected),
        )

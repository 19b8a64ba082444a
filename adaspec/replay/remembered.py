"""Requests as a server gets them that remembers what it answered to others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from adaspec.replay.history import History, answered_before
from adaspec.replay.recording import Recording, build_recording
from adaspec.trace.schema import Request

Ints = NDArray[np.int32]


class RememberedRecordings:
    """Requests with the answers that they know, as they come in an order."""

    def __init__(
        self,
        requests: Sequence[Request],
        neural_cap: int,
        warm: Iterable[Request] = (),
        prefill: bool = False,
    ) -> None:
        """`prefill`: whether reading prompts is charged."""
        self.requests, self._cap, self._prefill = tuple(requests), neural_cap, prefill
        given = tuple(warm)
        self.before = tuple(answered_before(given, self.requests))
        """The answers of other traces that every request knows."""
        self.left_out = len(given) - len(self.before)

    def at(self, order: Ints, running: int) -> Recording:
        """A recording of the entries of an order, one after another, where so many run at once."""
        entries = [self.requests[number] for number in order.tolist()]
        history = History(self.before, running=running, in_turn=True)
        recording = build_recording(entries, self._cap, history)
        return recording.with_prefill() if self._prefill else recording

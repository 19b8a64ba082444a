"""The running requests by their id, each with a slot, its text indexed as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.draft import NgramIndex
from adaspec.policy.protocol import Ints


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """An engine's batch after its target has verified, before anything is drafted for it."""

    requests: Sequence[str]
    """Ids, row by row."""
    states: Sequence[object]
    """One object per request that lives as long as it does: an id may be given anew."""
    tokens: NDArray[np.int32]
    """(rows, room) prompt and output tokens."""
    prompt_tokens: Ints
    known: Ints
    """How many of `tokens` are known, without what was sampled in this step."""
    sampled: Sequence[Sequence[int]]
    """What came in this step; nothing where the prompt is not through yet."""
    verified: Mapping[str, Sequence[int]]
    """The drafts that the target judged in this step, by request."""
    room: Ints | None = None
    """The most tokens that a draft may hold, row by row, where a request limits that."""


@dataclass(slots=True)
class RunningRequest:
    """What is known of a request that may still run."""

    slot: int
    state: object
    prompt_tokens: int
    tokens: int
    """Of its text, how many are indexed."""
    holds_neural: bool = False
    recorded: bool = False
    """Drafted for at every position, and proposed nothing."""
    seen: int = 0
    """The last step in which it was in the batch."""


class RunningRequests:
    """All requests that may still run, and the index of their text."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.index = NgramIndex()
        self.requests: dict[str, RunningRequest] = {}

    def leave(self, alive: Mapping[str, object]) -> tuple[list[str], Ints]:
        """Forget requests that are no more; their ids, and the slots that they had."""
        gone = [
            name for name, request in self.requests.items() if alive.get(name) is not request.state
        ]
        return gone, self._forget(gone)

    def make_room(self, rows: EngineBatch, step: int) -> tuple[list[str], Ints]:
        """Forget those longest out of the batch until there is a slot for every row; as `leave`.

        Preempted requests keep their slots as long as there are enough.
        """
        entering = sum(name not in self.requests for name in rows.requests)
        short = len(self.requests) + entering - self.slots
        if short <= 0:
            return [], np.zeros(0, np.int32)
        running = set(rows.requests)
        absent = [name for name in self.requests if name not in running]
        absent.sort(key=lambda name: self.requests[name].seen)
        return absent[:short], self._forget(absent[:short])

    def enter(self, rows: EngineBatch, row: int) -> RunningRequest:
        """Take in a request that is seen for the first time."""
        text = rows.tokens[row, : rows.known[row]]
        name = rows.requests[row]
        slot = self.index.open(text)
        request = RunningRequest(
            slot, rows.states[row], int(rows.prompt_tokens[row]), int(rows.known[row])
        )
        self.requests[name] = request
        return request

    def catch_up(self, rows: EngineBatch, step: int) -> None:
        """Index every row's text up to and with what was sampled in this step."""
        slots, counts, fresh = [], [], []
        for row, name in enumerate(rows.requests):
            request = self.requests[name]
            request.seen = step
            known, sampled = int(rows.known[row]), rows.sampled[row]
            if request.tokens != known:
                # Steps that never asked us to draft, or a text that was cut or replaced.
                if request.tokens > known:
                    self._reopen(request, rows.tokens[row, :known])
                else:
                    fresh.extend(rows.tokens[row, request.tokens : known].tolist())
            length = known - request.tokens + len(sampled)
            if length:
                slots.append(request.slot)
                counts.append(length)
                fresh.extend(sampled)
                request.tokens = known + len(sampled)
        if slots:
            self.index.extend(slots, fresh, counts)

    def _reopen(self, request: RunningRequest, text: NDArray[np.int32]) -> None:
        self.index.close(request.slot)
        # The index gives the slot freed last first, so the policy's record of it stays in place.
        request.slot = self.index.open(text)
        request.tokens = len(text)

    def _forget(self, names: Sequence[str]) -> Ints:
        slots = [self.requests.pop(name).slot for name in names]
        for slot in slots:
            self.index.close(slot)
        return np.array(slots, np.int32)

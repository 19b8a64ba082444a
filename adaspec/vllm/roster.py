"""Who is running: requests by their id, each with a slot, its text indexed as far as known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.draft import NgramIndex
from adaspec.policy.protocol import Ints


@dataclass(frozen=True, slots=True)
class Rows:
    """An engine's batch after its target has spoken, before anything is drafted for it."""

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
class Seat:
    """A running request's place."""

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


class Roster:
    """Seats of all requests that may still run, and the index of what they have said."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.index = NgramIndex()
        self.seats: dict[str, Seat] = {}

    def leave(self, alive: Mapping[str, object]) -> tuple[list[str], Ints]:
        """Give up the seats of requests that are no more; who they were, and their slots."""
        gone = [name for name, seat in self.seats.items() if alive.get(name) is not seat.state]
        return gone, self._give_up(gone)

    def make_room(self, rows: Rows, step: int) -> tuple[list[str], Ints]:
        """Give up seats of those longest out of the batch, until every row can have one.

        Preempted requests keep their seats as long as there are enough.
        """
        entering = sum(name not in self.seats for name in rows.requests)
        short = len(self.seats) + entering - self.slots
        if short <= 0:
            return [], np.zeros(0, np.int32)
        running = set(rows.requests)
        absent = [name for name in self.seats if name not in running]
        absent.sort(key=lambda name: self.seats[name].seen)
        return absent[:short], self._give_up(absent[:short])

    def enter(self, rows: Rows, row: int) -> Seat:
        """A seat for a request that is seen for the first time."""
        text = rows.tokens[row, : rows.known[row]]
        name = rows.requests[row]
        slot = self.index.open(text)
        seat = Seat(slot, rows.states[row], int(rows.prompt_tokens[row]), int(rows.known[row]))
        self.seats[name] = seat
        return seat

    def catch_up(self, rows: Rows, step: int) -> None:
        """Index every row's text up to and with what was sampled in this step."""
        slots, counts, fresh = [], [], []
        for row, name in enumerate(rows.requests):
            seat = self.seats[name]
            seat.seen = step
            known, sampled = int(rows.known[row]), rows.sampled[row]
            if seat.tokens != known:
                # Steps that never asked us to draft, or a text that was cut or replaced.
                if seat.tokens > known:
                    self._reopen(seat, rows.tokens[row, :known])
                else:
                    fresh.extend(rows.tokens[row, seat.tokens : known].tolist())
            length = known - seat.tokens + len(sampled)
            if length:
                slots.append(seat.slot)
                counts.append(length)
                fresh.extend(sampled)
                seat.tokens = known + len(sampled)
        if slots:
            self.index.extend(slots, fresh, counts)

    def _reopen(self, seat: Seat, text: NDArray[np.int32]) -> None:
        self.index.close(seat.slot)
        # The index gives the slot freed last first, so the policy's record of it stays in place.
        seat.slot = self.index.open(text)
        seat.tokens = len(text)

    def _give_up(self, names: Sequence[str]) -> Ints:
        slots = [self.seats.pop(name).slot for name in names]
        for slot in slots:
            self.index.close(slot)
        return np.array(slots, np.int32)

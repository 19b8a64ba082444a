"""The requests of an engine: the rows of its batch, and who runs, where, and up to which end.

A fraction of all requests is drafted for, without those whose clients say `{"adaspec": "off"}`, as
`vllm_xargs` over HTTP or as `SamplingParams.extra_args` in Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import ServingError, nearest, shown
from adaspec.policy.protocol import Bools, Ints
from adaspec.vllm.patching import SALT_ATTRIBUTE
from adaspec.vllm.session.report import Outcome, StepReport

KEY, OFF = "adaspec", "off"


def is_served(request: str, params: Any, serve_fraction: float) -> bool:
    """Whether a request with these sampling parameters is drafted for.

    Raises a `ServingError` if it says anything but `off`.
    """
    says_off = is_off(getattr(params, "extra_args", None))
    return not says_off and is_chosen(request, serve_fraction, b"serve")


def is_off(extra_args: Mapping[str, Any] | None) -> bool:
    """Whether extra arguments say that nothing is to be drafted; a `ServingError` if not just so.

    Arguments that do not begin with `adaspec` are others'.
    """
    given = {key: value for key, value in (extra_args or {}).items() if key.startswith(KEY)}
    for key, value in given.items():
        if key != KEY:
            raise ServingError(f"unknown argument {shown(key)}{nearest(key, [KEY])}; known: {KEY}")
        if value != OFF:
            raise ServingError(f"{KEY} is {shown(value)}: give '{OFF}', or leave it out")
    return bool(given)


def is_rehearsed(name: str) -> bool:
    """Whether a request is nobody's: vLLM's own, by which it warms up as it starts."""
    return name.startswith("_warmup_")


def is_chosen(request: str, fraction: float, salt: bytes = b"") -> bool:
    """Whether a request is in a fraction of all; its id decides, so that all ranks agree."""
    digest = hashlib.blake2b(request.encode(), digest_size=8, person=salt).digest()
    return int.from_bytes(digest, "big") < fraction * 2.0**64


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of an engine's batch, as the host knows them when it decides."""

    requests: Sequence[str]
    slots: NDArray[np.int64]
    prompt_tokens: Ints
    context_tokens: Ints
    """At most so many tokens are known."""
    samples: Bools
    """Whether the step emits tokens for the row: it ends its prompt, or is beyond it."""
    reads: Bools
    """Whether the step reads prompt text of the row, be it once more after a preemption; with the
    last piece of a prompt it samples, too."""
    verified: Ints
    """Drafted tokens that the step verifies, where the scheduler says how many."""
    outcome: Outcome | None = None
    """What the target made of them; None in an async engine, whose device knows it first."""
    room: Ints | None = None
    """The most tokens that the engine lets each row's draft have, where it limits any."""


REQUEST_FACTS = np.dtype(
    [(name, "?") for name in ("holds_neural", "recorded", "drafts", "whole")]
    + [(name, "i8") for name in ("known_tokens", "end")]
)
"""What every step asks of its rows' requests, by slot: also whether they may have drafts, whether
nothing follows the output, and how many tokens are known, by what was reported, and at most."""
_NO_END = 1 << 40


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request that may still run."""

    name: str
    prompt: Sequence[int] | Ints
    """As the engine has it: only who records it makes an array of it."""
    output: list[int]
    """Its emitted tokens so far, as far as observers have been told."""
    params: Any
    """Its sampling parameters; None if it has none."""
    in_ring: bool
    """Whether it searches the ring, and its answer enters it."""
    max_model_len: int | None = None
    """Where its text ends at the latest, if the engine says so."""
    max_tokens: int | None = None
    """Where its output ends at the latest; None if nothing says so."""
    ends: frozenset[int] = frozenset()
    """Tokens that end it, once it has emitted `least_tokens`."""
    least_tokens: int = 0
    slot: int = -1
    """Its place in the engine; -1 until it is in a batch."""
    is_served: bool = True
    """Whether it may be drafted for."""
    recorded: bool = False
    drafter_has_holes: bool = False
    """Whether the drafter has not read all of its text: in mode 'off', while it was held off, or
    because others wrote its first blocks then."""

    def __post_init__(self) -> None:
        if self.params is not None:
            self.max_tokens, self.least_tokens = self.params.max_tokens, self.params.min_tokens
            # As vLLM's `check_stop`: a request that ignores its end of text ends by other tokens.
            stops = {*(self.params.stop_token_ids or ()), self.params.eos_token_id}
            self.ends = frozenset(stops - {None})
        if self.max_model_len is not None:
            room = self.max_model_len - len(self.prompt)
            self.max_tokens = room if self.max_tokens is None else min(self.max_tokens, room)

    @property
    def is_whole(self) -> bool:
        """Whether nothing follows its output."""
        return bool(self.output) and self._ends(len(self.output), self.output[-1])

    def facts(self) -> tuple[object, ...]:
        """Its `REQUEST_FACTS` as it enters, without the drafter."""
        prompt, count = len(self.prompt), len(self.output)
        whole = self._ends(count, self.output[-1] if count else -1)
        drafts = self.is_served and not self.recorded
        end = _NO_END if self.max_tokens is None else prompt + self.max_tokens
        return False, self.recorded, drafts, whole, prompt + count, end

    def emits(self, count: int, tokens: Sequence[int]) -> tuple[int, bool]:
        """How many of the tokens follow its first `count`, up to its end, and whether that came."""
        if self._ends(count, -1):
            return 0, True
        for more, token in enumerate(tokens, 1):
            if self._ends(count + more, token):
                return more, True
        return len(tokens), False

    def _ends(self, count: int, last: int) -> bool:
        """Whether nothing follows the last of so many tokens."""
        if self.max_tokens is not None and count >= self.max_tokens:
            return True
        return count > self.least_tokens and last in self.ends


class Requests:
    """All requests that are let in and not yet forgotten.

    Where the engine learns of an end before the last report of it comes, a request has ended, and
    is forgotten later.
    """

    def __init__(self, slots: int, vocabulary: int) -> None:
        self.in_slot: NDArray[Any] = np.full(slots, None, object)
        """The request in each slot, None where none is drafted for."""
        self.facts = np.zeros(slots, REQUEST_FACTS)
        self._by_name: dict[str, RunningRequest] = {}
        self._ended: list[str] = []
        self._may_end = np.zeros(vocabulary + 1, np.bool_)
        """By token, whether it ends any request so far; the last entry is for -1, which is none."""

    def runs(self, name: str) -> bool:
        """Whether a request of that name was let in and has not ended."""
        return name in self._by_name and name not in self._ended

    def has_ended(self, name: str) -> bool:
        """Whether a request of that name has ended and is not yet forgotten."""
        return name in self._ended

    @property
    def any_runs(self) -> bool:
        """Whether there is one that has not ended."""
        return bool(self._by_name.keys() - self._ended)

    def add(self, request: RunningRequest) -> None:
        """Let a new request in."""
        self._by_name[request.name] = request
        known = len(self._may_end) - 1
        self._may_end[[token for token in request.ends if token < known]] = True

    def readmit(self, request: RunningRequest) -> bool:
        """If a request was let in before, and preempted since, take its text anew; whether so."""
        before = self._by_name.get(request.name)
        if before is None:
            return False
        before.prompt, before.output = request.prompt, request.output
        before.drafter_has_holes = request.drafter_has_holes
        self.vacate(before)
        return True

    def enter(self, rows: Rows) -> list[RunningRequest]:
        """Give slots to requests that are in a batch for the first time; which these are."""
        requests = [*map(self._by_name.__getitem__, rows.requests)]
        if self.in_slot[rows.slots].tolist() == requests:
            return []
        entered = []
        for request, slot in zip(requests, rows.slots.tolist(), strict=True):
            if self.in_slot[slot] is not request:
                request.slot, self.in_slot[slot] = slot, request
                self.facts[slot] = request.facts()
                entered.append(request)
        return entered

    def end(self, names: Sequence[str]) -> None:
        """These have ended; they are forgotten once all reports of them have come."""
        self._ended += names

    def forget_ended(self) -> list[RunningRequest]:
        """Forget the requests that have ended; which these are."""
        ended, self._ended = self._ended, []
        left = [request for name in ended if (request := self._by_name.pop(name, None))]
        for request in left:
            self.vacate(request)
        return left

    def vacate(self, request: RunningRequest) -> None:
        """Take the request's place from it, if it has one."""
        if self.in_slot[request.slot] is request:
            self.in_slot[request.slot], self.facts["holds_neural"][request.slot] = None, False
        request.slot = -1

    def drop_drafter_where_read(self, rows: Rows) -> bool:
        """Take the drafter from requests whose text it does not read; whether one held it."""
        slots = rows.slots[rows.reads]
        changed = bool(self.facts["holds_neural"][slots].any())
        self.facts["holds_neural"][slots] = False
        for row in np.flatnonzero(rows.reads).tolist():
            self._by_name[rows.requests[row]].drafter_has_holes = True
        return changed

    def stop_drafting(self, rows: Rows) -> None:
        """In a step without speculation: whoever runs in it gets no drafter any more."""
        self.in_slot[rows.slots], self.facts["holds_neural"][rows.slots] = None, False
        for name in rows.requests:
            request = self._by_name[name]
            request.drafter_has_holes, request.recorded = True, False

    def allowed(self, rows: Rows, longest: int) -> Ints | None:
        """The most drafted tokens of each row; None where no row is limited.

        The target's own token follows a draft.
        """
        facts = self.facts[rows.slots]
        left = facts["end"] - facts["known_tokens"] - 1
        room = np.where(facts["drafts"], np.maximum(left, 0), 0)
        if rows.room is not None:
            room = np.minimum(room, rows.room)
        return np.minimum(room, longest).astype(np.int32) if (room < longest).any() else None

    def count_tokens(
        self, slots: Ints, requests: NDArray[Any], outcome: Outcome | StepReport
    ) -> tuple[Bools, Ints, Ints]:
        """Count what a step emitted up to the requests' ends.

        Says by row whether the request had ended before, how many earlier tokens a fault has cost
        their report, and how many of the emitted ones are its own. Of a request that was let in
        anew since, the engine has told all that counts.
        """
        facts, emitted = self.facts[slots], outcome.emitted
        had_ended = facts["whole"] | (self.in_slot[slots] != requests)
        missing = np.maximum(outcome.context - outcome.sampled - facts["known_tokens"], 0)
        missing[had_ended] = 0
        kept = np.where(had_ended, 0, outcome.sampled)
        before = facts["known_tokens"] + missing
        ends = before + kept >= facts["end"]
        ends |= self._may_end.take(emitted, mode="wrap").any(axis=1)
        for row in np.flatnonzero(ends & ~had_ended).tolist():
            request, tokens = requests[row], emitted[row, : kept[row]].tolist()
            kept[row], facts["whole"][row] = request.emits(
                before[row] - len(request.prompt), tokens
            )
        self.facts["known_tokens"][slots] = before + kept
        self.facts["whole"][slots] = facts["whole"]
        return had_ended, missing, kept


def shares_ring(new: Any) -> bool:
    """Whether a new request searches the ring, and its answer enters it.

    Those do not that have a LoRA adapter, or a `cache_salt`, by which vLLM keeps prefix caches
    apart; nor does one of which a scheduler does not tell.
    """
    salt = getattr(new, SALT_ATTRIBUTE, "unknown")
    return salt is None and new.lora_request is None

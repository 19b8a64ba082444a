"""Which answers had been given when a recorded request came, so that it could look them up.

A server has answered others before. Here the requests come in one order, drawn by the seed and the
same for everybody, behind those of other traces that it had answered before (it is *warm*), if any.
A request knows the answers of those that came so long before it that they have ended: as many as
run at once may still be running. It never knows an answer that is its own by content, or that is
of a later turn of its own dialogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.draft.answers import BYTES_PER_TOKEN, LEAST_TOKENS, AnswerIndex
from adaspec.replay.recording import Recording, build_recording
from adaspec.trace.schema import Request


@dataclass(frozen=True, slots=True)
class History:
    """What came before the requests of a recording, and in which order they come."""

    warm: tuple[Request, ...] = ()
    """Answered before the first."""
    seed: int = 0
    running: int = 1
    """How many requests run at once."""
    known: NDArray[np.bool_] | None = None
    """Of the recording's requests, those whose answers others may know; None: all."""

    def views(self, requests: Sequence[Request]) -> Iterator[tuple[int, AnswerIndex]]:
        """Every request's number, in the order in which they come, and the answers it knows."""
        order = self._order(requests)
        last = {_content(requests[number]): number for number in order}
        before = answered_before(self.warm, requests)
        stored = [each.output_tokens for each in (*before, *requests)]
        tokens = 2 * (sum(map(len, stored)) + len(stored))  # twice, so that nothing is overwritten
        answers = AnswerIndex(BYTES_PER_TOKEN * max(tokens, LEAST_TOKENS))
        for each in before:
            answers.add(each.output_tokens)
        for place, number in enumerate(order):
            if place >= self.running:
                ended = order[place - self.running]
                known = self.known is None or self.known[ended]
                if known and last[_content(requests[ended])] == ended:
                    answers.add(requests[ended].output_tokens)
            yield number, answers

    def _order(self, requests: Sequence[Request]) -> list[int]:
        """A random order in which the turns of a dialogue come one after another."""
        order = np.random.default_rng([self.seed, 0xA115]).permutation(len(requests)).tolist()
        dialogues = _Dialogues(requests)
        places: dict[int, list[int]] = {}
        for place, number in enumerate(order):
            places.setdefault(dialogues.first_turn(requests[number], number), []).append(place)
        for turns in places.values():
            numbers = sorted((order[place] for place in turns), key=lambda n: _turn(requests[n]))
            for place, number in zip(turns, numbers, strict=True):
                order[place] = number
        return order


def answered_before(warm: Iterable[Request], requests: Sequence[Request]) -> list[Request]:
    """Those of `warm` that are no answer of the requests, nor of later turns of their dialogues."""
    own, dialogues = set(map(_content, requests)), _Dialogues(requests)
    return [
        each for each in warm if _content(each) not in own and not dialogues.continues_any(each)
    ]


class RememberedRecordings:
    """Requests with the answers that they know, at every number of requests at once."""

    def __init__(
        self,
        requests: Sequence[Request],
        neural_cap: int,
        warm: Iterable[Request] = (),
        seed: int = 0,
        prefill: CostModel | None = None,
    ) -> None:
        """`prefill` is the cost model by which reading prompts is charged, if it is."""
        self._requests, self._cap, self._seed = tuple(requests), neural_cap, seed
        self._prefill = prefill
        given = tuple(warm)
        self.before = tuple(answered_before(given, self._requests))
        """The answers of other traces that every request knows."""
        self.left_out = len(given) - len(self.before)
        self._recordings: dict[int, Recording] = {}

    def at(self, running: int) -> Recording:
        """The recording where so many requests run at once."""
        if running not in self._recordings:
            history = History(self.before, self._seed, running)
            recording = build_recording(self._requests, self._cap, history)
            if self._prefill is not None:
                recording = recording.with_prefill(self._prefill)
            self._recordings[running] = recording
        return self._recordings[running]


class _Dialogues:
    """Finds which requests begin with the whole prompt of another, as later turns do."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._numbers = {
            each.prompt_tokens.tobytes(): number for number, each in enumerate(requests)
        }
        self._lengths = sorted({len(each.prompt_tokens) for each in requests})

    def first_turn(self, request: Request, number: int) -> int:
        """The request that it goes back to, or its own number."""
        return next(self._begun(request), number)

    def continues_any(self, request: Request) -> bool:
        """Whether it is a later turn of one of the requests."""
        return next(self._begun(request), None) is not None

    def _begun(self, request: Request) -> Iterator[int]:
        prompt = request.prompt_tokens
        for length in self._lengths:
            if 0 < length < len(prompt):
                number = self._numbers.get(prompt[:length].tobytes())
                if number is not None:
                    yield number


def _turn(request: Request) -> int:
    return len(request.prompt_tokens)


def _content(request: Request) -> bytes:
    return np.asarray(request.output_tokens, np.int32).tobytes()

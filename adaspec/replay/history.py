"""Which answers had been given when a recorded request came, so that it could look them up.

A server has answered others before. Requests come in some order, the same for everybody, behind
those of other traces that it had answered before (it is *warm*), if any. A request knows the
answers of those that came so long before it that they have ended: as many as run at once may still
be running. An order may hold a request more than once, standing for others like it: while one
runs, nobody knows its answer, whoever gave it before, nor those of later turns of its dialogue,
for no server could have seen these yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.answers import BYTES_PER_TOKEN, LEAST_BYTES, LEAST_TOKENS, AnswerIndex, Stored
from adaspec.trace.dialogues import Dialogues
from adaspec.trace.schema import Request

Ints = NDArray[np.int32]


class GivenAnswers:
    """The different answers of requests, each by the number of the first that gives it."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        numbers: dict[bytes, int] = {}
        self.of = [numbers.setdefault(_content(each), at) for at, each in enumerate(requests)]
        """Every request's."""
        hidden = [{answer} for answer in self.of]
        dialogues = Dialogues(requests)
        for number, request in enumerate(requests):
            for turn in dialogues.earlier_turns(request):
                hidden[turn].add(self.of[number])
        self.hidden = [sorted(each) for each in hidden]
        """Those that nobody knows while a request runs: its own, and those of later turns."""

    def tokens(self, answer: int) -> Ints:
        """An answer's tokens."""
        return self.requests[answer].output_tokens


class KnownAnswers:
    """What a server may know of answers as requests start and end; see the module's text."""

    def __init__(self, answers: GivenAnswers) -> None:
        self.answers = answers
        self._ended: set[int] = set()
        self._hides = Counter[int]()

    def start(self, request: int) -> Sequence[int]:
        """The answers that are to be forgotten as a request starts, if they are known."""
        hidden = self.answers.hidden[request]
        self._hides.update(hidden)
        return hidden

    def end(self, request: int, shared: bool = True) -> list[int]:
        """The answers that are known again, or for the first time, once a request has ended.

        One that is not `shared` tells nobody its answer.
        """
        if shared:
            self._ended.add(self.answers.of[request])
        hidden = self.answers.hidden[request]
        self._hides.subtract(hidden)
        return [answer for answer in hidden if answer in self._ended and not self._hides[answer]]

    def hidden_by(self, answer: int) -> int:
        """How many of those that run hide an answer."""
        return self._hides[answer]


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
    fresh: float = 0.0
    """The share of requests that come as if to a server that has just started: none is known."""
    in_turn: bool = False
    """They come as they stand in the recording; else in a random order, turns of a dialogue one
    after another."""

    def views(self, requests: Sequence[Request]) -> Iterator[tuple[int, AnswerIndex]]:
        """Every request's number, in the order in which they come, and the answers it knows."""
        order = list(range(len(requests))) if self.in_turn else self._order(requests)
        before, given = answered_before(self.warm, requests), GivenAnswers(requests)
        index = AnswerIndex(self._nbytes(before, given))
        for each in before:
            index.add(each.output_tokens)
        nothing, rng = AnswerIndex(LEAST_BYTES), np.random.default_rng([self.seed, 0xF2E5])
        places: dict[int, Stored] = {}
        known = KnownAnswers(given)
        for entry, number in enumerate(order):
            if entry >= self.running:
                ended = order[entry - self.running]
                shared = self.known is None or bool(self.known[ended])
                for answer in known.end(ended, shared):
                    place = index.add(given.tokens(answer))
                    if place is not None:
                        places[answer] = place
            for answer in known.start(number):
                if answer in places:
                    index.forget(places.pop(answer))
            yield number, nothing if rng.random() < self.fresh else index

    def _nbytes(self, before: Sequence[Request], given: GivenAnswers) -> int:
        """Room for all that is ever stored, so that nothing is overwritten.

        What ends may bring back each answer that it hid.
        """
        stored = [len(each.output_tokens) for each in before]
        stored += [len(given.tokens(answer)) for hidden in given.hidden for answer in hidden]
        # Twice: an answer takes half of the room at most.
        return BYTES_PER_TOKEN * max(2 * (sum(stored) + len(stored)), LEAST_TOKENS)

    def _order(self, requests: Sequence[Request]) -> list[int]:
        """A random order in which the turns of a dialogue come one after another."""
        order = np.random.default_rng([self.seed, 0xA115]).permutation(len(requests)).tolist()
        dialogues = Dialogues(requests)
        places: dict[int, list[int]] = {}
        for place, number in enumerate(order):
            first = next(dialogues.earlier_turns(requests[number]), number)
            places.setdefault(first, []).append(place)
        for turns in places.values():
            numbers = sorted((order[place] for place in turns), key=lambda n: _turn(requests[n]))
            for place, number in zip(turns, numbers, strict=True):
                order[place] = number
        return order


def answered_before(warm: Iterable[Request], requests: Sequence[Request]) -> list[Request]:
    """Those of `warm` that are no answer of the requests, nor of later turns of their dialogues."""
    own, dialogues = set(map(_content, requests)), Dialogues(requests)
    return [
        each
        for each in warm
        if _content(each) not in own and next(dialogues.earlier_turns(each), None) is None
    ]


def _turn(request: Request) -> int:
    return len(request.prompt_tokens)


def _content(request: Request) -> bytes:
    return np.asarray(request.output_tokens, np.int32).tobytes()

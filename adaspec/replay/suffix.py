"""vLLM's suffix decoding, replayed: a look-up that also remembers other requests' answers.

The drafts are those of arctic-inference's own cache, called as vLLM calls it. Its memory is empty
as a run begins, or holds the answers of other traces, and grows with every answer. What an order
may not know is left out as for everybody: see `KnownAnswers`. Suffix decoding alone also knows what
those that run now have answered so far: of copies that run at once, the last one's, unless it gets
ahead of another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, Deciding, StepShape, deciding_s
from adaspec.errors import EvaluationError, SpecError
from adaspec.replay.closed_loop import (
    advance,
    context_tokens,
    count_step,
    goes_on,
    result_of,
    start,
    step_seconds,
)
from adaspec.replay.history import Answers, KnownAnswers
from adaspec.replay.recording import Recording
from adaspec.replay.result import Result
from adaspec.trace.schema import Request

Ints = NDArray[np.int32]

HEAD = "suffix"
USAGE = f"{HEAD}:FACTOR:PROB"
TREE_DEPTH = 24
"""vLLM's default: the longest match and the longest draft."""
REMEMBERED = 10_000
"""vLLM's default: so many answers are remembered, the oldest go first."""
FACTOR, PROBABILITY = 1.0, 0.1
"""vLLM's defaults of what a spec may set."""
_NUMBER = r"[0-9]{0,4}(\.[0-9]{1,9})?"


@dataclass(frozen=True, slots=True)
class SuffixDecoding:
    """vLLM's method `suffix` at one setting; the defaults are vLLM's."""

    name: str = HEAD
    factor: float = FACTOR
    """Tokens drafted at most per token matched."""
    least_probability: float = PROBABILITY
    """Drafts end before a token that followed less often than this."""


def parse_suffix(text: str) -> SuffixDecoding:
    """The setting that `suffix:FACTOR:PROB` names; what is left out is vLLM's default."""
    values = [FACTOR, PROBABILITY]
    words = text.strip().split(":")[1:]
    if len(words) > len(values):
        raise _malformed(text, f"{len(words)} values, at most {len(values)} are known")
    for index, (word, name, most) in enumerate(
        zip(words, ("FACTOR", "PROB"), (float(TREE_DEPTH), 1.0), strict=False)
    ):
        if not word or not re.fullmatch(_NUMBER, word) or not 0 <= float(word) <= most:
            raise _malformed(text, f"{name} is '{word}', not a number from 0 to {most:g}")
        values[index] = float(word)
    return SuffixDecoding(text, *values)


def _malformed(text: str, why: str) -> SpecError:
    return SpecError(f"malformed policy spec '{text}': {why}. Write {USAGE}")


class SuffixCache(Protocol):
    """What is used of arctic-inference's `SuffixDecodingCache`."""

    def start_request(self, req_id: int, prompt_token_ids: Ints) -> None:
        """A request begins."""

    def stop_request(self, req_id: int) -> None:
        """It ends; its answer may still be remembered."""

    def add_active_response(self, req_id: int, token_ids: Ints) -> None:
        """Its answer grows."""

    def evict_cached_response(self, req_id: int) -> None:
        """Its answer is forgotten, or, while it runs, no longer remembered."""

    def speculate(self, req_id: int, context: Ints, **limits: float) -> Any:
        """A draft, as `token_ids`."""

    @property
    def cached_requests(self) -> Any:
        """Whose answers are remembered."""


def why_not_here() -> str | None:
    """Why suffix decoding cannot be replayed here; None where it can."""
    try:
        _cache_class()
    except Exception as error:  # a foreign compiled extension fails in many ways
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return f"needs arctic-inference, which cannot be imported: {reason}"
    return None


def cache_of(remembered: int = REMEMBERED) -> SuffixCache:
    """An empty cache that remembers so many answers, with vLLM's depth."""
    cache: SuffixCache = _cache_class()(max_tree_depth=TREE_DEPTH, max_cached_requests=remembered)
    return cache


def _cache_class() -> Any:
    return import_module("arctic_inference.suffix_decoding").SuffixDecodingCache


class Memory:
    """The cache of one server, from one run to the next."""

    def __init__(
        self,
        answers: Answers,
        cache: SuffixCache | None = None,
        warm: Sequence[Request] = (),
    ) -> None:
        """With those of `warm` before the `answers`; without a `cache`, in arctic-inference's."""
        if cache is None:
            why = why_not_here()
            if why is not None:
                raise EvaluationError(f"'{HEAD}' {why}")
            cache = cache_of()
        self.cache, self.answers = cache, answers
        self._known = KnownAnswers(answers)
        self._cached: dict[int, int] = {}
        """Under which number the cache has an answer, or as much of it as there is."""
        self._growing: dict[int, dict[int, int]] = {}
        """By answer, the numbers that it grows under, and how long it is there."""
        self._started = 0
        for each in warm:
            self._store(each)

    def start(self, request: int) -> int:
        """Take a request in, and out what nobody may know by now; the number that it goes by."""
        number = self._started
        self._started += 1
        for answer in self._known.start(request):
            if answer in self._cached:
                self._evict(self._cached.pop(answer))
        self.cache.start_request(number, _tokens(self.answers.requests[request].prompt_tokens))
        answer = self.answers.of[request]
        copies = self._growing.setdefault(answer, {})
        copies[number] = 0
        if self._known.hidden_by(answer) > len(copies):  # an earlier turn runs, too
            self._evict(number)
        else:
            self._cached[answer] = number
        return number

    def grow(self, request: int, number: int, tokens: Ints) -> None:
        """Add to what a running request has answered."""
        answer = self.answers.of[request]
        copies = self._growing[answer]
        copies[number] += len(tokens)
        if self._cached.get(answer) == number and min(copies.values()) < copies[number]:
            self._evict(self._cached.pop(answer))
        self.cache.add_active_response(number, tokens)

    def stop(self, request: int, number: int) -> None:
        """Let a request go, and bring in what may be known again."""
        self.cache.stop_request(number)
        del self._growing[self.answers.of[request]][number]
        for answer in self._known.end(request):
            if answer not in self._cached:
                self._cached[answer] = self._store(self.answers.requests[answer])

    def _store(self, request: Request) -> int:
        number = self._started
        self._started += 1
        self.cache.start_request(number, _tokens(request.prompt_tokens))
        self.cache.add_active_response(number, _tokens(request.output_tokens))
        self.cache.stop_request(number)
        return number

    def _evict(self, number: int) -> None:
        if number in self.cache.cached_requests:  # the oldest leave by themselves
            self.cache.evict_cached_response(number)


@dataclass(slots=True)
class _Running:
    """A request between its first token and its last."""

    request: int
    number: int
    text: Ints
    """Prompt and answer."""
    prompt: int

    def pattern(self, position: int) -> Ints:
        """The end of what is known at a position, as far as a match may reach."""
        known = self.prompt + position
        return self.text[max(0, known - TREE_DEPTH) : known]

    def answer(self, position: int, tokens: int) -> Ints:
        """So many tokens of the answer, from a position on."""
        return self.text[self.prompt + position : self.prompt + position + tokens]


def run_suffix(
    recording: Recording,
    suffix: SuffixDecoding,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    memory: Memory | None = None,
) -> Result:
    """One run of the closed loop; `memory` may hold earlier runs."""
    memory = memory or Memory(Answers(recording.requests))
    run = _Run(recording, suffix, order, concurrency, cost, cap, memory)
    return run.result()


class _Run:
    """The state of one run."""

    def __init__(
        self,
        recording: Recording,
        suffix: SuffixDecoding,
        order: Ints,
        concurrency: int,
        cost: CostModel,
        cap: int,
        memory: Memory,
    ) -> None:
        self.recording, self.suffix, self.memory = recording, suffix, memory
        self.costs = cost.charged_to(Deciding.LOOKUP).constants()
        self.longest = min(cap, TREE_DEPTH)
        self.running: dict[int, _Running] = {}
        """By place in the order."""
        self.loop = start(recording.columns, order, concurrency, False)

    def result(self) -> Result:
        """Run to the end."""
        loop = self.loop
        while goes_on(loop):
            self._step()
            advance(loop, False)
        self._finish()
        return result_of(loop)

    def _step(self) -> None:
        """Draft for every row and verify."""
        loop, columns = self.loop, self.recording.columns
        rows = int(loop.state["rows"][0])
        request, position = loop.request[:rows], loop.position[:rows]
        positions = position.tolist()
        batch = self._let_in_and_out()
        # All drafts first: no row knows yet what this step brings another.
        drafts = [self._draft(each, p) for each, p in zip(batch, positions, strict=True)]
        left = columns.length[request] - position
        accepted = np.array(
            [
                _agreeing(draft, each.answer(p, len(draft)))
                for each, p, draft in zip(batch, positions, drafts, strict=True)
            ]
        )
        emitted = loop.emitted[:rows]
        emitted[:] = np.minimum(accepted + 1, left)
        for each, p, count in zip(batch, positions, emitted.tolist(), strict=True):
            self.memory.grow(each.request, each.number, each.answer(p, count))
        shape = StepShape(rows, context_tokens(loop), sum(map(len, drafts)), 0, False, 0, 0, 0)
        seconds, deciding = step_seconds(loop, self.costs, shape), deciding_s(self.costs, shape)
        count_step(loop, shape, seconds, deciding, int(np.minimum(accepted, left).sum()))

    def _rows(self, column: NDArray[np.int64]) -> list[int]:
        """A column of the loop, as far as requests run."""
        running: list[int] = column[: self.loop.state["rows"][0]].tolist()
        return running

    def _let_in_and_out(self) -> list[_Running]:
        """Who runs now, row by row; who ran and does no longer is let go."""
        places = self._rows(self.loop.entry)
        for place in self.running.keys() - set(places):
            self._let_go(self.running.pop(place))
        for request, place in zip(self._rows(self.loop.request), places, strict=True):
            if place not in self.running:
                self.running[place] = self._take_in(request)
        return [self.running[place] for place in places]

    def _finish(self) -> None:
        """Let those that still run answer in full, as in a server: later runs may remember it."""
        for place, position in zip(
            self._rows(self.loop.entry), self._rows(self.loop.position), strict=True
        ):
            each = self.running.pop(place, None)
            if each is not None:
                rest = each.answer(position, len(each.text))
                if len(rest):
                    self.memory.grow(each.request, each.number, rest)
                self._let_go(each)
        for each in self.running.values():
            self._let_go(each)
        self.running.clear()

    def _let_go(self, running: _Running) -> None:
        self.memory.stop(running.request, running.number)

    def _take_in(self, request: int) -> _Running:
        row = self.recording.requests[request]
        text = _tokens(np.concatenate([row.prompt_tokens, row.output_tokens]))
        running = _Running(request, self.memory.start(request), text, len(row.prompt_tokens))
        self.memory.grow(request, running.number, running.answer(0, 1))
        return running

    def _draft(self, running: _Running, position: int) -> Sequence[int]:
        draft: Sequence[int] = self.memory.cache.speculate(
            running.number,
            running.pattern(position),
            max_spec_tokens=self.longest,
            max_spec_factor=self.suffix.factor,
            min_token_prob=self.suffix.least_probability,
        ).token_ids
        return draft


def _agreeing(draft: Sequence[int], answer: Ints) -> int:
    """How many leading drafted tokens are the answer's."""
    count = 0
    for drafted, token in zip(draft, answer.tolist(), strict=False):
        if drafted != token:
            break
        count += 1
    return count


def _tokens(tokens: Ints) -> Ints:
    """As the cache takes them."""
    return np.ascontiguousarray(tokens, np.int32)

"""vLLM's suffix decoding, replayed: a look-up that also remembers other requests' answers.

The drafts are those of arctic-inference's own cache, called as vLLM calls it. Its memory is empty
as a run begins, or holds the answers of other traces, and grows with every answer. What an order
may not know is left out as for everybody: see `KnownAnswers`. Suffix decoding alone also knows what
those that run now have answered so far: of copies that run at once, the last one's, unless it gets
ahead of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, decoding_shape
from adaspec.errors import SpecError
from adaspec.replay.closed_loop import (
    Result,
    context_tokens,
    finish_step,
    goes_on,
    result_of,
    start,
)
from adaspec.replay.history import GivenAnswers, KnownAnswers
from adaspec.replay.recording import Recording
from adaspec.trace.schema import Request

Ints = NDArray[np.int32]

HEAD = "suffix"
TREE_DEPTH = 24
"""vLLM's default: the longest match and the longest draft."""
REMEMBERED = 10_000
"""vLLM's default: so many answers are remembered, the oldest go first."""
_NUMBER = r"(?=.)[0-9]{0,4}(\.[0-9]{1,9})?"


@dataclass(frozen=True, slots=True)
class SuffixDecoding:
    """vLLM's method `suffix` at one setting; the defaults are vLLM's."""

    name: str = HEAD
    factor: float = 1.0
    """Tokens drafted at most per token matched."""
    least_probability: float = 0.1
    """Drafts end before a token that followed less often than this."""


def parse_suffix(text: str) -> SuffixDecoding:
    """The setting that `suffix:FACTOR:PROB` names; what is left out is vLLM's default."""
    words, most = text.strip().split(":")[1:], {"FACTOR": TREE_DEPTH, "PROB": 1}
    if len(words) > len(most):
        raise _malformed(text, f"{len(words)} values, at most {len(most)} are known")
    for word, (name, high) in zip(words, most.items(), strict=False):
        if not re.fullmatch(_NUMBER, word) or float(word) > high:
            raise _malformed(text, f"{name} is '{word}', not a number from 0 to {high}")
    return SuffixDecoding(text, *map(float, words))


def _malformed(text: str, why: str) -> SpecError:
    return SpecError(f"malformed policy spec '{text}': {why}. Write {HEAD}:FACTOR:PROB")


def why_not_here() -> str | None:
    """Why suffix decoding cannot be replayed here; None where it can."""
    try:
        _cache_class()
    except Exception as error:  # a foreign compiled extension fails in many ways
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return f"needs arctic-inference, which cannot be imported: {reason}"
    return None


def new_cache() -> Any:
    """An empty cache of arctic-inference's, with vLLM's limits."""
    return _cache_class()(max_tree_depth=TREE_DEPTH, max_cached_requests=REMEMBERED)


def _cache_class() -> Any:
    return import_module("arctic_inference.suffix_decoding").SuffixDecodingCache


class SuffixMemory:
    """The cache of one server, which knows what the requests of an order may know."""

    def __init__(self, answers: GivenAnswers, cache: Any, warm: Iterable[Request] = ()) -> None:
        """`cache` is empty; it is told of the answers of `warm` before all others."""
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
        for answer in self._known.start(request):
            if answer in self._cached:
                self._evict(self._cached.pop(answer))
        number = self._begin(self.answers.requests[request])
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

    def _begin(self, request: Request) -> int:
        number = self._started
        self._started += 1
        self.cache.start_request(number, _tokens(request.prompt_tokens))
        return number

    def _store(self, request: Request) -> int:
        number = self._begin(request)
        self.cache.add_active_response(number, _tokens(request.output_tokens))
        self.cache.stop_request(number)
        return number

    def _evict(self, number: int) -> None:
        if number in self.cache.cached_requests:  # the oldest leave by themselves
            self.cache.evict_cached_response(number)


def run_suffix(
    recording: Recording,
    suffix: SuffixDecoding,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    memory: SuffixMemory,
) -> Result:
    """One run of the closed loop; the memory is of no use after it."""
    costs, arrays = cost.without_deciding().constants(), recording.arrays
    loop = start(recording.columns, order, concurrency, False)
    running: dict[int, tuple[int, int]] = {}
    """By place in the order, the request and the number under which the memory has it."""
    while goes_on(loop):
        places = loop.entry.tolist()
        for place in running.keys() - set(places):
            memory.stop(*running.pop(place))
        for place, request in zip(places, loop.request.tolist(), strict=True):
            if place not in running:
                running[place] = request, memory.start(request)
                first = _tokens(recording.requests[request].output_tokens[:1])
                memory.grow(*running[place], first)
        ends = arrays.text_start[loop.request + 1]
        known = arrays.text_start[loop.request] + loop.columns.prompt[loop.request] + loop.position
        began = np.maximum(arrays.text_start[loop.request], known - TREE_DEPTH)
        # All drafts first: no row knows yet what this step brings another.
        drafts: list[Sequence[int]] = [
            memory.cache.speculate(
                running[place][1],
                arrays.text[first:last],
                max_spec_tokens=min(cap, TREE_DEPTH),
                max_spec_factor=suffix.factor,
                min_token_prob=suffix.least_probability,
            ).token_ids
            for place, first, last in zip(places, began, known, strict=True)
        ]
        accepted = 0
        for row, (place, draft) in enumerate(zip(places, drafts, strict=True)):
            following = arrays.text[known[row] : ends[row]]
            compared = following[: len(draft)]
            right = int((np.array(draft[: len(compared)]) == compared).cumprod().sum())
            emitted = following[: right + 1]
            memory.grow(*running[place], emitted)
            loop.emitted[row] = len(emitted)
            accepted += right
        drafted = sum(map(len, drafts))
        shape = decoding_shape(concurrency, context_tokens(loop), drafted, 0, False)
        finish_step(loop, costs, shape, accepted)
    return result_of(loop)


def _tokens(tokens: Ints) -> Ints:
    """As the cache takes them."""
    return np.ascontiguousarray(tokens, np.int32)

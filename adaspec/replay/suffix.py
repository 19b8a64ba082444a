"""vLLM's suffix decoding, replayed: a look-up that also remembers other requests' answers.

The drafts are those of arctic-inference's own cache, called as vLLM calls it. The cache is empty as
a run begins, or holds the answers of other traces, and grows by all that the run answers, token by
token. An order may hold a request several times, standing for others like it: from its start on the
cache knows the request's answer only as far as it has given that itself, and while copies of it run
at once, none of theirs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, step_shape
from adaspec.draft.matches import Ints
from adaspec.errors import SpecError
from adaspec.replay.loop import Loop, context_tokens, finish_step, goes_on, new_loop, running
from adaspec.replay.recording import Recording
from adaspec.trace.schema import Request

HEAD = "suffix"
TREE_DEPTH, REMEMBERED = 24, 10_000
"""vLLM's defaults: the longest match and draft, and how many answers are remembered at most."""
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
    words, most, why = text.strip().split(":")[1:], {"FACTOR": TREE_DEPTH, "PROB": 1}, []
    if len(words) > len(most):
        why.append(f"{len(words)} values, at most {len(most)} are known")
    for word, (name, high) in zip(words, most.items(), strict=False):
        if not re.fullmatch(_NUMBER, word) or float(word) > high:
            why.append(f"{name} is '{word}', not a number from 0 to {high}")
    if why:
        raise SpecError(f"malformed policy spec '{text}': {why[0]}. Write {HEAD}:FACTOR:PROB")
    return SuffixDecoding(text, *map(float, words))


def why_not_here() -> str | None:
    """Why suffix decoding cannot be replayed here; None where it can."""
    try:
        new_cache()
    except Exception as error:  # a foreign compiled extension fails in many ways
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return f"needs arctic-inference, which cannot be imported: {reason}"
    return None


def new_cache() -> Any:
    """An empty cache of arctic-inference's, with vLLM's limits."""
    made = import_module("arctic_inference.suffix_decoding").SuffixDecodingCache
    return made(max_tree_depth=TREE_DEPTH, max_cached_requests=REMEMBERED)


class SuffixMemory:
    """The cache of one server in a run, for which it holds nobody's own answer."""

    def __init__(self, requests: Sequence[Request], cache: Any, warm: Iterable[Request]) -> None:
        """`cache` is empty; it is told of the answers of `warm` before all others."""
        self.cache, self._requests = cache, requests
        self._numbers, self._running = count(), Counter[bytes]()
        self._cached: dict[bytes, int] = {}
        """By answer, the number under which the cache has it, or as much of it as there is."""
        for each in warm:
            self._store(each)

    def start(self, request: int) -> int:
        """Take a request in with its first token, and its answer out; the number it goes by."""
        asked, number = self._requests[request], next(self._numbers)
        answer = asked.output_tokens.tobytes()
        self.cache.start_request(number, asked.prompt_tokens)
        self._running[answer] += 1
        # Where a copy runs already, the cache holds neither's answer.
        alone = self._running[answer] == 1
        for hidden in (self._cached.pop(answer, None), None if alone else number):
            if hidden in self.cache.cached_requests:  # the oldest leave by themselves
                self.cache.evict_cached_response(hidden)
        if alone:
            self._cached[answer] = number
        self.cache.add_active_response(number, asked.output_tokens[:1])
        return number

    def stop(self, request: int, number: int) -> None:
        """Let a request go; once no copy of it runs, its answer is known."""
        self.cache.stop_request(number)
        answer = self._requests[request].output_tokens.tobytes()
        self._running[answer] -= 1
        if not self._running[answer] and answer not in self._cached:
            self._cached[answer] = self._store(self._requests[request])

    def _store(self, request: Request) -> int:
        number = next(self._numbers)
        self.cache.start_request(number, request.prompt_tokens)
        self.cache.add_active_response(number, request.output_tokens)
        self.cache.stop_request(number)
        return number


def run_suffix(
    recording: Recording,
    suffix: SuffixDecoding,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    memory: SuffixMemory,
    comes_s: NDArray[np.float64] | None = None,
) -> Loop:
    """The loop at its end; the memory is of no use after it."""
    costs = cost.without_deciding().constants()
    loop = new_loop(recording.columns, order, concurrency, False, comes_s)
    cache = memory.cache
    limits = {
        "max_spec_tokens": min(cap, TREE_DEPTH),
        "max_spec_factor": suffix.factor,
        "min_token_prob": suffix.least_probability,
    }
    known: dict[int, tuple[int, int]] = {}
    """By place in the order, the request and its number in the cache."""
    while goes_on(loop):
        rows = running(loop)
        places = rows["entry"].tolist()
        for place in known.keys() - set(places):
            memory.stop(*known.pop(place))
        for place, request in zip(places, rows["request"].tolist(), strict=True):
            if place not in known:
                known[place] = request, memory.start(request)
        numbers = [known[place][1] for place in places]
        starts, ends = (recording.text_start[rows["request"] + more] for more in (0, 1))
        now = starts + rows["at"] - rows["begin"]
        began = np.maximum(starts, now - TREE_DEPTH)
        # All drafts first: no row knows yet what this step brings another.
        drafts = [
            cache.speculate(number, recording.text[first:last], **limits).token_ids
            for number, first, last in zip(numbers, began, now, strict=True)
        ]
        accepted = 0
        for row, (number, draft) in enumerate(zip(numbers, drafts, strict=True)):
            following = recording.text[now[row] : ends[row]]
            compared = following[: len(draft)]
            right = int((np.array(draft[: len(compared)]) == compared).cumprod().sum())
            cache.add_active_response(number, following[: right + 1])
            rows["emitted"][row] = len(following[: right + 1])
            accepted += right
        shape = step_shape(len(places), context_tokens(rows), sum(map(len, drafts)), 0, False)
        finish_step(loop, costs, shape, accepted)
    return loop

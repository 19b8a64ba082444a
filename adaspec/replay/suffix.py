"""vLLM's suffix decoding, replayed: a look-up that also remembers other requests' answers.

The drafts are those of arctic-inference's own cache, called as vLLM calls it. Its memory is empty
as a run begins and grows with every answer. An order may hold a request more than once, standing
for others like it: what was remembered of the earlier copy is forgotten as the later one enters,
for no server would have seen that very answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, step_s
from adaspec.errors import EvaluationError, SpecError
from adaspec.replay.result import Result
from adaspec.replay.rows import Rows, advance, enter, new_latency, seconds_per_token
from adaspec.replay.tape import Tape

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
    for at, (word, name, most) in enumerate(
        zip(words, ("FACTOR", "PROB"), (float(TREE_DEPTH), 1.0), strict=False)
    ):
        if not word or not re.fullmatch(_NUMBER, word) or not 0 <= float(word) <= most:
            raise _malformed(text, f"{name} is '{word}', not a number from 0 to {most:g}")
        values[at] = float(word)
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
        said = (str(error) or type(error).__name__).splitlines()[0]
        return f"needs arctic-inference, which cannot be imported: {said}"
    return None


def _cache_class() -> Any:
    return import_module("arctic_inference.suffix_decoding").SuffixDecodingCache


class Memory:
    """The cache of one server, from one run to the next."""

    def __init__(self, cache: SuffixCache | None = None) -> None:
        """Empty; without a `cache`, with one of arctic-inference's."""
        if cache is None:
            why = why_not_here()
            if why is not None:
                raise EvaluationError(f"'{HEAD}' {why}")
            made: SuffixCache = _cache_class()(
                max_tree_depth=TREE_DEPTH, max_cached_requests=REMEMBERED
            )
            cache = made
        self.cache = cache
        self._copies: dict[int, int] = {}
        self._started = 0

    def start(self, request: int, prompt: Ints) -> int:
        """Take a request in, forgetting its earlier copy; the number that it now goes by."""
        earlier = self._copies.get(request)
        if earlier is not None and earlier in self.cache.cached_requests:
            self.cache.evict_cached_response(earlier)
        number = self._copies[request] = self._started
        self._started += 1
        self.cache.start_request(number, prompt)
        return number


@dataclass(slots=True)
class _Running:
    """A request between its first token and its last."""

    number: int
    text: Ints
    """Prompt and answer."""
    prompt: int

    def pattern(self, position: int) -> Ints:
        """The end of what is known at a position, as far as a match may reach."""
        known = self.prompt + position
        return self.text[max(0, known - TREE_DEPTH) : known]

    def said(self, position: int, tokens: int) -> Ints:
        """So many tokens of the answer, from a position on."""
        return self.text[self.prompt + position : self.prompt + position + tokens]


def run_suffix(
    tape: Tape,
    suffix: SuffixDecoding,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    refills: bool = True,
    charged: bool = False,
    memory: Memory | None = None,
) -> Result:
    """One run of the closed loop, or of copies without refills; `memory` may hold earlier runs.

    What drafting takes on this machine is clocked; where it is `charged`, it also counts as time.
    """
    run = _Run(tape, suffix, order, concurrency, cost, cap, memory or Memory())
    return run.result(refills, charged)


class _Run:
    """The state of one run."""

    def __init__(
        self,
        tape: Tape,
        suffix: SuffixDecoding,
        order: Ints,
        concurrency: int,
        cost: CostModel,
        cap: int,
        memory: Memory,
    ) -> None:
        self.tape, self.suffix, self.order, self.memory = tape, suffix, order, memory
        self.concurrency, self.constants = concurrency, cost.constants()
        self.longest = min(cap, TREE_DEPTH)
        self.running: dict[int, _Running] = {}
        """By place in the order."""
        self.emitted = np.zeros(concurrency, np.int64)
        self.decision_s = 0.0
        self.steps = self.row_steps = self.tokens = self.accepted = self.drafted = 0

    def result(self, refills: bool, charged: bool) -> Result:
        """Run to the end."""
        columns, order = self.tape.columns, self.order
        rows = following = self.concurrency
        state, time = enter(columns, order, rows, refills, False)
        latency = new_latency(order)
        ended = False
        while rows > 0 and not ended:
            before_s = self.decision_s
            time += self._step(_first(state, rows))
            time += self.decision_s - before_s if charged else 0.0
            rows, following, time, ended = advance(
                columns, order, refills, False, state, rows, following, self.emitted, time, latency
            )
        self._finish(_first(state, rows))
        return Result(
            tokens=self.tokens,
            time_s=time,
            steps=self.steps,
            row_steps=self.row_steps,
            accepted=self.accepted,
            drafted=self.drafted,
            neural_steps=0,
            token_s=seconds_per_token(columns, order, latency),
            decision_s=self.decision_s,
        )

    def _step(self, state: Rows) -> float:
        """Draft for every row and verify; the step's modelled seconds."""
        rows, columns = len(state.request), self.tape.columns
        positions = state.position.tolist()
        began = perf_counter()
        batch = self._let_in_and_out(state)
        # All drafts first: no row knows yet what this step brings another.
        drafts = [self._draft(each, p) for each, p in zip(batch, positions, strict=True)]
        self.decision_s += perf_counter() - began
        left = columns.length[state.request] - state.position
        right = np.array(
            [
                _right(draft, each.said(p, len(draft)))
                for each, p, draft in zip(batch, positions, drafts, strict=True)
            ]
        )
        self.emitted[:rows] = np.minimum(right + 1, left)
        began = perf_counter()
        for each, p, count in zip(batch, positions, self.emitted.tolist(), strict=False):
            self.memory.cache.add_active_response(each.number, each.said(p, count))
        self.decision_s += perf_counter() - began
        drafted = sum(map(len, drafts))
        self.steps += 1
        self.row_steps += rows
        self.tokens += int(self.emitted[:rows].sum())
        self.accepted += int(np.minimum(right, left).sum())
        self.drafted += drafted
        context = int((columns.prompt[state.request] + state.position).sum())
        return float(step_s(self.constants, rows + drafted, context, 0, False))

    def _let_in_and_out(self, state: Rows) -> list[_Running]:
        """Who runs now, row by row; who ran and does no longer is let go."""
        places = state.entry.tolist()
        for place in self.running.keys() - set(places):
            self.memory.cache.stop_request(self.running.pop(place).number)
        for request, place in zip(state.request.tolist(), places, strict=True):
            if place not in self.running:
                self.running[place] = self._take_in(request)
        return [self.running[place] for place in places]

    def _finish(self, state: Rows) -> None:
        """Let those that still run say the rest, as a server would: later runs may remember it."""
        for place, position in zip(state.entry.tolist(), state.position.tolist(), strict=True):
            each = self.running.pop(place, None)
            if each is not None:
                rest = each.said(position, len(each.text))
                if len(rest):
                    self.memory.cache.add_active_response(each.number, rest)
                self.memory.cache.stop_request(each.number)
        for each in self.running.values():
            self.memory.cache.stop_request(each.number)
        self.running.clear()

    def _take_in(self, request: int) -> _Running:
        row = self.tape.requests[request]
        text = np.concatenate([row.prompt_tokens, row.output_tokens]).astype(np.int32)
        prompt = len(row.prompt_tokens)
        found = _Running(self.memory.start(request, text[:prompt]), text, prompt)
        self.memory.cache.add_active_response(found.number, found.said(0, 1))
        return found

    def _draft(self, running: _Running, position: int) -> Sequence[int]:
        draft: Sequence[int] = self.memory.cache.speculate(
            running.number,
            running.pattern(position),
            max_spec_tokens=self.longest,
            max_spec_factor=self.suffix.factor,
            min_token_prob=self.suffix.least_probability,
        ).token_ids
        return draft


def _first(state: Rows, rows: int) -> Rows:
    return Rows(
        request=state.request[:rows],
        entry=state.entry[:rows],
        position=state.position[:rows],
        entered=state.entered[:rows],
    )


def _right(draft: Sequence[int], said: Ints) -> int:
    """How many drafted tokens are those that came."""
    right = 0
    for drafted, came in zip(draft, said.tolist(), strict=False):
        if drafted != came:
            break
        right += 1
    return right

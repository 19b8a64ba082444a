"""Requests laid out flat for compiled replay: what each source would give at every position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.index import accepted_runs, look_ups
from adaspec.draft.matches import AVAILABLE, IN_RING, LENGTH, START, Ints, Ring
from adaspec.errors import EvaluationError
from adaspec.jit import inlined
from adaspec.policy.static import ranking
from adaspec.trace.schema import CONFIDENCES, Request

Shorts = NDArray[np.int16]
Number = TypeVar("Number", bound=np.generic)


class Columns(NamedTuple):
    """The arrays that compiled code reads; a request's position i is row `offset` + i."""

    offset: NDArray[np.int64]
    prompt: NDArray[np.int64]
    length: NDArray[np.int64]
    neural: Shorts
    """Accepted count of the neural draft, censored at the trace's cap."""
    match: Shorts
    """Length of the match, 0 where there is none."""
    available: Shorts
    """Tokens that could be copied from it, at most `LONGEST`."""
    run: Shorts
    """How many of them are right, as far as the output reaches."""
    splice_match_length: Ints
    """(positions, draft cap) match behind the first drafted tokens; empty where tokens are not
    recorded."""
    splice_match_available: Ints
    confidence: NDArray[np.float32]
    """(positions, draft cap) the recorded confidence that ranks drafts; empty where none is."""
    charges_prompts: bool
    """Whether reading prompts takes time."""


@inlined
def accepted_of(right: Shorts, run: Shorts, at: int, neural: int, copied: int) -> int:
    """What the target accepts of neural tokens and copied ones behind them, at a flat position.

    By `Columns.neural` and `run`; it may pass the output's end.
    """
    accepted = min(right[at], neural) if neural > 0 else 0
    if accepted == neural and copied > 0:
        accepted += min(run[at + neural], copied)
    return accepted


LONGEST = 1024
"""Copies are never longer than this: counts fit 16 bits, and no draft comes near it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """All requests of one evaluation, ready to be replayed."""

    requests: tuple[Request, ...]
    workloads: tuple[str, ...]
    workload: Ints
    """Index into `workloads` per request."""
    columns: Columns
    """What each source would give at every position."""
    facts: Ints
    """(facts of `Matches`, positions) the look-up, as far as the text is known at each position."""
    text: Ints
    """Prompt and output of every request."""
    text_start: NDArray[np.int64]
    """Where each request's text starts."""
    drafted: Ints
    confidences: NDArray[np.float32]
    splice_matches: Ints
    """(facts of `Matches`, positions, draft cap) the look-ups behind the first drafted tokens."""
    ring: Ints
    """The ring's tokens by place, -1 behind each answer; empty where there is no ring."""
    neural_cap: int
    """0 where no neural drafter was recorded."""
    shows_tokens: bool
    shows_confidences: bool

    def __len__(self) -> int:
        return len(self.requests)

    def members(self, workload: str | None) -> Ints:
        """Indices of a workload's requests, or of all."""
        if workload is None:
            return np.arange(len(self), dtype=np.int32)
        index = self.workloads.index(workload)
        return np.flatnonzero(self.workload == index).astype(np.int32)

    def positions(self, requests: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The flat positions of requests, one after another, and the request of each."""
        length, offset = self.columns.length[requests], self.columns.offset[requests]
        before = np.cumsum(length) - length
        at = np.arange(length.sum()) + np.repeat(offset - before, length)
        return at, np.repeat(requests.astype(np.int64), length)

    def copied_tokens(self, request: NDArray[np.int64], places: NDArray[np.int64]) -> Ints:
        """The tokens at (requests, any) places of their texts, or of the ring."""
        in_ring, start = places >= IN_RING, self.text_start[request][:, None]
        said = self.text[start + np.where(in_ring, 0, places)]
        if in_ring.any():
            said[in_ring] = self.ring[places[in_ring] - IN_RING]
        return said

    def with_prefill(self) -> Recording:
        """The same recording, in which reading prompts takes time (see `loop`)."""
        return replace(self, columns=self.columns._replace(charges_prompts=True))


def build_recording(
    requests: Iterable[Request], neural_cap: int, ring: Ring | None = None
) -> Recording:
    """Look up every position of every request once, so that replays need not.

    Look-ups search the `ring`, too, if there is one: it stays as it is.
    """
    chosen = tuple(requests)
    _check(chosen, neural_cap)
    drafted = [r.drafted_tokens for r in chosen if neural_cap and r.drafted_tokens is not None]
    shows_tokens = neural_cap > 0 and len(drafted) == len(chosen)
    shown = [r.confidences for r in chosen if shows_tokens and r.confidences is not None]
    shows_confidences = shows_tokens and len(shown) == len(chosen)
    draft_cap = min(each.shape[1] for each in drafted) if shows_tokens else 0
    drafts = _cut(drafted, draft_cap) if shows_tokens else np.empty((0, 0), np.int32)
    none_shown = np.empty((0, 0, len(CONFIDENCES)), np.float32)
    confidences = _cut(shown, draft_cap) if shows_confidences else none_shown
    ring_tokens = np.empty(0, np.int32) if ring is None else ring.tokens.copy()
    texts, found, runs = [], [], []
    for at, request in enumerate(chosen):
        text, prompt = text_of(request), len(request.prompt_tokens)
        tails = drafted[at][:, :draft_cap] if shows_tokens else None
        texts.append(text)
        found.append(look_ups(text, prompt, tails, ring))
        runs.append(accepted_runs(text, found[at][START, :, 0], prompt, ring_tokens))
    every = np.concatenate(found, axis=1)
    facts, splices = every[:, :, 0].copy(), every[:, :, 1:].copy()
    np.minimum(splices[AVAILABLE], LONGEST, out=splices[AVAILABLE])
    available = np.minimum(facts[AVAILABLE], LONGEST)
    lengths = [len(r.output_tokens) for r in chosen]
    columns = Columns(
        offset=_starts(lengths),
        prompt=np.array([len(r.prompt_tokens) for r in chosen], np.int64),
        length=np.array(lengths, np.int64),
        neural=_neural(chosen, neural_cap),
        match=facts[LENGTH].astype(np.int16),
        available=available.astype(np.int16),
        run=np.minimum(np.concatenate(runs), available).astype(np.int16),
        splice_match_length=splices[LENGTH],
        splice_match_available=splices[AVAILABLE],
        confidence=ranking(confidences),
        charges_prompts=False,
    )
    workloads = tuple(sorted({request.workload for request in chosen}))
    return Recording(
        requests=chosen,
        workloads=workloads,
        workload=np.array([workloads.index(r.workload) for r in chosen], np.int32),
        columns=columns,
        facts=facts,
        text=np.concatenate(texts),
        text_start=_starts([len(text) for text in texts]),
        drafted=drafts,
        confidences=confidences,
        splice_matches=splices,
        ring=ring_tokens,
        neural_cap=min(neural_cap, draft_cap) if shows_tokens else neural_cap,
        shows_tokens=shows_tokens,
        shows_confidences=shows_confidences,
    )


def text_of(request: Request) -> Ints:
    """A request's prompt and output."""
    return np.append(request.prompt_tokens, request.output_tokens).astype(np.int32)


def _check(requests: Sequence[Request], neural_cap: int) -> None:
    """Refuse what cannot be replayed."""
    if not requests:
        raise EvaluationError("no requests to replay")
    for request in requests:
        if len(request.output_tokens) < 2:
            raise EvaluationError(f"request {request.workload}/{request.id} has nothing to decode")
    if neural_cap and not all(request.paired for request in requests):
        raise EvaluationError("a recording with neural drafts takes paired requests only")


def _starts(lengths: Sequence[int]) -> NDArray[np.int64]:
    """Where each of these parts starts, and where the last one ends."""
    return np.cumsum([0, *lengths], dtype=np.int64)


def _neural(requests: Sequence[Request], neural_cap: int) -> Shorts:
    """The accepted counts, censored at the cap; -1 where no neural drafter was recorded."""
    if not neural_cap:
        return np.full(sum(len(r.output_tokens) for r in requests), -1, np.int16)
    counts = [r.neural_accepted for r in requests if r.neural_accepted is not None]
    return np.minimum(np.concatenate(counts), neural_cap).astype(np.int16)


def _cut(parts: Sequence[NDArray[Number]], width: int) -> NDArray[Number]:
    """All requests' positions in one, as far as every request goes."""
    return np.concatenate([each[:, :width] for each in parts])

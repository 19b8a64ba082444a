"""Requests laid out flat for compiled replay: what each source would give at every position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.match import AVAILABLE, IN_RING, LENGTH, MATCH_FIELDS, START, Matches
from adaspec.draft.positions import (
    accepted_runs,
    match_positions,
    splice_matches,
)
from adaspec.draft.ring import Ring
from adaspec.errors import EvaluationError
from adaspec.jit import compiled
from adaspec.policy.static import ranking
from adaspec.trace.schema import CONFIDENCES, Request

Ints = NDArray[np.int32]
Shorts = NDArray[np.int16]
Number = TypeVar("Number", bound=np.generic)


class Lookup(NamedTuple):
    """One look-up's answers, flat over positions."""

    match: Shorts
    """Length of the match, 0 where there is none."""
    available: Shorts
    """Tokens that could be copied from it, at most `LONGEST`."""
    run: Shorts
    """How many of them are right, as far as the output reaches."""


class Columns(NamedTuple):
    """The arrays that compiled code reads; a request's position i is row `offset` + i."""

    offset: NDArray[np.int64]
    prompt: NDArray[np.int64]
    length: NDArray[np.int64]
    neural: Shorts
    """Accepted count of the neural draft, censored at the trace's cap."""
    match: Shorts
    available: Shorts
    run: Shorts
    splice_match_length: Ints
    """(positions, draft cap) match behind the first drafted tokens; empty where tokens are not
    recorded."""
    splice_match_available: Ints
    confidence: NDArray[np.float32]
    """(positions, draft cap) the recorded confidence that ranks drafts; empty where none is."""
    charges_prompts: bool
    """Whether reading prompts takes time."""


class RecordedArrays(NamedTuple):
    """A recording as compiled replays read it, with the text of all requests."""

    columns: Columns
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


@compiled
def copied_token(arrays: RecordedArrays, request: int, start: int, step: int) -> int:
    """The token `step` behind where a match of a request continues."""
    if start >= IN_RING:
        return arrays.ring[start - IN_RING + step]
    return arrays.text[arrays.text_start[request] + start + step]


LONGEST = 1024
"""Copies are never longer than this: counts fit 16 bits, and no draft comes near it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """All requests of one evaluation, ready to be replayed."""

    requests: tuple[Request, ...]
    workloads: tuple[str, ...]
    workload: Ints
    """Index into `workloads` per request."""
    arrays: RecordedArrays
    neural_cap: int
    """0 where no neural drafter was recorded."""
    shows_tokens: bool
    shows_confidences: bool

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def columns(self) -> Columns:
        """What each source would give at every position."""
        return self.arrays.columns

    def members(self, workload: str | None) -> Ints:
        """Indices of a workload's requests, or of all."""
        if workload is None:
            return np.arange(len(self), dtype=np.int32)
        index = self.workloads.index(workload)
        return np.flatnonzero(self.workload == index).astype(np.int32)

    def with_prefill(self) -> Recording:
        """The same recording, in which reading prompts takes time (see `closed_loop`)."""
        changed = self.columns._replace(charges_prompts=True)
        return replace(self, arrays=self.arrays._replace(columns=changed))


def build_recording(
    requests: Iterable[Request], neural_cap: int, ring: Ring | None = None
) -> Recording:
    """Look up every position of every request once, so that replays need not.

    Look-ups search the `ring`, too, if there is one: it stays as it is.
    """
    chosen = tuple(requests)
    _check(chosen, neural_cap)
    shows_tokens = neural_cap > 0 and all(r.drafted_tokens is not None for r in chosen)
    shows_confidences = shows_tokens and all(r.confidences is not None for r in chosen)
    drafted = [r.drafted_tokens for r in chosen if shows_tokens and r.drafted_tokens is not None]
    draft_cap = min((each.shape[1] for each in drafted), default=0)
    drafted = [each[:, :draft_cap] for each in drafted if draft_cap > 0]
    shown = [r.confidences for r in chosen if shows_confidences and r.confidences is not None]
    confidences = [each[:, :draft_cap] for each in shown]
    facts = _facts([match_positions(r.prompt_tokens, r.output_tokens, ring) for r in chosen])
    splices = [
        splice_matches(r.prompt_tokens, r.output_tokens, each, ring)
        for r, each in zip(chosen, drafted, strict=False)
    ]
    ring_tokens = np.empty(0, np.int32) if ring is None else ring.tokens.copy()
    lookup = _lookup(chosen, facts[START], facts[LENGTH], facts[AVAILABLE], ring_tokens)
    splice_facts = _facts(splices) if splices else np.empty((MATCH_FIELDS, 0, 0), np.int32)
    np.minimum(splice_facts[AVAILABLE], LONGEST, out=splice_facts[AVAILABLE])
    texts = [np.append(r.prompt_tokens, r.output_tokens) for r in chosen]
    text, text_start = np.concatenate(texts).astype(np.int32), _starts([len(t) for t in texts])
    lengths = [len(r.output_tokens) for r in chosen]
    columns = Columns(
        offset=_starts(lengths),
        prompt=np.array([len(r.prompt_tokens) for r in chosen], np.int64),
        length=np.array(lengths, np.int64),
        neural=_neural(chosen, neural_cap),
        match=lookup.match,
        available=lookup.available,
        run=lookup.run,
        splice_match_length=splice_facts[LENGTH],
        splice_match_available=splice_facts[AVAILABLE],
        confidence=_stacked([ranking(each).astype(np.float32) for each in confidences], np.float32),
        charges_prompts=False,
    )
    none_shown = np.empty((0, 0, len(CONFIDENCES)), np.float32)
    workloads = tuple(sorted({request.workload for request in chosen}))
    return Recording(
        requests=chosen,
        workloads=workloads,
        workload=np.array([workloads.index(r.workload) for r in chosen], np.int32),
        arrays=RecordedArrays(
            columns=columns,
            facts=facts,
            text=text,
            text_start=text_start,
            drafted=_stacked(drafted, np.int32),
            confidences=np.concatenate(confidences) if confidences else none_shown,
            splice_matches=splice_facts,
            ring=ring_tokens,
        ),
        neural_cap=min(neural_cap, draft_cap) if shows_tokens else neural_cap,
        shows_tokens=shows_tokens,
        shows_confidences=shows_confidences,
    )


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


def _facts(matches: Sequence[Matches]) -> Ints:
    """The facts of all matches, one request's behind another's."""
    names = [each.name for each in fields(Matches)]
    return np.stack([np.concatenate([getattr(each, name) for each in matches]) for name in names])


def _lookup(
    requests: Sequence[Request], start: Ints, length: Ints, available: Ints, ring: Ints
) -> Lookup:
    """A look-up's answers at all positions of these requests."""
    runs, begin = [], 0
    for request in requests:
        prompt, end = len(request.prompt_tokens), begin + len(request.output_tokens)
        context = np.concatenate([request.prompt_tokens, request.output_tokens])
        runs.append(accepted_runs(context, start[begin:end], prompt, ring))
        begin = end
    available = np.where(length > 0, np.minimum(available, LONGEST), 0)
    run = np.minimum(np.concatenate(runs), available)
    return Lookup(length.astype(np.int16), available.astype(np.int16), run.astype(np.int16))


def _stacked(parts: Sequence[NDArray[Number]], dtype: type[Number]) -> NDArray[Number]:
    return np.concatenate(parts) if parts else np.empty((0, 0), dtype)

"""Requests laid out flat for compiled replay: what each source would give at every position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.answers import IN_ANSWERS, AnswerIndex
from adaspec.draft.match import Matches
from adaspec.draft.positions import (
    accepted_runs,
    match_positions,
    matches_behind_drafts,
    vllm_positions,
)
from adaspec.errors import EvaluationError
from adaspec.jit import compiled
from adaspec.policy.static import ranking
from adaspec.trace.schema import CONFIDENCES, Request

if TYPE_CHECKING:
    from adaspec.replay.history import History

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
    agrees: NDArray[np.int8]
    """Whether the first drafted token is the candidate's; empty where tokens are not recorded."""
    behind_match: Shorts
    """(positions, draft cap) match behind the first drafted tokens; empty likewise."""
    behind_available: Shorts
    behind_agree: Shorts
    behind_seen: Shorts
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
    behind_start: Ints
    """(positions, draft cap) where the match behind the first drafted tokens lies."""
    answers: Ints
    """The tokens of earlier answers by place; empty where none are looked up."""


@compiled
def copied_token(arrays: RecordedArrays, request: int, start: int, step: int) -> int:
    """The token `step` behind where a match of a request continues."""
    if start >= IN_ANSWERS:
        return arrays.answers[start - IN_ANSWERS + step]
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
    columns: Columns
    matches: Matches
    """The default look-up's full answers, flat over positions."""
    drafted: Ints
    """(positions, draft cap) the recorded drafts; empty where they are not recorded."""
    confidences: NDArray[np.float32]
    """(positions, draft cap, kinds) of `drafted`; empty likewise."""
    behind_start: Ints
    """(positions, draft cap) where the match behind the first drafted tokens lies; likewise."""
    neural_cap: int
    """0 where no neural drafter was recorded."""
    shows_tokens: bool
    shows_confidences: bool
    answers: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    """The tokens of earlier answers by place, which the look-ups know as well; see `History`."""
    _arrays: RecordedArrays | None = field(default=None, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def arrays(self) -> RecordedArrays:
        """What replays read, made when it is first wanted."""
        if self._arrays is None:
            texts = [np.append(r.prompt_tokens, r.output_tokens) for r in self.requests]
            ends = np.cumsum([len(text) for text in texts])
            facts = [getattr(self.matches, each.name) for each in fields(Matches)]
            arrays = RecordedArrays(
                columns=self.columns,
                facts=np.stack(facts),
                text=np.concatenate(texts).astype(np.int32),
                text_start=np.concatenate([[0], ends]).astype(np.int64),
                drafted=self.drafted,
                confidences=self.confidences,
                behind_start=self.behind_start,
                answers=self.answers,
            )
            object.__setattr__(self, "_arrays", arrays)
            return arrays
        return self._arrays

    @property
    def shows_probabilities(self) -> bool:
        """Whether the log-probabilities of drafted tokens were recorded, and not margins alone."""
        logprob = self.confidences[..., CONFIDENCES.index("logprob")]
        return self.shows_confidences and not np.isnan(logprob).all()

    @property
    def knows_answers(self) -> bool:
        """Whether its look-ups know earlier answers."""
        return len(self.answers) > 0

    def members(self, workload: str | None) -> Ints:
        """Indices of a workload's requests, or of all."""
        if workload is None:
            return np.arange(len(self), dtype=np.int32)
        index = self.workloads.index(workload)
        return np.flatnonzero(self.workload == index).astype(np.int32)

    def with_prefill(self) -> Recording:
        """The same recording, in which reading prompts takes time (see `closed_loop`)."""
        return replace(self, columns=self.columns._replace(charges_prompts=True))

    def vllm_lookup(self, min_match: int, max_match: int) -> Lookup:
        """The answers of vLLM's own look-up: the longest allowed match, its earliest occurrence."""
        parts = []
        for request in self.requests:
            start, length = vllm_positions(
                request.prompt_tokens, request.output_tokens, min_match, max_match
            )
            known = len(request.prompt_tokens) + np.arange(len(request.output_tokens))
            parts.append(_lookup(request, start, length, known - start, self.answers[:0]))
        return _joined(parts)


def build_recording(
    requests: Iterable[Request], neural_cap: int, history: History | None = None
) -> Recording:
    """Look up every position of every request once, so that replays need not.

    With a `history`, look-ups also know the answers that had been given by then.
    """
    chosen = tuple(requests)
    if not chosen:
        raise EvaluationError("no requests to replay")
    short = next((r for r in chosen if len(r.output_tokens) < 2), None)
    if short is not None:
        raise EvaluationError(f"request {short.workload}/{short.id} has nothing to decode")
    if neural_cap and not all(request.paired for request in chosen):
        raise EvaluationError("a recording with neural drafts takes paired requests only")
    workloads = tuple(sorted({request.workload for request in chosen}))
    shows_tokens = neural_cap > 0 and all(r.drafted_tokens is not None for r in chosen)
    shows_confidences = shows_tokens and all(r.confidences is not None for r in chosen)
    lengths = np.array([len(r.output_tokens) for r in chosen], dtype=np.int64)
    offset = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    all_matches: list[Matches] = []
    drafts: list[Ints] = []
    shown: list[NDArray[np.float32]] = []
    behinds: list[Matches] = []
    lookups: list[Lookup] = []
    agrees: list[NDArray[np.int8]] = []
    confidence: list[NDArray[np.float32]] = []
    draft_cap = 0
    if shows_tokens:
        draft_cap = min(r.drafted_tokens.shape[1] for r in chosen if r.drafted_tokens is not None)
    text = np.empty(0, np.int32)
    looked_up: list[tuple[Matches, Matches | None] | None] = [None] * len(chosen)
    views = enumerate([None] * len(chosen)) if history is None else history.views(chosen)
    for number, answers in views:
        looked_up[number] = _matches(chosen[number], draft_cap, answers)
        if answers is not None:  # one may know less, but a place means the same in all of them
            text = max(text, answers.stored, key=len)
    for request, found in zip(chosen, looked_up, strict=True):
        assert found is not None
        matches, behind = found
        all_matches.append(matches)
        lookups.append(_lookup(request, matches.start, matches.length, matches.available, text))
        if behind is None or request.drafted_tokens is None:
            continue
        drafted = request.drafted_tokens[:, :draft_cap]
        candidate = _candidates(request, matches, text)
        agrees.append((candidate == drafted[:, 0]).astype(np.int8))
        drafts.append(drafted)
        behinds.append(behind)
        if shows_confidences and request.confidences is not None:
            shown.append(request.confidences[:, :draft_cap])
            confidence.append(ranking(request.confidences[:, :draft_cap]).astype(np.float32))
    lookup = _joined(lookups)
    neural = np.full(int(offset[-1]), -1, dtype=np.int16)
    if neural_cap:
        for begin, request in zip(offset, chosen, strict=False):
            assert request.neural_accepted is not None
            counts = np.minimum(request.neural_accepted, neural_cap)
            neural[begin : begin + len(counts)] = counts
    columns = Columns(
        offset=offset,
        prompt=np.array([len(r.prompt_tokens) for r in chosen], dtype=np.int64),
        length=lengths,
        neural=neural,
        match=lookup.match,
        available=lookup.available,
        run=lookup.run,
        agrees=np.concatenate(agrees) if agrees else np.empty(0, np.int8),
        behind_match=_shorts([each.length for each in behinds]),
        behind_available=_shorts([each.available for each in behinds]),
        behind_agree=_shorts([each.agree for each in behinds]),
        behind_seen=_shorts([each.seen for each in behinds]),
        confidence=_stacked(confidence if shows_confidences else [], np.float32),
        charges_prompts=False,
    )
    cap = min(neural_cap, draft_cap) if shows_tokens else neural_cap
    index = {name: i for i, name in enumerate(workloads)}
    return Recording(
        requests=chosen,
        workloads=workloads,
        workload=np.array([index[r.workload] for r in chosen], dtype=np.int32),
        columns=columns,
        matches=Matches(
            *(
                np.concatenate([getattr(each, field.name) for each in all_matches])
                for field in fields(Matches)
            )
        ),
        drafted=_stacked(drafts, np.int32),
        confidences=(
            np.concatenate(shown) if shown else np.empty((0, 0, len(CONFIDENCES)), np.float32)
        ),
        behind_start=_stacked([each.start for each in behinds], np.int32),
        neural_cap=cap,
        shows_tokens=shows_tokens,
        shows_confidences=shows_confidences,
        answers=text.copy(),
    )


def _matches(
    request: Request, draft_cap: int, answers: AnswerIndex | None
) -> tuple[Matches, Matches | None]:
    """The look-ups at all positions, and behind the drafts of each, if it has any."""
    prompt, output = request.prompt_tokens, request.output_tokens
    matches = match_positions(prompt, output, answers)
    if draft_cap == 0 or request.drafted_tokens is None:
        return matches, None
    drafted = request.drafted_tokens[:, :draft_cap]
    return matches, matches_behind_drafts(prompt, output, drafted, answers)


def _candidates(request: Request, matches: Matches, answers: Ints) -> Ints:
    """The first token that would be copied at each position, -2 where there is none."""
    context = np.concatenate([request.prompt_tokens, request.output_tokens])
    own = (matches.length > 0) & (matches.start < IN_ANSWERS)
    candidate = np.where(own, context[np.where(own, matches.start, 0)], -2)
    there = matches.start >= IN_ANSWERS
    candidate[there] = answers[matches.start[there] - IN_ANSWERS]
    return candidate


def _lookup(request: Request, start: Ints, length: Ints, available: Ints, answers: Ints) -> Lookup:
    prompt = len(request.prompt_tokens)
    context = np.concatenate([request.prompt_tokens, request.output_tokens])
    available = np.where(length > 0, np.minimum(available, LONGEST), 0)
    runs = accepted_runs(context, start, prompt, answers)
    run = np.minimum(runs, available)
    return Lookup(length.astype(np.int16), available.astype(np.int16), run.astype(np.int16))


def _joined(parts: list[Lookup]) -> Lookup:
    return Lookup(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _stacked(parts: Sequence[NDArray[Number]], dtype: type[Number]) -> NDArray[Number]:
    return np.concatenate(parts) if parts else np.empty((0, 0), dtype)


def _shorts(parts: Sequence[Ints]) -> Shorts:
    return np.minimum(_stacked(parts, np.int32), LONGEST).astype(np.int16)

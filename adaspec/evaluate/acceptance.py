"""Accepted tokens of a trace, summed per workload and source, and per position for plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.index import accepted_runs, match_positions
from adaspec.trace.schema import LoggedStep, Request

Counts = NDArray[np.int16]

NGRAM_CAP = 20
"""The cap on n-gram accepted counts; without it one runaway repetition would outweigh the rest."""
SOURCES = ("neural", "ngram")
_LONG_ENOUGH = 64
"""The number of positions that a request needs to be a good example to plot."""


def ngram_accepted(request: Request) -> NDArray[np.int64]:
    """Tokens that the default n-gram look-up would get accepted per position, up to NGRAM_CAP."""
    matches = match_positions(request.prompt_tokens, request.output_tokens)
    context = np.concatenate([request.prompt_tokens, request.output_tokens])
    runs = accepted_runs(
        context.astype(np.int32, copy=False), matches.start, len(request.prompt_tokens)
    )
    return np.minimum(runs, NGRAM_CAP).astype(np.int64)


@dataclass(slots=True)
class SourceAcceptance:
    """Counts of one source's drafts in one workload, and of the tokens accepted from them."""

    source: str
    drafts: int = 0
    """For a dense trace, the positions from 1 on, whether or not the source had a draft there; for
    a logged trace, the drafts."""
    accepted: int = 0
    taken: int = 0
    """Drafts of which at least one token was accepted."""
    censored: int = 0
    """Drafts whose accepted count is as high as it can be, so more might have been accepted."""
    drafted: int | None = None
    """Tokens drafted; None for a dense trace, because its drafts have no length."""

    def add(self, accepted: NDArray[np.int64], reach: int) -> None:
        """Add drafts by their accepted counts, each of which could be `reach` at most."""
        self.drafts += len(accepted)
        self.accepted += int(accepted.sum())
        self.taken += int((accepted > 0).sum())
        self.censored += int((accepted >= reach).sum())

    def document(self) -> dict[str, Any]:
        """The shares as JSON types; each is None if there were no drafts."""

        def share(part: int | None) -> float | None:
            return part / self.drafts if part is not None and self.drafts else None

        return {
            "source": self.source,
            "drafts": self.drafts,
            "accepted_mean": share(self.accepted),
            "accepted_share_at_least_1": share(self.taken),
            "censored_share": share(self.censored),
            "draft_len_mean": share(self.drafted),
        }


@dataclass(slots=True)
class WorkloadAcceptance:
    """The size of a workload, and its acceptance per source."""

    workload: str
    requests: int = 0
    paired: int = 0
    """Requests whose neural counts and output belong to the same run."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    steps: int | None = None
    """Rows of a logged trace; None for a dense trace."""
    sources: dict[str, SourceAcceptance] = field(default_factory=dict)

    def add_request(self, request: Request, neural_cap: int | None) -> None:
        """Add a request of a dense trace, without position 0, where nothing is decided."""
        self.requests += 1
        self.paired += request.paired
        self.prompt_tokens = (self.prompt_tokens or 0) + len(request.prompt_tokens)
        self.output_tokens = (self.output_tokens or 0) + len(request.output_tokens)
        self._source("ngram").add(ngram_accepted(request)[1:], NGRAM_CAP)
        if request.neural_accepted is not None and neural_cap is not None:
            neural = request.neural_accepted[1:].astype(np.int64)
            self._source("neural").add(neural, neural_cap)
        if request.ngram_accepted is not None:
            recorded = request.ngram_accepted[1:].astype(np.int64)
            self._source("recorded ngram").add(recorded, NGRAM_CAP)

    def add_step(self, step: LoggedStep) -> None:
        """Add a step of a logged trace; a step without a draft adds only to `steps`."""
        self.steps = (self.steps or 0) + 1
        if step.draft_len > 0:
            sums = self._source(step.source)
            sums.add(np.array([step.accepted]), step.draft_len)
            sums.drafted = (sums.drafted or 0) + step.draft_len

    def document(self) -> dict[str, Any]:
        """The workload as JSON types."""
        counted = ("workload", "requests", "paired", "prompt_tokens", "output_tokens", "steps")
        return {
            **{name: getattr(self, name) for name in counted},
            "sources": [sums.document() for sums in self.sources.values()],
        }

    def _source(self, name: str) -> SourceAcceptance:
        return self.sources.setdefault(name, SourceAcceptance(name))


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One request's accepted counts per position from 1 on.

    An unknown count is -1; the counts of a source that never ran are None.
    """

    workload: str
    id: str
    neural: Counts | None
    ngram: Counts | None
    paired: bool
    """Whether both sources have counts, and these belong to the same run, position by position."""

    def known(self, source: str) -> Counts:
        """The counts of one of `SOURCES`, at the positions where the count is known."""
        counts = getattr(self, source)
        return np.empty(0, np.int16) if counts is None else counts[counts >= 0]

    def differences(self) -> Counts:
        """n-gram - neural at each position where both are known; empty for an unpaired request."""
        if not self.paired or self.neural is None or self.ngram is None:
            return np.empty(0, dtype=np.int16)
        both = (self.neural >= 0) & (self.ngram >= 0)
        return (self.ngram - self.neural)[both]


def acceptance(
    requests: Iterable[Request], ngram_of: Callable[[Request], NDArray[Any]] = ngram_accepted
) -> list[Acceptance]:
    """The accepted counts of each request; `ngram_of` computes those of n-gram."""
    acceptances = []
    for request in requests:
        neural, ngram = _counts(request.neural_accepted), _counts(ngram_of(request))
        same_length = neural is not None and ngram is not None and len(neural) == len(ngram)
        acceptances.append(
            Acceptance(request.workload, request.id, neural, ngram, request.paired and same_length)
        )
    return acceptances


def pooled(requests: Sequence[Acceptance], workload: str, source: str) -> Counts:
    """All known counts of `source` in `workload`."""
    parts = [each.known(source) for each in requests if each.workload == workload]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int16)


def survival(counts: Counts, longest: int) -> NDArray[np.float64]:
    """P(accepted >= j) for j in 0..longest."""
    histogram = np.bincount(np.minimum(counts, longest), minlength=longest + 1)
    return histogram[::-1].cumsum()[::-1] / max(len(counts), 1)


def examples(requests: Sequence[Acceptance], workload: str, count: int) -> list[Acceptance]:
    """`count` requests of a workload, spread evenly over the mean n-gram accepted count.

    Paired requests of 64 positions or more are preferred, so that both sources have something to
    show. The choice depends only on the data.
    """

    def length(each: Acceptance) -> int:
        return max((len(c) for c in (each.neural, each.ngram) if c is not None), default=0)

    def rank(each: Acceptance) -> tuple[float, str]:
        counts = each.known("ngram")
        return float(counts.mean()) if len(counts) else 0.0, each.id

    candidates = [each for each in requests if each.workload == workload and length(each)]
    paired = [each for each in candidates if each.paired]
    ranked = sorted(
        [each for each in paired if length(each) >= _LONG_ENOUGH] or paired or candidates, key=rank
    )
    if len(ranked) <= count:
        return ranked
    return [ranked[round((i + 0.5) / count * len(ranked) - 0.5)] for i in range(count)]


def _counts(given: NDArray[Any] | None) -> Counts | None:
    """Counts from position 1 on."""
    if given is None or len(given) < 2:
        return None
    return np.clip(given[1:], -1, 32767).astype(np.int16)

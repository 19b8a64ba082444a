"""Accepted tokens of traces, summed per workload and source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.positions import accepted_runs, match_positions
from adaspec.trace.schema import LoggedStep, Request

NGRAM_CAP = 20
"""The cap on n-gram accepted counts; without it one runaway repetition would outweigh the rest."""


def ngram_accepted(request: Request) -> NDArray[np.int64]:
    """Tokens that the default n-gram look-up would get accepted per position, up to NGRAM_CAP."""
    matches = match_positions(request.prompt_tokens, request.output_tokens)
    context = np.concatenate([request.prompt_tokens, request.output_tokens])
    context = context.astype(np.int32, copy=False)
    runs = accepted_runs(context, matches.start, len(request.prompt_tokens), context[:0])
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

"""Acceptance per workload and source, summed over a stream of a trace's rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.draft import accepted_runs, match_positions
from adaspec.trace.schema import LoggedStep, Request

NGRAM_CAP = 20
"""n-gram accepted counts are cut here: without it one runaway repetition outweighs all else."""


@dataclass(slots=True)
class SourceAcceptance:
    """What became of one source's drafts in one workload."""

    source: str
    drafts: int = 0
    """Positions of a dense trace from 1 on, whether or not the source had a draft; drafts of a
    logged one."""
    accepted: int = 0
    taken: int = 0
    """Of the drafts, those of which at least one token was accepted."""
    censored: int = 0
    """Of the drafts, those accepted as far as the count reaches."""
    drafted: int | None = None
    """Tokens drafted; None for a dense trace, whose drafts are as long as one likes."""

    def add(self, accepted: NDArray[np.int64], reach: NDArray[np.int64] | int) -> None:
        """Count accepted counts that could have reached `reach`."""
        self.drafts += len(accepted)
        self.accepted += int(accepted.sum())
        self.taken += int((accepted > 0).sum())
        self.censored += int((accepted >= reach).sum())

    def document(self) -> dict[str, Any]:
        """The shares that a reader wants, as JSON's own types; None where there were no drafts."""

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
    """How large a workload is, and its acceptance per source."""

    workload: str
    requests: int = 0
    paired: int = 0
    """Requests whose neural counts and output belong to the same run."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    steps: int | None = None
    """Rows of a logged trace; None for a dense one."""
    sources: dict[str, SourceAcceptance] = field(default_factory=dict)

    def source(self, name: str) -> SourceAcceptance:
        """The running sums of a source, begun if need be."""
        return self.sources.setdefault(name, SourceAcceptance(name))

    def add_request(self, request: Request, neural_cap: int | None) -> None:
        """Count a request of a dense trace; position 0 decides nothing and is left out."""
        self.requests += 1
        self.paired += request.paired
        self.prompt_tokens = (self.prompt_tokens or 0) + len(request.prompt_tokens)
        self.output_tokens = (self.output_tokens or 0) + len(request.output_tokens)
        self._add("ngram", ngram_accepted(request)[1:], NGRAM_CAP)
        if request.neural_accepted is not None and neural_cap is not None:
            self._add("neural", request.neural_accepted[1:], neural_cap)
        if request.ngram_accepted is not None:
            self._add("recorded ngram", request.ngram_accepted[1:], NGRAM_CAP)

    def add_step(self, step: LoggedStep) -> None:
        """Count a step of a logged trace; one without a draft is a step and nothing else."""
        self.steps = (self.steps or 0) + 1
        if step.draft_len == 0:
            return
        sums = self.source(step.source)
        sums.add(np.array([step.accepted]), step.draft_len)
        sums.drafted = (sums.drafted or 0) + step.draft_len

    def document(self) -> dict[str, Any]:
        """The workload in JSON's own types."""
        return {
            "workload": self.workload,
            "requests": self.requests,
            "paired": self.paired,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "steps": self.steps,
            "sources": [sums.document() for sums in self.sources.values()],
        }

    def _add(self, source: str, accepted: NDArray[Any], reach: int) -> None:
        self.source(source).add(accepted.astype(np.int64), reach)


def ngram_accepted(request: Request) -> NDArray[np.int64]:
    """What the default look-up would have got accepted at each position, cut at NGRAM_CAP."""
    matches = match_positions(request.prompt_tokens, request.output_tokens)
    context = np.concatenate([request.prompt_tokens, request.output_tokens])
    runs = accepted_runs(
        context.astype(np.int32, copy=False), matches.start, len(request.prompt_tokens)
    )
    return np.minimum(runs, NGRAM_CAP).astype(np.int64)

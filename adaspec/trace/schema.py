"""What a trace is made of: one request's arrays (dense) and one request's step (logged)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCES = ("logprob", "margin", "entropy")
"""Order of the last axis of `Request.confidences`: top-1 log-probability, top-2 margin, entropy."""

SOURCES = ("none", "ngram", "neural", "splice", "unknown")
"""The drafters of a logged step; `unknown` where the engine did not say."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a dense trace; arrays are indexed by position, entry 0 is null (-1 or NaN).

    Neural columns are None where no neural drafter ran. `neural_accepted` is stored as recorded;
    if it is not as long as the output, the request is not `paired`.
    """

    workload: str
    id: str
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    neural_accepted: NDArray[np.int16] | None = None
    drafted_tokens: NDArray[np.int32] | None = None
    """(positions, draft cap) tokens the neural drafter proposed at each position, -1 where none."""
    confidences: NDArray[np.float32] | None = None
    """(positions, draft cap, len(CONFIDENCES)), NaN where unknown."""
    ngram_accepted: NDArray[np.int16] | None = None
    """Accepted counts of the recording engine's n-gram look-up, which is not adaspec's.

    They may exceed the output's end, as an engine drafts on after the last token.
    """

    @property
    def paired(self) -> bool:
        """True if neural counts and output tokens are of the same run, position by position."""
        return self.neural_accepted is not None and len(self.neural_accepted) == len(
            self.output_tokens
        )


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One engine step of one request under a live policy; None where the engine did not say.

    `accepted` is censored at `draft_len`. Steps of a request are in order; steps without a draft
    may be missing where the engine does not report them, and `position` is then None.
    """

    workload: str
    id: str
    step: int
    """Number of this recorded step of the request, from 0."""
    draft_len: int
    accepted: int
    source: str = "unknown"
    position: int | None = None
    context_tokens: int | None = None
    running: int | None = None
    """Requests in the engine's batch at this step."""
    neural_len: int | None = None
    ngram_len: int | None = None
    output_len: int | None = None
    """Output tokens of the whole request."""
    propensity: float | None = None
    """Probability with which the live policy chose this plan."""
    step_s: float | None = None
    drafted_tokens: NDArray[np.int32] | None = None
    prompt_tokens: NDArray[np.int32] | None = None
    """The request's text, given at its first recorded step only: both arrays or neither. n-gram
    outcomes and all features follow from it."""
    output_tokens: NDArray[np.int32] | None = None

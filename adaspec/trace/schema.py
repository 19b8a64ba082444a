"""What a trace is made of: the manifest's fields and one request's arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCES = ("logprob", "margin", "entropy")
"""Order of the last axis of `Request.confidences`: top-1 log-probability, top-2 margin, entropy."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a dense trace; arrays are indexed by position, entry 0 is null (-1 or NaN).

    Neural columns are None where no neural drafter ran. `neural_accepted` is stored as recorded
    and may have another length than the output: the request is then not `paired`.
    """

    workload: str
    id: str
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    neural_accepted: NDArray[np.int16] | None = None
    drafted_tokens: NDArray[np.int32] | None = None
    """(output, draft cap) tokens the neural drafter proposed at each position, -1 where none."""
    confidences: NDArray[np.float32] | None = None
    """(output, draft cap, len(CONFIDENCES)), NaN where unknown."""
    ngram_accepted: NDArray[np.int16] | None = None
    """Accepted counts of whatever n-gram look-up the recording engine ran; not ours."""

    @property
    def paired(self) -> bool:
        """Whether neural counts and output tokens belong to the same run, position by position."""
        return self.neural_accepted is not None and len(self.neural_accepted) == len(
            self.output_tokens
        )

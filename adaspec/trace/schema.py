"""The rows of traces: requests, with their arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import TraceError

CONFIDENCES = ("logprob", "margin", "entropy")
"""Order of the last axis of `Request.confidences`: top-1 log-probability, top-2 margin, entropy."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace; arrays are indexed by position, and entry 0 is -1 or NaN.

    Neural columns are None if no neural drafter ran.
    """

    workload: str
    id: str
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    neural_accepted: NDArray[np.int16] | None = None
    drafted_tokens: NDArray[np.int32] | None = None
    """Tokens that the neural drafter proposed, as (positions, draft cap), padded with -1."""
    confidences: NDArray[np.float32] | None = None
    """Confidences, as (positions, draft cap, len(CONFIDENCES)), NaN where unknown."""
    ngram_accepted: NDArray[np.int16] | None = None
    """Accepted counts of the recording engine's own look-up, even beyond the output's end."""
    max_tokens: int | None = None
    """The most output tokens that the request was allowed; None if that is not known."""

    @property
    def paired(self) -> bool:
        """True if neural counts and output tokens are of equal length, so from the same run."""
        counts = self.neural_accepted
        return counts is not None and len(counts) == len(self.output_tokens)

    @property
    def is_cut_off(self) -> bool:
        """True if its limit ended the output: the model might have gone on."""
        return self.max_tokens is not None and len(self.output_tokens) >= self.max_tokens

    @property
    def nbytes(self) -> int:
        """Size of its arrays in memory."""
        return sum(array.nbytes for name in ARRAYS if (array := getattr(self, name)) is not None)


ARRAYS: dict[str, type[np.number[Any]]] = {
    "prompt_tokens": np.int32,
    "output_tokens": np.int32,
    "neural_accepted": np.int16,
    "drafted_tokens": np.int32,
    "ngram_accepted": np.int16,
    "confidences": np.float32,
}
"""The arrays of a request and their numbers."""


def as_array(values: Any, kind: type[np.number[Any]], what: str) -> NDArray[Any]:
    """Numbers, such as a list of them, as an array of a kind.

    A first entry that is null becomes -1, and a null among floats NaN.
    """
    if isinstance(values, list) and values[:1] == [None]:
        values = [-1, *values[1:]]
    try:
        array = np.asarray(values if np.size(values) else np.empty(np.shape(values), kind))
        with np.errstate(invalid="ignore"):  # what does not fit is refused below
            cast = array.astype(kind, copy=False)
        if kind != np.float32 and not np.array_equal(cast, array):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise TraceError(f"{what} is no array of {kind.__name__}: {values!r:.60}") from None
    return cast

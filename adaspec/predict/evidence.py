"""What a drafted neural token says: its confidences, and whether it is the n-gram candidate's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled

Floats = NDArray[np.float32]

EVIDENCE = (
    "depth",
    "expected",
    "logprob",
    "margin",
    "entropy",
    "agrees",
    "agreed_tokens",
    "match_length",
    "ngram_expected",
    "survival_so_far",
    "least_logprob",
    "least_margin",
)
"""Features of the token drafted at a depth, in order; `expected` is what was thought before."""


@compiled
def observe_evidence(
    depth: int,
    expected: float,
    confidence: Floats,
    agreed: int,
    match_length: float,
    ngram_expected: float,
    survival: float,
    least: Floats,
    out: Floats,
) -> None:
    """Fill one row of features; `agreed` leading drafted tokens are the candidate's.

    `least` holds the least log-probability and margin of the earlier tokens, NaN at the first.
    """
    out[0] = depth
    out[1] = expected
    out[2] = confidence[0]
    out[3] = confidence[1]
    out[4] = confidence[2]
    out[5] = agreed >= depth if match_length > 0 else np.nan
    out[6] = agreed if match_length > 0 else np.nan
    out[7] = match_length
    out[8] = ngram_expected
    out[9] = survival
    out[10] = least[0]
    out[11] = least[1]

"""The features of a drafted neural token: its confidences, and its agreement with n-gram."""

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
    "behind_length",
    "behind_agree",
    "behind_seen",
)
"""The features of the token drafted at a depth, in order.

expected: P(the token is accepted, given those before it), as predicted before it was seen;
logprob, margin, entropy: its confidences; agrees: whether it and all before it are the n-gram
candidate's; agreed_tokens: how many in a row from the first are (both NaN without a match);
ngram_expected: P(the candidate's first token is right), as predicted before drafting;
survival_so_far: P(all before it are accepted); least_*: the least log-probability and margin of
those before it, NaN at the first; behind_*: the match behind this token, which is as long as the
context's match and the draft together if all of it was seen before.
"""

EXPECTED = EVIDENCE.index("expected")


@compiled
def fill_evidence(
    depth: int,
    expected: float,
    confidence: Floats,
    agreed: int,
    match_length: float,
    ngram_expected: float,
    survival: float,
    least: Floats,
    behind_length: int,
    behind_agree: int,
    behind_seen: int,
    out: Floats,
) -> None:
    """Fill one row of features; the first `agreed` drafted tokens are the candidate's.

    `least` has the least log-probability and margin of the earlier tokens, NaN at the first.
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
    out[12] = behind_length
    out[13] = behind_agree if behind_length > 0 else np.nan
    out[14] = behind_seen if behind_length > 0 else np.nan


def probe_evidence() -> NDArray[np.float64]:
    """The features of a few made-up tokens, for the fingerprint."""
    rng = np.random.Generator(np.random.PCG64(6))
    out = np.empty((12, len(EVIDENCE)), np.float32)
    for row in range(12):
        depth, match_length = 1 + row % 4, 3 * (row % 3)
        least = np.full(2, np.nan, np.float32) if depth == 1 else _made_up(rng, 2)
        fill_evidence(
            depth,
            rng.random(),
            _made_up(rng, 3),
            int(rng.integers(0, depth + 1)),
            float(match_length),
            rng.random(),
            rng.random(),
            least,
            int(rng.integers(0, 3)),
            int(rng.integers(1, 9)),
            int(rng.integers(1, 9)),
            out[row],
        )
    return out.astype(np.float64)


def _made_up(rng: np.random.Generator, count: int) -> Floats:
    return -rng.random(count).astype(np.float32)

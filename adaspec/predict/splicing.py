"""What is known of a splice: the match behind drafted neural tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.jit import compiled

Floats = NDArray[np.float32]

SPLICE = (
    "behind_length",
    "behind_agree",
    "behind_seen",
    "behind_available",
    "behind_tokens",
    "neural_survival",
    "match_length",
    "ngram_hit_rate",
)
"""Features of a splice, in order. Nothing that depends on where the match lies: traces without
drafted tokens cannot say it without naming tokens to come."""


@compiled
def observe_splice(
    length: int,
    agree: int,
    seen: int,
    available: int,
    tokens: int,
    survival: float,
    match_length: float,
    hit_rate: float,
    out: Floats,
) -> None:
    """Fill one row of features."""
    out[0] = length
    out[1] = agree
    out[2] = seen
    out[3] = min(available, 32)
    out[4] = tokens
    out[5] = survival
    out[6] = match_length
    out[7] = hit_rate


def probe_splice() -> NDArray[np.float64]:
    """Features of a few made-up splices, for the fingerprint."""
    rng = np.random.Generator(np.random.PCG64(7))
    out = np.empty((8, len(SPLICE)), np.float32)
    for row in range(8):
        whole = [int(number) for number in rng.integers(1, 90, 5)]
        observe_splice(
            whole[0],
            whole[1],
            whole[2],
            whole[3],
            whole[4],
            rng.random(),
            float(rng.integers(0, 9)),
            rng.random(),
            out[row],
        )
    return out.astype(np.float64)

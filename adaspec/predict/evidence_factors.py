"""How much P(a token is accepted) may change once the token is drafted.

Before a token is drafted, P(it is accepted) is one number. Once the token is seen, it is one of
many numbers, whose mean is the first. A drafter's forward is worth more than its mean yield,
because a draft that turns out to be poor can be dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError
from adaspec.jit import compiled

Array = NDArray[np.float64]

STORED_AS = "outlook"
"""The name of the group of arrays in `networks.npz`."""
POINTS = 5
"""The number of equally likely factors per bin."""
BINS = 8


class EvidenceFactors(NamedTuple):
    """The factors by which seeing a drafted token multiplies P(it is accepted), by bin of P."""

    edges: Array
    """The bins' edges, ascending; bin b has probabilities from edges[b - 1] on."""
    factors: Array
    """(bins, POINTS) equally likely factors, ascending; their mean is about 1."""


@compiled
def factor_bin(belief: float, factors: EvidenceFactors) -> int:
    """The bin of a probability."""
    index = 0
    while index < factors.edges.shape[0] and belief >= factors.edges[index]:
        index += 1
    return index


def no_factors() -> EvidenceFactors:
    """The factors of evidence that changes nothing."""
    return EvidenceFactors(np.empty(0), np.ones((1, POINTS)))


def fit_factors(before: Array, after: Array) -> EvidenceFactors:
    """Fit factors, in equal-count bins, to probabilities `before` and `after` a token was seen."""
    known = before > 0
    before, after = before[known], after[known]
    if len(before) < BINS * POINTS:
        return no_factors()
    edges = np.unique(np.quantile(before, np.arange(1, BINS) / BINS))
    bins = np.searchsorted(edges, before, side="right")
    factors = np.ones((len(edges) + 1, POINTS))
    for b in range(len(factors)):
        inside = bins == b
        if inside.sum() >= POINTS:
            parts = np.array_split(np.sort(after[inside]), POINTS)
            factors[b] = [float(part.mean()) / float(before[inside].mean()) for part in parts]
    return EvidenceFactors(edges, factors)


def factor_arrays(factors: EvidenceFactors) -> dict[str, NDArray[Any]]:
    """The arrays that `factors_from` reads."""
    return {f"{STORED_AS}.edges": factors.edges, f"{STORED_AS}.factors": factors.factors}


def factors_from(arrays: Mapping[str, NDArray[Any]]) -> EvidenceFactors:
    """The factors in `factor_arrays`; unsound arrays raise a `PolicyError`."""
    edges, factors = arrays[f"{STORED_AS}.edges"], arrays[f"{STORED_AS}.factors"]
    if (
        edges.dtype != np.float64
        or factors.dtype != np.float64
        or edges.ndim != 1
        or factors.shape != (len(edges) + 1, POINTS)
    ):
        raise PolicyError("the outlook of evidence has odd shapes or types")
    sound = np.isfinite(edges).all() and (np.diff(edges) > 0).all()
    if not sound or not np.isfinite(factors).all() or (factors < 0).any():
        raise PolicyError("the outlook of evidence is not finite, ascending or positive")
    return EvidenceFactors(np.ascontiguousarray(edges), np.ascontiguousarray(factors))

"""How far evidence may move a belief: what is worth knowing before it is known.

Before a token is drafted, P(it is accepted) is one number; once it is seen, it is one of many
whose mean that number is. A drafter's forward is worth more than what it yields on the whole,
because its draft may be dropped where it turns out to be poor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import PolicyError
from adaspec.jit import compiled

Array = NDArray[np.float64]

POINTS = 5
"""Equally likely outcomes by which a belief's outlook is told."""
BINS = 8


class EvidenceFactors(NamedTuple):
    """By how much seeing a drafted token multiplies P(it is accepted), by bin of that belief."""

    edges: Array
    """Ascending; bin b holds beliefs from edges[b - 1] on."""
    factors: Array
    """(bins, POINTS) equally likely factors, ascending; their mean is about 1."""


@compiled
def factor_bin(belief: float, factors: EvidenceFactors) -> int:
    """The bin of a belief."""
    at = 0
    while at < factors.edges.shape[0] and belief >= factors.edges[at]:
        at += 1
    return at


def no_factors() -> EvidenceFactors:
    """Evidence that moves nothing."""
    return EvidenceFactors(np.empty(0), np.ones((1, POINTS)))


def fit_factors(before: Array, after: Array) -> EvidenceFactors:
    """How beliefs `before` a token was seen became those `after`, by equal-count bins."""
    known = before > 0
    before, after = before[known], after[known]
    if len(before) < BINS * POINTS:
        return no_factors()
    edges = np.unique(np.quantile(before, np.arange(1, BINS) / BINS))
    at = np.searchsorted(edges, before, side="right")
    factors = np.ones((len(edges) + 1, POINTS))
    for b in range(len(factors)):
        inside = at == b
        if inside.sum() >= POINTS:
            parts = np.array_split(np.sort(after[inside]), POINTS)
            factors[b] = [float(part.mean()) / float(before[inside].mean()) for part in parts]
    return EvidenceFactors(edges, factors)


def factor_arrays(outlook: EvidenceFactors) -> dict[str, NDArray[Any]]:
    """What `factors_from` reads."""
    return {"outlook.edges": outlook.edges, "outlook.factors": outlook.factors}


def factors_from(arrays: Mapping[str, NDArray[Any]]) -> EvidenceFactors:
    """The outlook that `factor_arrays` gave; anything unsound is refused."""
    edges, factors = arrays["outlook.edges"], arrays["outlook.factors"]
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

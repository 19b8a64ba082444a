"""The expected speedup of speculative decoding in the model of one acceptance rate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass


def expected_speedup(alpha: float, c: float, k: int) -> float:
    """(1 - alpha^(k+1)) / ((1 - alpha) (ck + 1)): tokens per target forward over their time.

    Each of `k` drafted tokens is accepted with probability `alpha` if those before it were, a
    forward of the drafter takes `c` times a forward of the target, and verifying takes one forward
    of the target however long the draft is.
    """
    # Summed term by term, because the closed form divides by zero at alpha = 1.
    emitted = sum(alpha**accepted for accepted in range(k + 1))
    return emitted / (c * k + 1)


@dataclass(frozen=True, slots=True)
class Speedup:
    """The expected speedup at one point of a sweep."""

    alpha: float
    c: float
    k: int
    speedup: float
    best: bool
    """Whether no other k of the sweep is faster at this alpha and c; the shortest, on ties."""


def sweep(alphas: Iterable[float], cs: Iterable[float], ks: Iterable[int]) -> list[Speedup]:
    """The expected speedup at each c, alpha and k, and at k = 0, which is no speculation."""
    lengths = sorted({0, *ks})
    points = []
    for c, alpha in itertools.product(cs, alphas):
        speedups = [expected_speedup(alpha, c, k) for k in lengths]
        best = speedups.index(max(speedups))
        points += [Speedup(alpha, c, k, speedups[at], at == best) for at, k in enumerate(lengths)]
    return points

"""Small things that several kernels do."""

from __future__ import annotations

import triton
import triton.language as tl

from adaspec.kernels.layout import FEATURE_LANES, MATCH_FACTS


@triton.jit
def lane(vector: tl.tensor, at: tl.tensor, lanes: tl.constexpr) -> tl.tensor:
    """The vector's number in a lane."""
    return tl.sum(tl.where(tl.arange(0, lanes) == at, vector, 0.0), 0)


@triton.jit
def side_by_side(features: tl.tuple, others: tl.tensor) -> tl.tensor:
    """(FEATURE_LANES,) float32: the features in order, and behind them the lanes of others."""
    x, lanes = others.to(tl.float32), tl.arange(0, FEATURE_LANES)
    for at in tl.static_range(len(features)):
        x = tl.where(lanes == at, features[at].to(tl.float32), x)
    return x


@triton.jit
def noted(facts: tl.tensor, match: tl.tuple) -> None:
    """Store a match, fact by fact."""
    for at in tl.static_range(MATCH_FACTS):
        tl.store(facts + at, match[at])


@triton.jit
def match_at(facts: tl.tensor) -> tl.tuple:
    """The match that `noted` stored."""
    length, start, votes = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2)
    return length, start, votes, tl.load(facts + 3), tl.load(facts + 4), tl.load(facts + 5)


@triton.jit
def shifted(number: tl.tensor, bits: tl.constexpr) -> tl.tensor:
    """A shift to the right that fills in zeros."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)

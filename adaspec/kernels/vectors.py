"""Small things that several kernels do."""

from __future__ import annotations

import triton
import triton.language as tl

from adaspec.kernels.layout import (
    AVAILABLE,
    FEATURE_LANES,
    FOLLOWER,
    LENGTH,
    OCCURRENCES,
    START,
    VOTES,
)


@triton.jit
def lane(vector: tl.tensor, at: tl.tensor, lanes: tl.constexpr) -> tl.tensor:
    """The vector's number in a lane."""
    return tl.sum(tl.where(tl.arange(0, lanes) == at, vector, 0.0), 0)


@triton.jit
def placed(vector: tl.tensor, at: tl.tensor, value: tl.tensor) -> tl.tensor:
    """The features with a number in a lane."""
    return tl.where(tl.arange(0, FEATURE_LANES) == at, value.to(tl.float32), vector)


@triton.jit
def exact(value: tl.constexpr) -> tl.tensor:
    """The number in double precision, which a product with a literal may lack."""
    return tl.full((), value, tl.float64)


@triton.jit
def noted(
    fields: tl.tensor,
    length: tl.tensor,
    start: tl.tensor,
    votes: tl.tensor,
    occurrences: tl.tensor,
    available: tl.tensor,
    follower: tl.tensor,
) -> None:
    """Store a match by its fields."""
    tl.store(fields + LENGTH, length)
    tl.store(fields + START, start)
    tl.store(fields + VOTES, votes)
    tl.store(fields + OCCURRENCES, occurrences)
    tl.store(fields + AVAILABLE, available)
    tl.store(fields + FOLLOWER, follower)


@triton.jit
def shifted(number: tl.tensor, bits: tl.constexpr) -> tl.tensor:
    """A shift to the right that fills in zeros."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)

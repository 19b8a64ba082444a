"""The survival curves of `policy.choice`, a row per program.

A curve is a vector with a lane per number of tokens, 0 behind its longest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from adaspec.kernels.layout import (
    FEATURE_LANES,
    HEAD_LANES,
    LENGTH,
    LEVEL_LANES,
    MATCH,
    POSITION,
    SPLICE_LANES,
)
from adaspec.kernels.network import predict
from adaspec.kernels.tables import AFTER_LAST, FIRST, values_of
from adaspec.kernels.twins import device
from adaspec.kernels.vectors import lane, side_by_side
from adaspec.predict import model, prediction
from adaspec.predict.survival import BinnedCurves

SPLICE_FIRST, SPLICE_MORE = tl.constexpr(model.SPLICE_FIRST), tl.constexpr(model.SPLICE_MORE)
NGRAM_EXPONENT = tl.constexpr(prediction.NGRAM_EXPONENT)


class CurveBuffers(NamedTuple):
    """The shapes of survival curves as kernels read them."""

    edges: Tensor
    """(edges,) float64, padded by NaN to a power of two."""
    shapes: Tensor
    """(bins, lanes) float64."""
    count: tl.constexpr
    """The edges, padded."""

    @classmethod
    def of(
        cls, curves: BinnedCurves, longest: int, lanes: int, device: torch.device
    ) -> CurveBuffers:
        """The curves up to a longest length, on a device."""
        count = len(curves.edges)
        edges = np.full(triton.next_power_of_2(max(count, 1)), np.nan)
        edges[:count] = curves.edges
        shapes = np.zeros((len(curves.shapes), lanes))
        shapes[:, : longest + 1] = curves.up_to(longest)
        return cls(
            torch.from_numpy(edges).to(device),
            torch.from_numpy(shapes).to(device),
            tl.constexpr(len(edges)),
        )


@device("predict.survival.survivals")
def survival(
    curves: tl.tuple, first: tl.tensor, score: tl.tensor, count: tl.constexpr
) -> tl.tensor:
    """P(accepted >= j) by that of the first token, and the score that chooses a shape."""
    edge = tl.load(curves.edges + tl.arange(0, curves.count))
    group = tl.sum((edge <= score).to(tl.int32), 0)
    lanes = tl.arange(0, count)
    shape = tl.load(curves.shapes + group * count + lanes)
    return tl.where(lanes == 0, shape, first * shape)


@device("predict.prediction.copy_chance")
def copy_chance(predicted: tl.tensor) -> tl.tensor:
    """P(a copy's first token is right): certain predictions are too hopeful."""
    return tl.where(predicted > 0, tl.exp(tl.log(predicted) * NGRAM_EXPONENT), 0.0)


@device("policy.choice.correct")
def correct(curve: tl.tensor, factor: tl.tensor, lanes: tl.constexpr) -> tl.tensor:
    """The curve scaled by its source's factor, but no further than to certainty."""
    return tl.where(tl.arange(0, lanes) > 0, curve * _scale(lane(curve, 1, lanes), factor), curve)


@triton.jit
def correct_splices(splice: tl.tensor, factor: tl.tensor) -> tl.tensor:
    """The curves of splices by depth, each scaled as `correct` scales one."""
    copies = tl.arange(0, SPLICE_LANES)[None, :]
    first = tl.sum(tl.where(copies == 1, splice, 0.0), 1)
    return tl.where(copies > 0, splice * _scale(first, factor)[:, None], splice)


@triton.jit
def _scale(first: tl.tensor, factor: tl.tensor) -> tl.tensor:
    return tl.where(factor * first > 1.0, 1.0 / tl.where(first > 0, first, 1.0), factor)


@triton.jit
def in_proportion(curve: tl.tensor, after: tl.tensor, before: tl.tensor) -> tl.tensor:
    """The curve scaled by after / before; 0 where `before` is 0."""
    return tl.where(before > 0, curve * (after / tl.where(before > 0, before, 1.0)), 0.0)


@device("predict.features.splice_features")
def predict_splice(
    model: tl.tuple,
    facts: tl.tensor,
    holds: tl.tensor,
    splice_match: tl.tuple,
    depth: tl.tensor,
    reached: tl.tensor,
    before: tl.tensor,
    copied: tl.tensor,
    cap: tl.tensor,
) -> tl.tensor:
    """The curve of a splice behind `depth` neural tokens, of which `before` is the last.

    `splice_match` is the match there, and `copied` the first token it would copy, -1 where it is
    not known.
    """
    length, _, votes, occurrences, available, _ = splice_match
    none = tl.full((), -1, tl.int64)
    mean, count, _ = values_of(model.tables, before, none, none, copied, none)
    known = copied >= 0
    unknown = float("nan")
    features = (
        length,
        votes,
        occurrences,
        tl.minimum(available, 32),
        depth,
        reached,
        tl.load(facts + MATCH + LENGTH),
        tl.load(facts + POSITION),
        tl.where(known, lane(mean, FIRST, LEVEL_LANES), unknown),
        tl.where(known, lane(mean, AFTER_LAST, LEVEL_LANES), unknown),
        tl.where(known, lane(count, AFTER_LAST, LEVEL_LANES), unknown),
    )
    nothing = tl.zeros((FEATURE_LANES,), tl.float32)
    predicted = predict(model.splice, side_by_side(features, nothing))
    first = lane(predicted, SPLICE_FIRST, HEAD_LANES)
    score = lane(predicted, SPLICE_MORE, HEAD_LANES)
    curve = survival(model.spliced, first, score, SPLICE_LANES)
    may_splice = holds & (depth > 0) & (length > 0)
    room = tl.where(may_splice, tl.minimum(available, cap - depth), 0)
    return tl.where(tl.arange(0, SPLICE_LANES) <= room, curve, 0.0)


@device("policy.choice.weigh_splices")
def weigh_splices(splice: tl.tensor, neural: tl.tensor, price: tl.tensor) -> tl.tuple:
    """By depth, the best length of a splice there, and what it is worth."""
    reached = neural[:, None]
    copies = tl.arange(0, SPLICE_LANES)[None, :]
    ends = (copies > 0) & ((splice <= 0) | (reached * splice < price))
    count = tl.min(tl.where(ends, copies, SPLICE_LANES), 1) - 1
    taken = (copies > 0) & (copies <= count[:, None])
    return count, tl.sum(tl.where(taken, reached * splice - price, 0.0), 1)

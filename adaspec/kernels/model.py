"""A model on a device, a row per program: networks, token tables, and the survival curves of both.

Networks are computed in float64, as a float32 product may be rounded to TF32, which has three
digits. Token tables are searched for all levels and slots at once. A curve is a vector with a lane
per number of tokens, 0 behind its longest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from adaspec.kernels.layout import (
    FEATURE_LANES,
    HEAD_LANES,
    LENGTH,
    LEVEL_LANES,
    MATCH,
    POSITION,
    SPLICE_LANES,
    device,
    lane,
    shifted,
    side_by_side,
)
from adaspec.predict import model as host
from adaspec.predict import tables as token_tables
from adaspec.predict.network import INTERVALS, PROBABILITY, BinnedCurves, Network
from adaspec.predict.tables import Tables

_INTERVALS = tl.constexpr(INTERVALS)
_HIGHEST = tl.constexpr(15.8)
"""Beyond it the host's logistic function is constant."""
_COLUMN, _FLAG = tl.constexpr(1), tl.constexpr(2)
"""What an input is: how far a feature has risen, or whether it is missing; 0 where it pads."""
_TILE = tl.constexpr(4096)
"""The weights that a program multiplies at once."""


class NetworkBuffers(NamedTuple):
    """A network as kernels read it: two arrays, padded by inputs and units that do nothing."""

    floats: Tensor
    """float32: lows, slopes, shifts and scales per input, then each layer's weights and biases."""
    ints: Tensor
    """int32: each input's feature, what it is of it, and whether each head is a probability."""
    inputs: tl.constexpr
    width: tl.constexpr

    @classmethod
    def of(cls, network: Network, device: torch.device) -> NetworkBuffers:
        """The network on a device."""
        columns, flags = len(network.source), len(network.flagged)
        heads = HEAD_LANES.value
        inputs = max(32, -(-(columns + flags) // 32) * 32)
        width = max(16, triton.next_power_of_2(network.bias_1.shape[0]))

        def padded(array: NDArray[Any], *shape: int) -> NDArray[np.float32]:
            given = np.zeros(shape, np.float32)
            given[tuple(slice(size) for size in array.shape)] = array
            return given

        parts = (
            padded(network.low, INTERVALS, inputs),
            padded(network.slope, INTERVALS, inputs),
            padded(network.shift, inputs),
            padded(network.scale, inputs),
            padded(network.weight_1, inputs, width),
            padded(network.bias_1, width),
            padded(network.weight_2, width, width),
            padded(network.bias_2, width),
            padded(network.weight_3, width, heads),
            padded(network.bias_3, heads),
        )
        ints = np.zeros(2 * inputs + heads, np.int32)
        ints[: columns + flags] = np.concatenate((network.source, network.flagged))
        ints[inputs : inputs + columns] = _COLUMN.value
        ints[inputs + columns : inputs + columns + flags] = _FLAG.value
        ints[2 * inputs : 2 * inputs + len(network.link)] = network.link == PROBABILITY
        floats = np.concatenate([each.ravel() for each in parts])
        return cls(
            torch.from_numpy(floats).to(device),
            torch.from_numpy(ints).to(device),
            tl.constexpr(inputs),
            tl.constexpr(width),
        )


@triton.jit
def logistic(x: tl.tensor) -> tl.tensor:
    """The logistic function, constant where the host's is."""
    bound = tl.full((), _HIGHEST, tl.float64)
    return 1.0 / (1.0 + tl.exp(-tl.minimum(tl.maximum(x, -bound), bound)))


@device("predict.network.predict")
def predict(network: tl.tuple, features: tl.tensor) -> tl.tensor:
    """(HEAD_LANES,) float64: what the heads predict for float32 features."""
    inputs: tl.constexpr = network.inputs
    width: tl.constexpr = network.width
    together: tl.constexpr = min(32, _TILE // width)
    columns: tl.constexpr = min(width, _TILE // width)
    weights = network.floats + (2 * _INTERVALS + 2) * inputs
    units, heads = tl.arange(0, width), tl.arange(0, HEAD_LANES)
    products = tl.zeros((together, width), tl.float64)
    for begin in range(0, inputs, together):
        at = begin + tl.arange(0, together)
        given = tl.gather(features, tl.load(network.ints + at), 0)
        missing = given != given
        rise = tl.zeros((together,), tl.float64)
        for interval in tl.static_range(_INTERVALS):
            low = tl.load(network.floats + interval * inputs + at).to(tl.float64)
            slope = tl.load(network.floats + (_INTERVALS + interval) * inputs + at).to(tl.float64)
            risen = (given.to(tl.float64) - low) * slope
            rise += tl.minimum(tl.maximum(risen, 0.0), 1.0)
        shift = tl.load(network.floats + 2 * _INTERVALS * inputs + at).to(tl.float64)
        scale = tl.load(network.floats + (2 * _INTERVALS + 1) * inputs + at).to(tl.float64)
        kind = tl.load(network.ints + inputs + at)
        flag = ((kind == _FLAG) & missing).to(tl.float64)
        entered = tl.where((kind == _COLUMN) & (given == given), (rise - shift) * scale, flag)
        weight = tl.load(weights + at[:, None] * width + units[None, :])
        products += entered[:, None] * weight.to(tl.float64)
    weights += inputs * width
    hidden = tl.sum(products, 0) + tl.load(weights + units).to(tl.float64)
    hidden = hidden * logistic(hidden)
    weights += width
    outer = weights + width * width + width
    output = tl.load(outer + width * HEAD_LANES + heads).to(tl.float64)
    for begin in range(0, width, columns):
        at = begin + tl.arange(0, columns)
        weight = tl.load(weights + units[:, None] * width + at[None, :]).to(tl.float64)
        second = tl.sum(hidden[:, None] * weight, 0)
        second += tl.load(weights + width * width + at).to(tl.float64)
        second = second * logistic(second)
        weight = tl.load(outer + at[:, None] * HEAD_LANES + heads[None, :]).to(tl.float64)
        output += tl.sum(second[:, None] * weight, 0)
    return tl.where(tl.load(network.ints + 2 * inputs + heads) > 0, logistic(output), output)


AFTER_1, AFTER_2, AFTER_3, FIRST, AFTER_LAST, FIRST_TWO, AT_CANDIDATE, LEVELS = map(
    tl.constexpr, range(8)
)
OF_NEURAL, OF_NGRAM = map(tl.constexpr, range(2))
MEAN, LOG_COUNT, DEPTH, VALUES_PER_LEVEL = map(tl.constexpr, range(4))
_ADDED, _FIRST_FACTOR, _SECOND_FACTOR = (
    tl.constexpr(number - (1 << 64))
    for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""The constants of the tables' hash as signed numbers: products and sums wrap around alike."""


class TableBuffers(NamedTuple):
    """The entries of `Tables` as kernels read them."""

    keys: Tensor
    """(slots,) int64, 0 in free ones."""
    entries: Tensor
    """(slots, 3) float32 means, log counts and depths. Triton's tuples have `values` of their own.
    """
    base: Tensor
    """(4,) float32."""
    salted: Tensor
    """(LEVEL_LANES,) int64 the hashes that keys of each level begin with."""
    mask: int
    """The number of slots, a power of two, less one."""
    probes: tl.constexpr
    """A power of two: at least as many slots as a search looks at."""

    @classmethod
    def of(cls, given: Tables, device: torch.device) -> TableBuffers:
        """The tables on a device."""
        salted = np.zeros(LEVEL_LANES.value, np.uint64)
        salted[: LEVELS.value] = token_tables.salted(given.salt)
        keys, place, probes = addressed(given.keys)
        values = np.zeros((len(keys), VALUES_PER_LEVEL.value), np.float32)
        values[place] = given.entries
        return cls(
            torch.from_numpy(keys.view(np.int64)).to(device),
            torch.from_numpy(values).to(device),
            torch.from_numpy(np.ascontiguousarray(given.base.T).ravel()).to(device),
            torch.from_numpy(salted.view(np.int64)).to(device),
            len(keys) - 1,
            tl.constexpr(triton.next_power_of_2(probes)),
        )


def addressed(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64], int]:
    """An open-addressing table of the keys, at most half full, and the slot of each.

    Last comes how many slots a search looks at until it finds any key that is in the table. The
    lowest bit of a key is always set; with it, half of the slots would never be the first choice.
    """
    size = 1 << max(4, int(2 * len(keys) - 1).bit_length())
    slots, mask = np.zeros(size, np.uint64), np.uint64(size - 1)
    place, left, probes = (keys >> np.uint64(1)) & mask, np.arange(len(keys)), 0
    while len(left):
        probes += 1
        wanted, first = np.unique(place[left], return_index=True)
        free = slots[wanted] == 0
        slots[wanted[free]] = keys[left[first[free]]]
        left = left[slots[place[left]] != keys[left]]
        place[left] = (place[left] + np.uint64(1)) & mask
    return slots, place, max(probes, 1)


@device("predict.tables.mixed")
def _mixed(h: tl.tensor, value: tl.tensor) -> tl.tensor:
    h = (h ^ (value + _ADDED)) * _FIRST_FACTOR
    h = (h ^ shifted(h, 29)) * _SECOND_FACTOR
    return h ^ shifted(h, 32)


@device("predict.tables.values_of", "predict.tables.level_keys", "predict.tables.find")
def values_of(
    tables: tl.tuple, t1: tl.tensor, t2: tl.tensor, t3: tl.tensor, c1: tl.tensor, c2: tl.tensor
) -> tl.tuple:
    """By level, what the tables say behind the last tokens t and at a candidate c, as float32.

    An unseen key gets its parent's mean and depth, and count 0.
    """
    level = tl.arange(0, LEVEL_LANES)
    of_last = level < FIRST
    of_pair = (level == AFTER_LAST) | (level == AT_CANDIDATE)
    first = tl.where(of_last, t1, c1)
    second = tl.where(of_pair, t1, tl.where(level == FIRST_TWO, c2, -1))
    second = tl.where((level == AFTER_2) | (level == AFTER_3), t2, second)
    third = tl.where(level == AFTER_3, t3, -1)
    needed = tl.where(level == AFTER_2, t2, tl.where(level == AFTER_3, t3, first))
    partner = tl.where(of_pair, t1, tl.where(level == FIRST_TWO, c2, 0))
    known = (level < LEVELS) & (needed >= 0) & (partner >= 0)
    h = tl.load(tables.salted + level)
    h = _mixed(h, first.to(tl.int64) + 2)
    h = _mixed(h, second.to(tl.int64) + 2)
    h = _mixed(h, third.to(tl.int64) + 2) | 1
    # An arithmetic shift fills in bits that the mask removes.
    slots = ((h >> 1)[:, None] + tl.arange(0, tables.probes)[None, :]) & tables.mask
    stored = tl.load(tables.keys + slots, mask=known[:, None], other=0)
    slot = tl.max(tl.where(stored == h[:, None], slots, -1), 1)
    found = slot >= 0
    mean = tl.load(tables.entries + slot * VALUES_PER_LEVEL + MEAN, mask=found, other=0.0)
    count = tl.load(tables.entries + slot * VALUES_PER_LEVEL + LOG_COUNT, mask=found, other=0.0)
    depth = tl.load(tables.entries + slot * VALUES_PER_LEVEL + DEPTH, mask=found, other=0.0)
    # These levels have no parent but the base, of neural and of n-gram drafts.
    root = (level == AFTER_1) | (level == FIRST)
    source = tl.where(level == FIRST, OF_NGRAM, OF_NEURAL)
    mean = tl.where(root & (slot < 0), tl.load(tables.base + source), mean)
    depth = tl.where(root & (slot < 0), tl.load(tables.base + 2 + source), depth)
    of_first = (level == AFTER_LAST) | (level == FIRST_TWO)
    parent = tl.where(of_first, FIRST, tl.where(level == AFTER_3, AFTER_2, AFTER_1))
    settled = found | root
    for _ in tl.static_range(2):
        mean = tl.where(settled, mean, tl.gather(mean, parent, 0))
        depth = tl.where(settled, depth, tl.gather(depth, parent, 0))
    return mean, count, depth


SPLICE_FIRST, SPLICE_MORE = tl.constexpr(host.SPLICE_FIRST), tl.constexpr(host.SPLICE_MORE)
NGRAM_EXPONENT = tl.constexpr(host.NGRAM_EXPONENT)


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


@device("predict.network.survivals")
def survival(
    curves: tl.tuple, first: tl.tensor, score: tl.tensor, count: tl.constexpr
) -> tl.tensor:
    """P(accepted >= j) by that of the first token, and the score that chooses a shape."""
    edge = tl.load(curves.edges + tl.arange(0, curves.count))
    group = tl.sum((edge <= score).to(tl.int32), 0)
    lanes = tl.arange(0, count)
    shape = tl.load(curves.shapes + group * count + lanes)
    return tl.where(lanes == 0, shape, first * shape)


@device("predict.model.copy_chance")
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

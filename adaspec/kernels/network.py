"""The networks of `predict.network`, a row per program.

They are computed in float64, as a float32 product may be rounded to TF32, which has three digits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from adaspec.kernels.layout import HEAD_LANES
from adaspec.kernels.twins import device
from adaspec.predict.network import INTERVALS, PROBABILITY, Network

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

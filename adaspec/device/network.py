"""The forward of `predict.network`, as a few matrix products.

They are taken in float64: an engine may let float32 products round to TF32, which has three digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaspec.predict.network import PROBABILITY, Network

HIGHEST = 15.8
"""Beyond it the host's logistic function is constant."""


class DeviceNetwork:
    """A network whose weights lie on a device."""

    def __init__(self, network: Network, device: torch.device) -> None:
        def moved(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array.astype(np.float64)).to(device)

        self._source, self._flagged = moved(network.source).long(), moved(network.flagged).long()
        self._low, self._slope = moved(network.low), moved(network.slope)
        self._shift, self._scale = moved(network.shift), moved(network.scale)
        self._hidden = (
            (moved(network.weight_1), moved(network.bias_1)),
            (moved(network.weight_2), moved(network.bias_2)),
        )
        self._output = moved(network.weight_3), moved(network.bias_3)
        self._is_probability = moved(network.link) == PROBABILITY

    def predict(self, features: Tensor) -> Tensor:
        """(rows, heads) what the heads predict for float32 features, in float64."""
        given = features.index_select(1, self._source).double()
        rise = ((given[:, None] - self._low) * self._slope).clamp(0.0, 1.0).sum(1)
        inputs = ((rise - self._shift) * self._scale).where(~given.isnan(), 0.0)
        missing = features.index_select(1, self._flagged).isnan()
        hidden = torch.cat((inputs, missing), 1)
        for weight, bias in self._hidden:
            hidden = hidden @ weight + bias
            hidden = hidden * _logistic(hidden)
        weight, bias = self._output
        output = hidden @ weight + bias
        return torch.where(self._is_probability, _logistic(output), output)


def _logistic(x: Tensor) -> Tensor:
    return x.clamp(-HIGHEST, HIGHEST).sigmoid()

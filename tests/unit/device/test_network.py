"""The matrix products are the formula, written out in double precision for one row."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from adaspec.device.network import DeviceNetwork  # noqa: E402


def test_it_is_the_formula_missing_features_included() -> None:
    rng = np.random.default_rng(2)
    shapes = {"weight_1": (9, 16), "weight_2": (16, 16), "weight_3": (16, 3)}
    shapes |= {"bias_1": (16,), "bias_2": (16,), "bias_3": (3,), "shift": (6,), "scale": (6,)}
    arrays = {name: rng.normal(0, 1, shape) for name, shape in shapes.items()}
    network = SimpleNamespace(
        **{name: array.astype(np.float32) for name, array in arrays.items()},
        flagged=np.array([0, 2, 5], np.int32),
        link=np.array([1, 0, 1], np.int32),
    )
    features = rng.normal(0, 30, (50, 6)).astype(np.float32)
    features[rng.random(features.shape) < 0.2] = np.nan
    found = DeviceNetwork(network, torch.device("cpu")).predict(torch.from_numpy(features))

    def logistic(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    for x, row in zip(features.tolist(), found.tolist(), strict=True):
        inputs = [
            0.0
            if math.isnan(value)
            else (math.copysign(math.log1p(abs(value)), value) - shift) * scale
            for value, shift, scale in zip(x, network.shift, network.scale, strict=True)
        ]
        hidden = np.array(inputs + [float(math.isnan(x[at])) for at in network.flagged])
        for layer in (1, 2):
            weight, bias = getattr(network, f"weight_{layer}"), getattr(network, f"bias_{layer}")
            hidden = np.array([v * logistic(v) for v in hidden @ weight.astype(float) + bias])
        output = hidden @ network.weight_3.astype(float) + network.bias_3
        wanted = [logistic(output[0]), output[1], logistic(output[2])]
        np.testing.assert_allclose(row, wanted, rtol=1e-6, atol=1e-6)

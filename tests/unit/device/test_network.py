"""The matrix products are the formula of `predict.network`."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from random_networks import random_network  # noqa: E402

from adaspec.device.network import DeviceNetwork  # noqa: E402
from adaspec.predict.model import FEATURE_NAMES  # noqa: E402


@pytest.mark.parametrize("group", ["before", "evidence", "splice"])
def test_it_is_the_formula_missing_features_included(group: str) -> None:
    rng = np.random.default_rng(2)
    network = random_network(rng, group)
    features = rng.normal(0, 2, (50, len(FEATURE_NAMES[group]))).astype(np.float32)
    features[rng.random(features.shape) < 0.2] = np.nan
    found = DeviceNetwork(network, torch.device("cpu")).predict(torch.from_numpy(features))

    def logistic(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    given = features.astype(np.float64)[:, network.source]
    rise = np.clip((given[:, None] - network.low) * network.slope, 0, 1).sum(1)
    inputs = np.where(np.isnan(given), 0.0, (rise - network.shift) * network.scale)
    hidden = np.concatenate([inputs, np.isnan(features[:, network.flagged])], 1)
    for layer in (1, 2):
        total = hidden @ getattr(network, f"weight_{layer}") + getattr(network, f"bias_{layer}")
        hidden = total * logistic(total)
    output = hidden @ network.weight_3 + network.bias_3
    wanted = np.where(network.link == 1, logistic(output), output)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-9)

"""The matrix products predict what the host's compiled network does."""

from __future__ import annotations

import numpy as np
import pytest
from random_models import random_network

from adaspec.predict.model import FEATURE_NAMES
from adaspec.predict.network import predict

torch = pytest.importorskip("torch", reason="torch is not installed")

from adaspec.device.network import DeviceNetwork  # noqa: E402


@pytest.mark.parametrize("group", ["before", "evidence", "splice"])
@pytest.mark.parametrize("width", [1, 12, 64, 128])
def test_it_predicts_what_the_host_predicts(group: str, width: int) -> None:
    rng = np.random.default_rng(width)
    network = random_network(group, 3, width)
    shape = (200, len(FEATURE_NAMES[group]))
    features = (rng.normal(0, 1, shape) * 10.0 ** rng.integers(-2, 4, shape)).astype(np.float32)
    features[rng.random(shape) < 0.2] = np.nan
    found = DeviceNetwork(network, torch.device("cpu")).predict(torch.from_numpy(features))
    np.testing.assert_allclose(found.numpy(), predict(network, features), rtol=1e-5, atol=1e-5)

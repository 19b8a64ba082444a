"""Random networks with the arrays of a host's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from adaspec.device.model import DeviceModel
from adaspec.predict.model import FEATURE_NAMES, HEADS, Model


def random_network(rng: np.random.Generator, group: str, width: int = 16) -> SimpleNamespace:
    """One for a group's features and heads, with some columns more than features."""
    features, heads = len(FEATURE_NAMES[group]), len(HEADS[group])
    flagged = np.arange(0, features, 3, dtype=np.int32)
    columns = features + 7

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    return SimpleNamespace(
        source=rng.integers(0, features, columns).astype(np.int32),
        low=draw(4, columns),
        slope=abs(draw(4, columns)),
        shift=draw(columns),
        scale=draw(columns),
        flagged=flagged,
        weight_1=draw(columns + len(flagged), width),
        bias_1=draw(width),
        weight_2=draw(width, width),
        bias_2=draw(width),
        weight_3=draw(width, heads),
        bias_3=draw(heads),
        link=rng.integers(0, 2, heads).astype(np.int32),
    )


def random_device_model(model: Model, device: torch.device) -> DeviceModel:
    """The model, with random networks for the groups that it knows."""
    rng = np.random.default_rng(0)
    return DeviceModel(model, {name: random_network(rng, name) for name in model.forests}, device)

"""A trained model on a device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from adaspec.device.network import DeviceNetwork
from adaspec.device.tables import DeviceTables
from adaspec.policy.planner.memory import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE
from adaspec.predict.model import Model
from adaspec.predict.survival import Curves


class DeviceCurves:
    """The shapes of survival curves up to a longest length."""

    def __init__(self, curves: Curves, longest: int, device: torch.device) -> None:
        shapes = np.zeros((len(curves.shapes), longest + 1))
        known = min(curves.shapes.shape[1], longest + 1)
        shapes[:, :known] = curves.shapes[:, :known]
        self._edges = torch.from_numpy(curves.edges.copy()).to(device)
        self._shapes = torch.from_numpy(shapes).to(device)

    def survival(self, first: Tensor, score: Tensor) -> Tensor:
        """(rows, longest + 1) P(accepted >= j), as `predict.survival.fill_survival` has it."""
        shape = self._shapes[torch.bucketize(score.contiguous(), self._edges, right=True)]
        return torch.cat((shape[:, :1], first[:, None] * shape[:, 1:]), 1)


class DeviceModel:
    """The networks, curves and token tables of a model."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self.device = device
        networks = {name: DeviceNetwork(each, device) for name, each in model.networks.items()}
        self.before, self.splice = networks["before"], networks["splice"]
        self.evidence = networks.get("evidence")
        self.ngram = DeviceCurves(model.curves["ngram"], LONGEST_NGRAM, device)
        self.neural = DeviceCurves(model.curves["neural"], LONGEST_NEURAL, device)
        self.spliced = DeviceCurves(model.curves["splice"], LONGEST_SPLICE, device)
        self.tables = DeviceTables(model.tables, device)

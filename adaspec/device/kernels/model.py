"""A trained model as kernels read it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from adaspec.device.kernels.curves import CurveBuffers
from adaspec.device.kernels.layout import NEURAL_LANES, NGRAM_LANES, SPLICE_LANES
from adaspec.device.kernels.network import NetworkBuffers
from adaspec.device.kernels.tables import TableBuffers
from adaspec.policy.planner.memory import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE
from adaspec.predict.model import Model


class ModelBuffers(NamedTuple):
    """The networks, curves and token tables of a model."""

    before: NetworkBuffers
    splice: NetworkBuffers
    evidence: NetworkBuffers
    ngram: CurveBuffers
    neural: CurveBuffers
    spliced: CurveBuffers
    tables: TableBuffers

    @classmethod
    def of(cls, model: Model, device: torch.device) -> ModelBuffers:
        """The model on a device; another network, never run, replaces a missing one."""
        networks = {name: NetworkBuffers.of(each, device) for name, each in model.networks.items()}
        curves = model.curves
        return cls(
            before=networks["before"],
            splice=networks["splice"],
            evidence=networks.get("evidence", networks["splice"]),
            ngram=CurveBuffers.of(curves["ngram"], LONGEST_NGRAM, NGRAM_LANES.value, device),
            neural=CurveBuffers.of(curves["neural"], LONGEST_NEURAL, NEURAL_LANES.value, device),
            spliced=CurveBuffers.of(curves["splice"], LONGEST_SPLICE, SPLICE_LANES.value, device),
            tables=TableBuffers.of(model.tables, device),
        )

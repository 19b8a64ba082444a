"""A trained model as kernels read it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from adaspec.kernels.curves import CurveBuffers
from adaspec.kernels.layout import NEURAL_LANES, NGRAM_LANES, SPLICE_LANES
from adaspec.kernels.network import NetworkBuffers
from adaspec.kernels.tables import TableBuffers
from adaspec.policy.planner.memory import LONGEST_NEURAL, LONGEST_NGRAM, LONGEST_SPLICE
from adaspec.predict.model import Model


class Before(NamedTuple):
    """What predicts before drafting."""

    network: NetworkBuffers
    ngram: CurveBuffers
    neural: CurveBuffers


class Behind(NamedTuple):
    """What predicts behind drafted tokens."""

    evidence: NetworkBuffers
    splice: NetworkBuffers
    spliced: CurveBuffers
    tables: TableBuffers


class ModelBuffers(NamedTuple):
    """The networks, curves and token tables of a model, apart by the kernels that read them."""

    before: Before
    behind: Behind

    @classmethod
    def of(cls, model: Model, device: torch.device) -> ModelBuffers:
        """The model on a device; another network, never run, replaces a missing one."""
        networks = {name: NetworkBuffers.of(each, device) for name, each in model.networks.items()}
        curves = model.curves
        before = Before(
            network=networks["before"],
            ngram=CurveBuffers.of(curves["ngram"], LONGEST_NGRAM, NGRAM_LANES.value, device),
            neural=CurveBuffers.of(curves["neural"], LONGEST_NEURAL, NEURAL_LANES.value, device),
        )
        behind = Behind(
            evidence=networks.get("evidence", networks["splice"]),
            splice=networks["splice"],
            spliced=CurveBuffers.of(curves["splice"], LONGEST_SPLICE, SPLICE_LANES.value, device),
            tables=TableBuffers.of(model.tables, device),
        )
        return cls(before, behind)

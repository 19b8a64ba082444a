"""What kernels leave for each other of the rows of a step, allocated once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaspec.kernels.layout import CURVES, FACTS, LONGEST_NEURAL, RING


class Rows(NamedTuple):
    """What is known of a step's rows, and expected of their drafts; `layout` names the columns."""

    facts: Tensor
    """(rows, FACTS) int64."""
    curves: Tensor
    """(rows, CURVES) float64."""
    holds: Tensor
    decides: Tensor
    """(rows,) bool."""
    keys: Tensor
    """(rows, splits * RING) int32: the best places that each program of the last scan found."""
    drafts: Tensor
    """(rows, LONGEST_NEURAL) int32: the drafted tokens."""

    @classmethod
    def allocate(cls, rows: int, splits: int, device: torch.device) -> Rows:
        """Room for so many rows."""

        def new(dtype: torch.dtype, *columns: int) -> Tensor:
            return torch.zeros((rows, *columns), dtype=dtype, device=device)

        return cls(
            facts=new(torch.int64, FACTS.value),
            curves=new(torch.float64, CURVES.value),
            holds=new(torch.bool),
            decides=new(torch.bool),
            keys=new(torch.int32, splits * RING.value),
            drafts=new(torch.int32, LONGEST_NEURAL.value),
        )

"""What kernels leave for each other of the rows of a step, allocated once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaspec.kernels.layout import (
    FACTS,
    FEATURES,
    LONGEST_NEURAL,
    MATCH_FACTS,
    NEURAL_LANES,
    NGRAM_LANES,
    RING,
    SPLICE_LANES,
)


class Rows(NamedTuple):
    """What is known of a step's rows, and expected of their drafts (`planner.memory.Memory`)."""

    facts: Tensor
    """(rows, FACTS) int64."""
    holds: Tensor
    decides: Tensor
    """(rows,) bool."""
    keys: Tensor
    """(rows, splits * RING) int32: the best places that each program of the last scan found."""
    drafts: Tensor
    """(rows, LONGEST_NEURAL) int32: the drafted tokens."""
    behind: Tensor
    """(rows, LONGEST_NEURAL, MATCH_FACTS) int64: the matches behind them."""
    features: Tensor
    """(rows, FEATURES) float32."""
    neural: Tensor
    ngram: Tensor
    splice: Tensor
    splice_expected: Tensor
    splice_value: Tensor
    splice_len: Tensor
    agreed: Tensor
    least: Tensor

    @classmethod
    def allocate(cls, rows: int, splits: int, device: torch.device) -> Rows:
        """Room for so many rows."""

        def new(dtype: torch.dtype, *lanes: int) -> Tensor:
            return torch.zeros((rows, *lanes), dtype=dtype, device=device)

        neural, ngram, splice = NEURAL_LANES.value, NGRAM_LANES.value, SPLICE_LANES.value
        return cls(
            facts=new(torch.int64, FACTS.value),
            holds=new(torch.bool),
            decides=new(torch.bool),
            keys=new(torch.int32, splits * RING.value),
            drafts=new(torch.int32, LONGEST_NEURAL.value),
            behind=new(torch.int64, LONGEST_NEURAL.value, MATCH_FACTS.value),
            features=new(torch.float32, FEATURES.value),
            neural=new(torch.float64, neural),
            ngram=new(torch.float64, ngram),
            splice=new(torch.float64, neural, splice),
            splice_expected=new(torch.float64),
            splice_value=new(torch.float64, neural),
            splice_len=new(torch.int64, neural),
            agreed=new(torch.int64),
            least=new(torch.float32, 2),
        )

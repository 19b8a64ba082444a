"""What one replay says, summed over its counted steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Result:
    """Totals of one run, and every finished request's seconds per output token."""

    tokens: float
    time_s: float
    steps: float
    row_steps: float
    accepted: float
    drafted: float
    neural_steps: float
    deciding_s: float
    """The part of `time_s` that deciding took."""
    token_s: NDArray[np.float64]
    """Seconds per output token, one entry per finished request."""
    request_s: NDArray[np.float64]
    """Seconds from entering to ending, its prompt included, likewise."""

    @property
    def tokens_per_s(self) -> float:
        """Throughput of the whole batch."""
        return self.tokens / self.time_s

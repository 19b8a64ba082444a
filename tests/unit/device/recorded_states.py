"""Requests of the reference pair's recorded traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request

TRACES = Path(__file__).resolve().parents[3] / "eval" / "traces" / "reference-pair"


def recorded_requests(count: int) -> list[Request]:
    """So many of them, of all workloads."""
    if not TRACES.is_dir():
        pytest.skip(f"no recorded traces at {TRACES}")
    requests = [each for each in TraceReader(TRACES).requests() if len(each.output_tokens) > 1]
    chosen = np.random.default_rng(8).permutation(len(requests))[:count]
    return [requests[at] for at in chosen]

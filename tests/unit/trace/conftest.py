"""Small sound rows and traces, to be bent by the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaspec.trace.manifest import Manifest
from adaspec.trace.schema import CONFIDENCES, LoggedStep, Request
from adaspec.trace.writer import TraceWriter


@pytest.fixture
def dense() -> Manifest:
    return Manifest(
        kind="dense",
        target="a/target",
        drafter="a/head",
        neural_cap=6,
        draft_cap=4,
        confidences=CONFIDENCES,
    )


@pytest.fixture
def logged() -> Manifest:
    return Manifest(kind="logged", target="a/target")


@pytest.fixture
def request_of() -> Callable[..., Request]:
    """A sound request of 8 output tokens, 2 of 3 drafted tokens accepted at position 2."""

    def make(id: str = "0", workload: str = "chat", **changes: Any) -> Request:
        output = np.arange(100, 108, dtype=np.int32)
        accepted = np.zeros(8, np.int16)
        accepted[0], accepted[2] = -1, 2
        drafted = np.full((8, 4), -1, np.int32)
        drafted[2, :3] = [102, 103, 7]
        confidences = np.full((8, 4, 3), np.nan, np.float32)
        confidences[2, :3] = [[-0.1, 0.8, 0.2], [-0.5, 0.4, np.nan], [-2.0, 0.1, 1.5]]
        fields: dict[str, Any] = {
            "prompt_tokens": np.arange(5, dtype=np.int32),
            "output_tokens": output,
            "neural_accepted": accepted,
            "drafted_tokens": drafted,
            "confidences": confidences,
            "ngram_accepted": None,
        }
        return Request(workload, id, **(fields | changes))

    return make


@pytest.fixture
def step_of() -> Callable[..., LoggedStep]:
    def make(step: int = 0, id: str = "0", **changes: Any) -> LoggedStep:
        fields: dict[str, Any] = {"draft_len": 5, "accepted": 2}
        return LoggedStep("chat", id, step, **(fields | changes))

    return make


@pytest.fixture
def trace(tmp_path: Path, dense: Manifest, request_of: Callable[..., Request]) -> Path:
    """A finished trace of 7 requests in 3 shards."""
    path = tmp_path / "trace"
    with TraceWriter(path, dense, shard_rows=3) as writer:
        for number in range(7):
            writer.add(request_of(str(number)))
    return path

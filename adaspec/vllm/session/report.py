"""What is known of a step once it has been drafted for.

An accelerator tells the host in one tensor, which is copied while the next step is prepared. All
its columns are float32, which holds any token id and any length below 2**24.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaspec.policy.forwards import GAINS
from adaspec.trace.schema import CONFIDENCES

SINGLE = ("context", "sampled", "rejected", "neural", "offered")
"""The facts that are one whole number per row, in the order of their columns; the gains follow."""


class Outcome(NamedTuple):
    """What the target made of the drafts before, row by row."""

    context: NDArray[np.int32]
    """Known tokens, those that the step emitted included."""
    sampled: NDArray[np.int32]
    """Tokens that the step emitted; 0 while a prompt is read in pieces."""
    rejected: NDArray[np.int32]
    """Tokens that it verified and did not accept."""
    emitted: NDArray[np.int32]
    """(rows, most) the emitted tokens, -1 behind them."""


class StepReport(NamedTuple):
    """A step's report on the host, row by row of its batch; the fields of an `Outcome` included."""

    context: NDArray[np.int32]
    sampled: NDArray[np.int32]
    rejected: NDArray[np.int32]
    emitted: NDArray[np.int32]
    neural: NDArray[np.int32]
    """Tokens of the new draft that the neural drafter drafted."""
    offered: NDArray[np.int32]
    """Tokens of the new draft, however little they are worth."""
    gain: NDArray[np.float64]
    """(rows, GAINS) what forwards bring (see `policy.forwards`)."""
    tokens: NDArray[np.int32]
    """(rows, cap) the new draft."""
    survival: NDArray[np.float64]
    """(rows, cap) P(each token of it and all before it are accepted)."""
    drafted: NDArray[np.int32]
    """(rows, forwards) the neural drafter's tokens."""
    confidences: NDArray[np.float32]
    """(rows, forwards, 3) and their confidences."""

    def of(self, rows: NDArray[np.int32]) -> StepReport:
        """What it says of these rows."""
        parts: Any = (each[rows] for each in self)
        return StepReport(*parts)


class Layout:
    """Where each fact of a step lies in its row of the tensor."""

    def __init__(self, cap: int, neural_cap: int) -> None:
        self.cap, self.neural_cap = cap, neural_cap

    def width(self, forwards: int) -> int:
        """The columns of a step in which the drafter ran so often."""
        return len(SINGLE) + GAINS + 3 * self.cap + 1 + forwards * (1 + len(CONFIDENCES))

    def unpacked(self, rows: NDArray[np.float32], forwards: int) -> StepReport:
        """The report of a step in which the drafter ran so often."""
        edges = np.cumsum([0, len(SINGLE), GAINS, self.cap + 1, self.cap, self.cap, forwards])
        single, gain, emitted, tokens, survival, drafted = (
            rows[:, first:end] for first, end in pairwise(edges.tolist())
        )
        counts = dict(zip(SINGLE, single.T.astype(np.int32, order="C"), strict=True))
        return StepReport(
            **counts,
            gain=gain.astype(np.float64),
            emitted=emitted.astype(np.int32),
            tokens=tokens.astype(np.int32),
            survival=survival.astype(np.float64),
            drafted=drafted.astype(np.int32),
            confidences=np.ascontiguousarray(rows[:, edges[-1] :]).reshape(
                len(rows), forwards, len(CONFIDENCES)
            ),
        )


class Copy:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor, copy_stream: Any) -> None:
        """Begin to copy on that stream, once the present one has computed the tensor."""
        self._device_tensor = tensor  # kept alive until it is copied
        self._event = None
        if tensor.device.type == "cpu":
            self._host_tensor = tensor.clone()
            return
        event: Any = torch.cuda.Event
        self._event = event(blocking=True)
        copy_stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(copy_stream):
            self._host_tensor = tensor.to("cpu", non_blocking=True, copy=True)
            self._event.record(copy_stream)

    def wait(self) -> NDArray[np.float32]:
        """The tensor on the host."""
        if self._event is not None:
            self._event.synchronize()
        rows: NDArray[np.float32] = self._host_tensor.numpy()
        return rows

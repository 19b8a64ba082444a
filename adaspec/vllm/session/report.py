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

from adaspec.jit import compiled
from adaspec.policy.budget import GAINS
from adaspec.policy.protocol import Bools, Ints
from adaspec.trace.schema import CONFIDENCES

SINGLE = ("context", "sampled", "rejected", "neural", "offered")
"""The facts that are one whole number per row, in the order of their columns; the gains follow."""
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
NO_LIMITS = np.zeros(0, np.int32)


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
    """(rows, GAINS) what forwards bring (see `policy.budget`)."""
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


class Drafts(NamedTuple):
    """The drafts of a batch, in its order."""

    tokens: Tensor
    """(rows, cap) int64: each row's draft, as far as its source goes; 0 behind it."""
    survival: Tensor
    """(rows, cap) P(each of them and all before it are accepted), 0 behind the draft."""
    report: Tensor | StepReport
    """What the host is told of the step; a tensor where it is copied to the host."""


class Chosen(NamedTuple):
    """What the predictor chose in a step, row by row."""

    tokens: Tensor
    """(rows, cap) int64 as far as the source goes, -1 behind it."""
    survival: Tensor
    neural: Tensor
    """How many of the tokens the drafter drafted."""
    decides: Tensor
    context: Tensor
    sampled: Tensor
    rejected: Tensor
    gain: Tensor
    emitted: Tensor
    drafted: Tensor
    """(rows, forwards) the drafter's tokens."""
    confidences: Tensor
    """(forwards or more, rows, 3)."""


def pack_on_host(layout: Layout, chosen: Chosen, allowed: Tensor | None, vocabulary: int) -> Drafts:
    """The drafts, up to the first token that is none and within each row's `allowed`.

    These are (rows,) int32: the most tokens of a draft. How much of a draft is verified is settled
    when the step's budget is known.
    """
    host: Any = Chosen(*(each.numpy() for each in chosen))  # type: ignore[arg-type]
    bounds = NO_LIMITS if allowed is None else allowed.numpy()
    tokens, survival, length = _verifiable(
        host.tokens, host.survival, host.decides, bounds, vocabulary
    )
    report = StepReport(
        context=host.context,
        sampled=host.sampled,
        rejected=host.rejected,
        neural=np.minimum(host.neural, length).astype(np.int32),
        offered=length,
        gain=host.gain,
        emitted=host.emitted,
        tokens=tokens,
        survival=survival,
        drafted=host.drafted.astype(np.int32),
        confidences=host.confidences[: host.drafted.shape[1]].transpose(1, 0, 2),
    )
    return Drafts(torch.from_numpy(tokens), torch.from_numpy(survival), report)


@compiled
def _verifiable(
    tokens: Longs, survival: Floats, decides: Bools, allowed: Ints, vocabulary: int
) -> tuple[Longs, Floats, Ints]:
    """What of each row's draft may be verified, 0 behind it, and how many tokens that are."""
    # What a budget cannot fill it verifies all the same: nothing that a row was not to draft.
    kept, chances = np.zeros_like(tokens), np.zeros_like(survival)
    lengths = np.zeros(len(tokens), np.int32)
    for row in range(len(tokens)):
        most = tokens.shape[1] if decides[row] else 0
        if len(allowed):
            most = min(most, allowed[row])
        for at in range(most):
            if not 0 <= tokens[row, at] < vocabulary:
                break
            kept[row, at], chances[row, at] = tokens[row, at], survival[row, at]
            lengths[row] += 1
    return kept, chances, lengths


def pack_on_device(
    layout: Layout, chosen: Chosen, allowed: Tensor | None, vocabulary: int
) -> Drafts:
    """What `pack_on_host` returns, in one launch, and survival as float32."""
    from triton import next_power_of_2

    from adaspec.kernels.serving import pack as kernel

    (rows, cap), forwards = chosen.tokens.shape, chosen.drafted.shape[1]
    width = layout.width(forwards)
    tokens = torch.empty_like(chosen.tokens)
    # The host's copy reads the report while the next step is drafted, which has its own.
    survival, report = (
        chosen.survival.new_empty((rows, columns), dtype=torch.float32) for columns in (cap, width)
    )
    kernel[(rows,)](
        chosen,
        chosen.context.stride(0),
        chosen.drafted.stride(0),
        chosen.confidences.stride(0),
        chosen.confidences.stride(1),
        chosen.decides if allowed is None else allowed,
        vocabulary,
        forwards,
        width,
        tokens,
        survival,
        report,
        cap=cap,
        lanes=next_power_of_2(cap + 1),
        forward_lanes=next_power_of_2(max(layout.neural_cap, 1)),
        is_limited=allowed is not None,
        num_warps=1,
    )
    return Drafts(tokens, survival, report)

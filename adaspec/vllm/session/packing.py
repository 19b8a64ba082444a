"""A step's drafts as the engine takes them, and what the host is told of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaspec.jit import compiled
from adaspec.policy.protocol import Bools, Ints
from adaspec.vllm.session.report import Layout, StepReport

Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
NO_LIMITS = np.zeros(0, np.int32)


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

    from adaspec.kernels.pack import pack as kernel

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

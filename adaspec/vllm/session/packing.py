"""A step's drafts as the engine takes them, and what the host is told of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adaspec.vllm.session.report import Layout, Report


class Drafts(NamedTuple):
    """The drafts of a batch, in its order."""

    tokens: Tensor
    """(rows, cap) int64: each row's draft, as far as its source goes; 0 behind it."""
    survival: Tensor
    """(rows, cap) P(each of them and all before it are accepted), 0 behind the draft."""
    report: Tensor | Report
    """What the host is told of the step; a tensor where it is copied to the host."""


class Made(NamedTuple):
    """What the predictor made of a step, row by row."""

    tokens: Tensor
    """(rows, cap) int64 as far as the source goes, -1 behind it."""
    survival: Tensor
    neural: Tensor
    """How many of the tokens the drafter drafted."""
    worth_neural: Tensor
    """How many drafted tokens are worth their price, and how many copied ones."""
    worth_ngram: Tensor
    decides: Tensor
    context: Tensor
    sampled: Tensor
    rejected: Tensor
    available: Tensor
    remembered: Tensor
    """Whether the copied tokens are from earlier answers."""
    emitted: Tensor
    drafted: Tensor
    """(rows, forwards) the drafter's tokens."""
    confidences: Tensor
    """(forwards or more, rows, 3)."""


def pack(layout: Layout, made: Made, limits: Tensor | None, vocabulary: int) -> Drafts:
    """The drafts, up to the first token that is none and within each row's `limits`.

    They are (rows, 2) int32: the most tokens of a draft, and whether tokens may be copied.
    How much of a draft is verified is settled when the step's budget is known.
    """
    host: Any = Made(*(each.numpy() for each in made))  # type: ignore[arg-type]
    sound = (host.tokens >= 0) & (host.tokens < vocabulary) & host.decides[:, None]
    verifiable = np.logical_and.accumulate(sound, axis=1)
    if limits is not None:
        most, copies = limits.numpy().T
        most = np.where(copies > 0, most, np.minimum(most, host.neural))
        verifiable &= np.arange(verifiable.shape[1]) < most[:, None]
    survival = np.where(verifiable, host.survival, 0.0)
    # What a budget cannot fill it verifies all the same: nothing that a row was not to draft.
    tokens = np.where(verifiable, host.tokens, 0)
    length = verifiable.sum(axis=1, dtype=np.int32)
    forwards = host.drafted.shape[1]
    report = Report(
        context=host.context,
        sampled=host.sampled,
        rejected=host.rejected,
        wanted=np.minimum(host.worth_neural + host.worth_ngram, length).astype(np.int32),
        neural=np.minimum(host.neural, length).astype(np.int32),
        length=length,
        available=host.available,
        remembered=host.remembered.astype(np.int32),
        emitted=host.emitted,
        tokens=tokens.astype(np.int32),
        survival=survival,
        drafted=host.drafted.astype(np.int32),
        confidences=host.confidences[:forwards].transpose(1, 0, 2),
    )
    return Drafts(torch.from_numpy(tokens), torch.from_numpy(survival), report)


def pack_at_once(layout: Layout, made: Made, limits: Tensor | None, vocabulary: int) -> Drafts:
    """What `pack` returns, in one launch, and survival as float32."""
    from triton import next_power_of_2

    from adaspec.kernels.pack import pack as kernel

    (rows, cap), forwards = made.tokens.shape, made.drafted.shape[1]
    width = layout.width(forwards)
    tokens = torch.empty_like(made.tokens)
    # The host's copy reads the report while the next step is drafted, which has its own.
    survival, report = (
        made.survival.new_empty((rows, columns), dtype=torch.float32) for columns in (cap, width)
    )
    kernel[(rows,)](
        made,
        made.context.stride(0),
        made.available.stride(0),
        made.drafted.stride(0),
        made.confidences.stride(0),
        made.confidences.stride(1),
        made.decides if limits is None else limits,
        vocabulary,
        forwards,
        width,
        tokens,
        survival,
        report,
        cap=cap,
        lanes=next_power_of_2(cap + 1),
        forward_lanes=next_power_of_2(max(layout.neural_cap, 1)),
        has_limits=limits is not None,
        num_warps=1,
    )
    return Drafts(tokens, survival, report)

"""A step's drafts as the engine takes them, and what the host is told of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaspec.vllm.v2.report import Layout


class Drafts(NamedTuple):
    """The drafts of a batch, in its order."""

    tokens: Tensor
    """(rows, cap) int64: each row's draft, as far as its source goes; 0 behind it."""
    survival: Tensor
    """(rows, cap) P(each of them and all before it are accepted), 0 behind the draft."""
    report: Tensor
    """What the host is told of the step (see `report`)."""


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
    sound = (made.tokens >= 0) & (made.tokens < vocabulary)
    verifiable = sound.long().cumprod(1).bool() & made.decides[:, None]
    if limits is not None:
        most = limits[:, 0].where(limits[:, 1] > 0, limits[:, 0].minimum(made.neural))
        columns = torch.arange(verifiable.shape[1], device=most.device)
        verifiable &= columns < most[:, None]
    survival = made.survival.where(verifiable, 0.0)
    # What a budget cannot fill it verifies all the same: nothing that a row was not to draft.
    tokens = made.tokens.where(verifiable, 0)
    length = verifiable.sum(1)
    report = layout.packed(
        context=made.context,
        sampled=made.sampled,
        rejected=made.rejected,
        wanted=(made.worth_neural + made.worth_ngram).minimum(length),
        neural=made.neural.minimum(length),
        length=length,
        available=made.available,
        remembered=made.remembered,
        emitted=made.emitted,
        tokens=tokens,
        survival=survival,
        drafted=made.drafted,
        confidences=made.confidences,
    )
    return Drafts(tokens, survival, report)


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

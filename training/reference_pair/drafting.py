"""Unrolled drafting: what a head drafts from every anchor, its loss, and what a target accepts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from heads import Head, Linear, Memory
from states import Batch
from torch import Tensor

CHUNK = 1024
# Drafted tokens in a walk, as an engine with this num_speculative_tokens takes it.
WALK = 3


class DraftLoss(torch.autograd.Function):
    """Cross entropy against the target's best tokens, its gradient made while the logits are hot.

    Rows weigh what of the target's probability the draft vocabulary covers.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, probs: Tensor, train_weight: bool
    ) -> tuple[Tensor, Tensor]:
        """The summed loss, and how many rows put the target's best token first."""
        compute = Linear.compute
        low = weight.to(compute)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if train_weight else None
        loss, right = hidden.new_zeros(()), hidden.new_zeros(())
        for first in range(0, len(hidden), CHUNK):
            rows = slice(first, first + CHUNK)
            inputs, known = hidden[rows].to(compute), probs[rows]
            logits = (inputs @ low.T).float()
            index = ids[rows].clamp_min(0)
            right += (logits.argmax(-1) == ids[rows, 0]).sum()
            total = logits.logsumexp(-1, keepdim=True)
            loss -= (known * (logits.gather(1, index) - total)).sum()
            grad = logits.sub_(total).exp_().mul_(known.sum(-1, keepdim=True))
            grad.scatter_add_(1, index, -known)
            grad = grad.to(compute)
            grad_hidden[rows] = (grad @ low).float()
            if grad_weight is not None:
                grad_weight += (grad.T @ inputs).float()
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _grad_right: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients made in forward, scaled."""
        grad_hidden, grad_weight = ctx.saved_tensors
        if grad_weight is not None:
            grad_weight = grad_weight * grad_loss
        return grad_hidden * grad_loss, grad_weight, None, None, None


def shift(x: Tensor, by: int, length: int) -> Tensor:
    """x[:, by : by + length], zero-padded on the right."""
    part = x[:, by : by + length]
    if part.shape[1] < length:
        part = torch.cat((part, part.new_zeros(len(x), length - part.shape[1], *x.shape[2:])), 1)
    return part


@dataclass
class Drafting:
    """One unrolled step over all anchors: vocabulary inputs, features, label positions in range."""

    logits_in: Tensor
    feature: Tensor
    label: int
    inside: Tensor


def unroll(head: Head, batch: Batch, steps: int) -> Iterator[Drafting]:
    """Draft `steps` tokens from every anchor, feeding the head its own features."""
    length = batch.tokens.shape[1] - 1
    feature = head.feature(batch.states[:, :length])
    memory = Memory([], [])
    anchors = torch.arange(length, device=batch.tokens.device)
    for k in range(steps):
        out, feature = head.step(shift(batch.tokens, k + 1, length), feature, memory)
        yield Drafting(out, feature, k + 1, anchors + k + 1 < batch.lengths[:, None])


@torch.no_grad()
def draft(head: Head, batch: Batch, steps: int) -> Tensor:
    """The tokens drafted from every anchor, [B, T - 1, steps]."""
    weight = head.output_weight().to(Linear.compute)
    drafted = []
    for drafting in unroll(head, batch, steps):
        flat = drafting.logits_in.flatten(0, 1).to(Linear.compute)
        best = [
            (flat[first : first + CHUNK] @ weight.T).float().argmax(-1)
            for first in range(0, len(flat), CHUNK)
        ]
        drafted.append(head.draft_ids[torch.cat(best)].view(drafting.inside.shape))
    return torch.stack(drafted, dim=-1)


def accept(head: Head, batches: Iterable[Batch], steps: int) -> dict[str, Any]:
    """Acceptance on greedy answers, by the engine's rules.

    `agree`: share of positions where the j-th drafted token is right given that those before were.
    `emitted`: mean accepted + 1 drafting `steps` tokens at every position. `walk`: the same at the
    positions that an engine drafting WALK visits.
    """
    reached: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(steps + 1))
    walked: dict[str, list[int]] = defaultdict(list)
    for batch in batches:
        drafted = draft(head, batch, steps)
        length = drafted.shape[1]
        right = torch.ones(drafted.shape[:2], dtype=torch.bool, device=drafted.device)
        accepted = torch.zeros(drafted.shape[:2], dtype=torch.long, device=drafted.device)
        for k in range(steps):
            truth = shift(batch.top_ids[..., 0], k + 1, length)
            inside = torch.arange(length, device=right.device) + k + 1 < batch.lengths[:, None]
            right &= inside & (drafted[..., k] == truth)
            accepted += right
        for row, kind in enumerate(batch.kinds):
            # The first token of the answer came from the prompt: drafting starts behind it.
            first, last = int(batch.prompts[row]) - 1, int(batch.lengths[row]) - 2
            counts = accepted[row, first : last + 1].cpu().numpy()
            for name in (kind, "all"):
                reached[name] += [(counts >= j).sum() for j in range(steps + 1)]
            at = 0
            while at < len(counts):
                took, left = min(int(counts[at]), WALK), len(counts) - at
                # An engine drafts past the answer's end and counts what is right there as well.
                if left >= WALK:
                    for name in (kind, "all"):
                        walked[name].append(took)
                at += took + 1
    row: dict[str, Any] = {}
    for name, survived in sorted(reached.items()):
        if survived[0] == 0:
            continue
        took = np.array(walked[name])
        row[name] = {
            "positions": int(survived[0]),
            "agree": [round(float(x), 4) for x in survived[1:] / np.maximum(survived[:-1], 1)],
            "emitted": round(float(1 + survived[1:].sum() / survived[0]), 4),
            "walk": round(float(np.mean(walked[name])) + 1, 4),
            "walk_by_position": [round(float(np.mean(took > j)), 4) for j in range(WALK)],
        }
    return row

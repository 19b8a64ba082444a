"""What a drafter's logits say of its next token, by a program for each row, as `read_logits` does.

A row is read once. Blocks of it are joined as they come: with m the largest logit so far, what is
kept is Z = sum exp(x - m) and T = sum (x - m) exp(x - m), by which log p1 = -log Z and the entropy
is log Z - T / Z. Neither is a difference of large numbers, so float32 is enough.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 8192, 16
"""The columns that a program looks at side by side, 16 to a thread."""
VECTOR = 16
"""Rows that begin at multiples of so many columns are loaded in whole vectors."""


@triton.jit(
    do_not_specialize=["row_stride"],
    do_not_specialize_on_alignment=["offsets", "draft_step", "tokens", "confidences"],
)
def read(
    logits: tl.tensor,
    row_stride: tl.tensor,
    offsets: tl.tensor,
    draft_step: tl.tensor,
    tokens: tl.tensor,
    confidences: tl.tensor,
    step_stride: tl.tensor,
    columns: tl.constexpr,
    block: tl.constexpr,
    vector: tl.constexpr,
    each: tl.constexpr,
    has_offsets: tl.constexpr,
) -> None:
    """Fill in a row's token, and its confidences at the token's place in the draft.

    Where a draft has the logits of `each` token, one behind another, each has a place of its own.
    """
    row = tl.program_id(0)
    line = logits + tl.multiple_of(row.to(tl.int64) * row_stride, vector)
    lowest, zero = -float("inf"), tl.zeros((), tl.float32)
    best, second = zero + lowest, zero + lowest
    token = tl.zeros((), tl.int32)
    first_nan = token + columns
    total, weighted = zero, zero
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        x = tl.load(line + column, mask=column < columns, other=lowest).to(tl.float32)
        is_nan = x != x
        first_nan = tl.minimum(first_nan, tl.min(tl.where(is_nan, column, columns), 0))
        x = tl.where(is_nan, lowest, x)
        # Of equal logits the first one counts, and the others are second to it.
        top = tl.max(x, 0)
        at = tl.min(tl.where(x == top, column, columns), 0)
        runner_up = tl.max(tl.where(column == at, lowest, x), 0)
        token = tl.where(top > best, at, token)
        second = tl.maximum(tl.minimum(best, top), tl.maximum(second, runner_up))
        before, best = best, tl.maximum(best, top)
        # As long as all were -inf, both sums are 0, and nothing may be subtracted.
        largest = tl.where(best == lowest, 0.0, best)
        lower = tl.where(before == lowest, 0.0, before - largest)
        below = x - largest
        share = tl.exp(below)
        kept = tl.exp(lower)
        weighted = kept * (weighted + lower * total)
        weighted += tl.sum(tl.where(share > 0, below * share, 0.0), 0)
        total = kept * total + tl.sum(share, 0)
    # torch takes a NaN for the largest, and no row for one of probabilities that has none or +inf.
    token = tl.where(first_nan < columns, first_nan, token)
    unsound = (first_nan < columns) | (best == lowest) | (best == -lowest)
    nothing = zero + float("nan")
    log_total = tl.log(tl.where(unsound, 1.0, total))
    entropy = log_total - weighted / tl.where(unsound, 1.0, total)
    place = tl.load(draft_step + row if each > 1 else draft_step).to(tl.int64)
    said = confidences + place * step_stride + row // each * 3
    tl.store(said, tl.where(unsound, nothing, 0.0 - log_total))
    tl.store(said + 1, tl.where(unsound, nothing, best - second))
    tl.store(said + 2, tl.where(unsound, nothing, entropy))
    token = token.to(tl.int64)
    if has_offsets:
        token += tl.load(offsets + token)
    tl.store(tokens + row, token)


class LogitsReader:
    """Reads logits into a buffer of (tokens, rows, 3) confidences; see `trace.schema`."""

    def __init__(self, confidences: Tensor) -> None:
        self._confidences = confidences
        self._known: set[tuple[torch.dtype, int]] = set()

    def read(self, logits: Tensor, draft_step: Tensor, offsets: Tensor | None = None) -> Tensor:
        """The rows' tokens; their confidences are filled in at the token's place in the draft.

        `draft_step` is that place, or those of all tokens of each row, one behind another;
        `offsets` is what is added to a token to make it the target's.
        """
        rows, columns = logits.shape
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        kind = logits.dtype, columns
        if kind not in self._known:
            # An engine runs its heads before it serves: whatever comes then is compiled by now.
            self._known.add(kind)
            for vector in (1, VECTOR):
                self._launch(logits[:0], vector, draft_step, offsets)
        # A single row is not followed by one, whatever the stride says.
        vector = VECTOR if rows == 1 or logits.stride(0) % VECTOR == 0 else 1
        return self._launch(logits, vector, draft_step, offsets)

    def _launch(
        self, logits: Tensor, vector: int, draft_step: Tensor, offsets: Tensor | None
    ) -> Tensor:
        rows, columns = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
        read[(rows,)](
            logits,
            logits.stride(0),
            tokens if offsets is None else offsets,
            draft_step,
            tokens,
            self._confidences,
            self._confidences.stride(0),
            columns=columns,
            block=min(BLOCK, triton.next_power_of_2(columns)),
            vector=vector,
            each=len(self._confidences) if draft_step.ndim else 1,
            has_offsets=offsets is not None,
            num_warps=WARPS,
        )
        return tokens

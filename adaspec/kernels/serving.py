"""The kernels beside the choice: reading logits, packing drafts and a report, trimming drafts.

`read` says, for each row, what `read_logits` says of a drafter's next token. It reads a row once.
Blocks of it are joined as they come: with m the largest logit so far, what is kept is
Z = sum exp(x - m) and T = sum (x - m) exp(x - m), by which log p1 = -log Z and the entropy is
log Z - T / Z. Neither is a difference of large numbers, so float32 is enough.

`pack` fills in a step's drafts, and what the host is told of them, a row per program.
`adaspec.vllm.session.report` says what it means, and launches it.

`trim` says, in one program, which drafted tokens a step verifies: as many as the budget holds, the
likeliest of all rows, of equal ones those of the first rows. Survival never rises along a draft, so
what is taken of a row is its beginning. The least survival that is taken is found digit by digit,
as its bits are ordered as the numbers are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaspec.kernels.layout import GAINS, device

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


CONTEXT, SAMPLED, REJECTED, NEURAL, LENGTH, GAIN = map(tl.constexpr, range(6))
NUMBERS = tl.constexpr(GAIN.value + GAINS.value)
"""The facts that are one number per row, those of `adaspec.vllm.session.report.SINGLE`; then the
gains; and how many these are together."""


_ANY = (
    "context_stride",
    "drafted_stride",
    "forward_stride",
    "row_stride",
    "vocabulary",
    "forwards",
    "width",
)
"""Numbers that differ from step to step: each would have the kernel compiled once more."""


@device("vllm.session.report.pack_on_host", do_not_specialize=_ANY)
def pack(
    chosen: tl.tuple,
    context_stride: tl.tensor,
    drafted_stride: tl.tensor,
    forward_stride: tl.tensor,
    row_stride: tl.tensor,
    allowed: tl.tensor,
    vocabulary: tl.tensor,
    forwards: tl.tensor,
    width: tl.tensor,
    tokens: tl.tensor,
    survival: tl.tensor,
    report: tl.tensor,
    cap: tl.constexpr,
    lanes: tl.constexpr,
    forward_lanes: tl.constexpr,
    is_limited: tl.constexpr,
) -> None:
    """Fill in a row's draft, its survival and its row of the report."""
    row, column = tl.program_id(0), tl.arange(0, lanes)
    inside, at = column < cap, row * cap + column
    token = tl.load(chosen.tokens + at, mask=inside, other=-1)
    sound = (token >= 0) & (token < vocabulary)
    length = tl.min(tl.where(sound, lanes, column), 0)
    neural = tl.load(chosen.neural + row)
    if is_limited:
        length = tl.minimum(length, tl.load(allowed + row)).to(tl.int32)
    length = tl.where(tl.load(chosen.decides + row), length, 0)
    kept = column < length
    token = tl.where(kept, token, 0)
    reached = tl.load(chosen.survival + at, mask=kept, other=0.0).to(tl.float32)
    tl.store(tokens + at, token, mask=inside)
    tl.store(survival + at, reached, mask=inside)

    line = report + row * width
    tl.store(line + CONTEXT, tl.load(chosen.context + row * context_stride).to(tl.float32))
    tl.store(line + SAMPLED, tl.load(chosen.sampled + row).to(tl.float32))
    tl.store(line + REJECTED, tl.load(chosen.rejected + row).to(tl.float32))
    tl.store(line + NEURAL, tl.minimum(neural, length).to(tl.float32))
    tl.store(line + LENGTH, length.to(tl.float32))
    for at in tl.static_range(GAINS):
        gain = tl.load(chosen.gain + row * GAINS + at)
        tl.store(line + GAIN + at, gain.to(tl.float32))

    line += NUMBERS
    emits = column <= cap
    emitted = tl.load(chosen.emitted + row * (cap + 1) + column, mask=emits, other=-1)
    tl.store(line + column, emitted.to(tl.float32), mask=emits)
    line += cap + 1
    tl.store(line + column, token.to(tl.float32), mask=inside)
    line += cap
    tl.store(line + column, reached, mask=inside)

    line += cap
    forward, fact = tl.arange(0, forward_lanes), tl.arange(0, 4)
    ran = forward < forwards
    drafted = tl.load(chosen.drafted + row * drafted_stride + forward, mask=ran, other=0)
    tl.store(line + forward, drafted.to(tl.float32), mask=ran)
    line += forwards
    known = ran[:, None] & (fact < 3)[None, :]
    confidences = chosen.confidences + row * row_stride
    places = forward[:, None] * forward_stride + fact[None, :]
    said = tl.load(confidences + places, mask=known, other=0.0)
    tl.store(line + forward[:, None] * 3 + fact[None, :], said, mask=known)


DIGIT_BITS = tl.constexpr(8)
DIGITS = tl.constexpr(4)
DIGIT_LANES = tl.constexpr(1 << DIGIT_BITS.value)
LARGEST = tl.constexpr(0x7FFFFFFF)
LANES = 4096
"""The tokens that are looked at side by side."""


@triton.jit
def _ranks(
    survival: tl.tensor,
    slot_of: tl.tensor,
    scheduled: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    cap: tl.constexpr,
    lanes: tl.constexpr,
) -> tl.tensor:
    """(rows, lanes) the order of drafted tokens by their survival, -1 where none is scheduled."""
    column = tl.arange(0, lanes)[None, :]
    slot = tl.load(slot_of + row, mask=row < rows, other=0).to(tl.int64)
    length = tl.load(scheduled + row, mask=row < rows, other=0)
    is_drafted = (column < length[:, None]) & (column < cap)
    reached = tl.load(survival + slot[:, None] * cap + column, mask=is_drafted, other=0.0)
    # A number that is none, or below 0, is as good as 0.
    rank = tl.where(reached > 0, reached, 0.0).to(tl.int32, bitcast=True)
    return tl.where(is_drafted, rank, -1)


@device(
    "vllm.v2.trimming.trim_on_host",
    do_not_specialize=["rows", "budget", "scheduled_in_all", "ends"],
    do_not_specialize_on_alignment=["slot_of", "facts", "cu_num_logits", "query_start_loc"],
)
def trim(
    survival: tl.tensor,
    slot_of: tl.tensor,
    facts: tl.tensor,
    rows: tl.tensor,
    budget: tl.tensor,
    scheduled_in_all: tl.tensor,
    cu_num_logits: tl.tensor,
    query_start_loc: tl.tensor,
    ends: tl.tensor,
    bonus: tl.constexpr,
    cap: tl.constexpr,
    lanes: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Fill in where each row's logits and its tokens begin, and where the last ones end."""
    threshold, ties = tl.full((), -1, tl.int32), tl.full((), 0, tl.int32)
    if budget < scheduled_in_all:
        left, known = tl.full((), 0, tl.int32) + budget, tl.full((), 0, tl.int32)
        digits = tl.arange(0, DIGIT_LANES)
        for place in tl.static_range(DIGITS):
            shift = (DIGITS - 1 - place) * DIGIT_BITS
            counts = tl.zeros((DIGIT_LANES,), tl.int32)
            for start in range(0, rows, block):
                row = start + tl.arange(0, block)
                rank = _ranks(survival, slot_of, facts, row, rows, cap, lanes)
                rank = tl.reshape(rank, (block * lanes,))
                upper = rank >> shift
                counts += tl.histogram(
                    upper & (DIGIT_LANES - 1),
                    DIGIT_LANES,
                    mask=(rank >= 0) & ((upper >> DIGIT_BITS) == known),
                )
            # So many have this digit or a greater one.
            reaching = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
            digit = tl.max(tl.where(reaching >= left, digits, 0), 0)
            left -= tl.sum(tl.where(digits > digit, counts, 0), 0)
            known = (known << DIGIT_BITS) | digit
        threshold = tl.where(budget > 0, known, LARGEST)
        ties = tl.where(budget > 0, left, 0)

    logits_end, tokens_end = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    tl.store(cu_num_logits, logits_end)
    tl.store(query_start_loc, tokens_end)
    for start in range(0, rows, block):
        row = start + tl.arange(0, block)
        rank = _ranks(survival, slot_of, facts, row, rows, cap, lanes)
        above = tl.sum((rank > threshold).to(tl.int32), 1)
        equal = tl.sum(((rank == threshold) & (rank >= 0)).to(tl.int32), 1)
        earlier = tl.cumsum(equal, 0) - equal
        verified = above + tl.minimum(tl.maximum(ties - earlier, 0), equal)
        ties = tl.maximum(ties - tl.sum(equal, 0), 0)
        inside = row < rows
        others = tl.load(facts + rows + row, mask=inside, other=0)
        of_logits = tl.where(inside, verified + bonus, 0)
        of_tokens = tl.where(inside, verified + others, 0)
        at = row + 1
        tl.store(cu_num_logits + at, logits_end + tl.cumsum(of_logits, 0), mask=inside)
        tl.store(query_start_loc + at, tokens_end + tl.cumsum(of_tokens, 0), mask=inside)
        logits_end += tl.sum(of_logits, 0)
        tokens_end += tl.sum(of_tokens, 0)
    for start in range(rows + 1, ends, block):
        at = start + tl.arange(0, block)
        tl.store(query_start_loc + at, tl.zeros((block,), tl.int32) + tokens_end, mask=at < ends)


def launch(
    survival: Tensor,
    slots: Tensor,
    facts: Tensor,
    budget: int,
    scheduled: int,
    bonus: int,
    cu_num_logits: Tensor,
    query_start_loc: Tensor,
) -> None:
    """Fill in `cu_num_logits` and `query_start_loc` as `vllm.v2.trimming.trim_on_host` does.

    Of the `facts`, `scheduled` drafted tokens in all. Any sizes run the same compiled program.
    """
    cap = survival.shape[1]
    lanes = triton.next_power_of_2(cap)
    assert survival.is_contiguous() and facts.is_contiguous()
    assert facts.dtype == cu_num_logits.dtype == query_start_loc.dtype == torch.int32
    trim[(1,)](
        survival,
        slots,
        facts,
        facts.shape[1],
        budget,
        scheduled,
        cu_num_logits,
        query_start_loc,
        len(query_start_loc),
        bonus=bonus,
        cap=cap,
        lanes=lanes,
        block=max(LANES // lanes, 1),
        num_warps=8,
    )

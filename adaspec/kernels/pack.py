"""A step's drafts, and what the host is told of them, a row per program.

`adaspec.vllm.session.report` says what it means, and launches it.
"""

from __future__ import annotations

import triton.language as tl

from adaspec.kernels.layout import GAINS
from adaspec.kernels.twins import device

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

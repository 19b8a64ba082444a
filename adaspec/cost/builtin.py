"""The builtin cost models."""

from __future__ import annotations

import numpy as np

from adaspec.cost.model import CostModel, line

TARGET = "meta-llama/Llama-3.1-8B-Instruct"
HARDWARE = "1x NVIDIA H100"

_DRAFTER_SHARE = 0.036
"""The drafter's layer and its input projection have so much of the target's weights."""

_DECIDE_S = 36e-6 + 2 * 14e-6
"""An estimate of a step's kernels with two forwards of the drafter (see `kernels`): they take all
rows at once."""

# vLLM's default sizes of CUDA graphs.
_CAPTURED = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
# Fitted to 88 kinds of step that eval/reports/gpu-h100 timed on V2 (see `cost.fit`).
_INSIDE_TOKENS, _INSIDE_S = (8, 64, 192, 512), (6.68e-3, 7.17e-3, 7.99e-3, 12.21e-3)
_OUTSIDE_TOKENS, _OUTSIDE_S = (513, 2048), (24.47e-3, 44.72e-3)

H100_LLAMA_3_1_8B = CostModel(
    name="h100-llama-3.1-8b",
    tokens=(*_CAPTURED, *_OUTSIDE_TOKENS),
    seconds=(*np.interp(_CAPTURED, _INSIDE_TOKENS, _INSIDE_S).tolist(), *_OUTSIDE_S),
    largest_graph=_CAPTURED[-1],
    context_s=46.5e-9,
    forward_s=0.825e-3,
    forward_per_row_s=8.75e-6,
    outside_graphs_s=3.03e-3,
    draft_prompt_s=_DRAFTER_SHARE * 13.2e-6,
    decide_s=_DECIDE_S,
    target=TARGET,
    hardware=HARDWARE,
)
"""Measured on vLLM's runner V2."""

_PAPER_TOKEN_S = 2.10103129e-5
H100_LLAMA_3_1_8B_PAPER = line(
    "h100-llama-3.1-8b-paper",
    # With 1.2 ms of the host's work in each step.
    5.88590713e-3 + 1.20683946e-3,
    _PAPER_TOKEN_S,
    context_s=3.92645679e-8,
    # The paper's 2.135 ms was fitted with drafts of 3 tokens, so one forward is a third of it.
    forward_s=0.7118e-3,
    forward_context_s=2.37768493e-9,
    draft_prompt_s=_DRAFTER_SHARE * _PAPER_TOKEN_S,
    decide_s=_DECIDE_S,
    target=TARGET,
    hardware=HARDWARE,
)
"""The constants of *Speculative Decoding: Performance or Illusion?*, charged per forward."""

DEFAULT = H100_LLAMA_3_1_8B.name

BUILTIN = {cost.name: cost for cost in (H100_LLAMA_3_1_8B, H100_LLAMA_3_1_8B_PAPER)}
"""The cost models that can be named without a file."""

"""The builtin cost models, and the public simulator's constants, from which one is made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaspec.cost.model import CostModel, HostTimes, line

TARGET = "meta-llama/Llama-3.1-8B-Instruct"
HARDWARE = "1x NVIDIA H100"


@dataclass(frozen=True, slots=True)
class SimulatorConstants:
    """The charges of the public simulator of *Speculative Decoding: Performance or Illusion?*.

    verify = fixed + per_token * tokens + per_kv * context_tokens. An EAGLE draft takes
    draft_fixed + draft_per_kv * context_tokens + draft_per_token * tokens, however long it is, and
    an n-gram draft costs a share of its verification. This is no `CostModel`: the simulator
    charges drafting per step instead of per forward, and charges EAGLE as if it were n-gram once
    both are in use. Only the protocol that reproduces the simulator uses these constants.
    """

    fixed_s: float = 5.88590713e-3
    per_token_s: float = 2.10103129e-5
    per_kv_s: float = 3.92645679e-8
    overhead_s: float = 1.20683946e-3
    draft_fixed_s: float = 2.13526175e-3
    draft_per_kv_s: float = 2.37768493e-9
    draft_per_token_s: float = 8.41429603e-7
    ngram_share_of_verify: float = 0.005875


SIMULATOR = SimulatorConstants()

_DRAFTER_SHARE = 0.036
"""The drafter's layer and its input projection have so much of the target's weights."""

_SYNC = HostTimes(
    # The public simulator's: the host's work for a step.
    overhead_s=SIMULATOR.overhead_s,
    # Fitted to eval/reports/decide, which another machine's processor measured.
    lookup_s=9.0e-6,
    lookup_per_row_s=0.56e-6,
    decide_s=31e-6,
    decide_per_row_s=2.4e-6,
    # An estimate: a wait for the device, a copy of a few KB and the next launch.
    read_draft_s=30e-6,
    revise_s=9.2e-6,
    revise_per_row_s=0.73e-6,
)
_ASYNC = HostTimes(
    # The host's work for a step is done while the one before it runs. What remains are kernels,
    # whose times are estimates.
    lookup_s=17e-6,
    decide_s=36e-6,
    revise_s=14e-6,
)

# vLLM's default sizes of CUDA graphs.
_CAPTURED = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
# Fitted to 88 kinds of step that eval/reports/gpu-h100 timed on V2 (see `cost.fit`).
_INSIDE_TOKENS, _INSIDE_S = (8, 64, 192, 512), (6.68e-3, 7.17e-3, 7.99e-3, 12.21e-3)
_OUTSIDE_TOKENS, _OUTSIDE_S = (513, 2048), (24.47e-3, 44.72e-3)

H100_LLAMA_3_1_8B = CostModel(
    name="h100-llama-3.1-8b",
    tokens=(*_CAPTURED, *_OUTSIDE_TOKENS),
    seconds=(
        *np.interp(_CAPTURED, _INSIDE_TOKENS, _INSIDE_S).tolist(),
        *_OUTSIDE_S,
    ),
    largest_graph=_CAPTURED[-1],
    context_s=46.5e-9,
    forward_s=0.825e-3,
    forward_per_row_s=8.75e-6,
    outside_graphs_s=3.03e-3,
    draft_prompt_s=_DRAFTER_SHARE * 13.2e-6,
    sync=_SYNC,
    async_=_ASYNC,
    target=TARGET,
    hardware=HARDWARE,
)
"""Measured on vLLM's runner V2."""

H100_LLAMA_3_1_8B_PAPER = line(
    "h100-llama-3.1-8b-paper",
    SIMULATOR.fixed_s,
    SIMULATOR.per_token_s,
    context_s=SIMULATOR.per_kv_s,
    # The simulator's 2.135 ms was fitted with drafts of 3 tokens, so one forward is a third of it.
    forward_s=0.7118e-3,
    forward_context_s=SIMULATOR.draft_per_kv_s,
    draft_prompt_s=_DRAFTER_SHARE * SIMULATOR.per_token_s,
    sync=_SYNC,
    async_=_ASYNC,
    target=TARGET,
    hardware=HARDWARE,
)
"""The public simulator's constants, charged per forward: for comparison with the paper."""

DEFAULT = H100_LLAMA_3_1_8B.name
PROTOCOL = "specdecode-bench"

BUILTIN = {cost.name: cost for cost in (H100_LLAMA_3_1_8B, H100_LLAMA_3_1_8B_PAPER)}
"""The cost models that can be named without a file."""

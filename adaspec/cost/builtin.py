"""The builtin cost models, and the public simulator's constants, from which they are made."""

from __future__ import annotations

from dataclasses import dataclass

from adaspec.cost.model import CostModel

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

H100_LLAMA_3_1_8B = CostModel(
    name="h100-llama-3.1-8b",
    fixed_s=SIMULATOR.fixed_s,
    per_token_s=SIMULATOR.per_token_s,
    per_kv_s=SIMULATOR.per_kv_s,
    overhead_s=SIMULATOR.overhead_s,
    # An assumption: the host's work for a step is done while the one before it runs.
    async_overhead_s=0.0,
    # The drafter's layer and its input projection have 3.6% of the target's weights.
    draft_prompt_s=0.036 * SIMULATOR.per_token_s,
    # Fitted to eval/reports/decide, which another machine's processor measured.
    lookup_s=9.0e-6,
    lookup_per_row_s=0.56e-6,
    decide_s=31e-6,
    decide_per_row_s=2.4e-6,
    revise_s=9.2e-6,
    revise_per_row_s=0.73e-6,
    # Estimates: a wait for the device, a copy of a few KB and the next launch; and kernels.
    listen_s=30e-6,
    async_lookup_s=17e-6,
    async_decide_s=36e-6,
    async_revise_s=14e-6,
    # The simulator's 2.135 ms was fitted with drafts of 3 tokens, so one forward is a third of it.
    draft_fixed_s=0.7118e-3,
    draft_per_kv_s=SIMULATOR.draft_per_kv_s,
    keep_alive_forwards=1,
    target=TARGET,
    hardware=HARDWARE,
)

DEFAULT = H100_LLAMA_3_1_8B.name
PROTOCOL = "specdecode-bench"

BUILTIN = {H100_LLAMA_3_1_8B.name: H100_LLAMA_3_1_8B}
"""The cost models that can be named without a file."""

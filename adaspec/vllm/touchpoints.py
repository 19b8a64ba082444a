"""Where adaspec meets vLLM: the names by which they know each other.

Nothing but the standard library is imported here, for the plug-in needs it in every vLLM.
"""

from __future__ import annotations

import os

METHOD = "adaspec"
ATTRIBUTE = "adaspec_options"
"""Where a `SpeculativeConfig` carries our options: off vLLM's schema and out of its hashes."""

ENGINE_ARGS = "vllm.engine.arg_utils"
RUNNER = "vllm.v1.worker.gpu_model_runner"

V2_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
FORCED_VARIABLE = "ADASPEC_FORCED_V1"
"""Stands in the environment while the one above is ours, and not the user's."""

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""What this process may use as it begins: on a CPU vLLM's workers bind themselves to less later."""


def hand_back_runner() -> None:
    """Let vLLM choose its model runner again, where an engine before had to have V1."""
    if os.environ.pop(FORCED_VARIABLE, None) is not None:
        os.environ.pop(V2_VARIABLE, None)

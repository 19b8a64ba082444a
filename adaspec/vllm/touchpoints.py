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

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""What this process may use as it begins: on a CPU vLLM's workers bind themselves to less later."""

"""vLLM's workers, with a session in the model runner of each: `worker_cls` names one of these."""

from __future__ import annotations

import functools
import pkgutil
from typing import Any

from adaspec.errors import ServingError
from adaspec.vllm.patching import METHOD, OPTIONS_ATTRIBUTE

BASES = {
    "GPUWorker": "vllm.v1.worker.gpu_worker.Worker",
    "CPUWorker": "vllm.v1.worker.cpu_worker.CPUWorker",
    "XPUWorker": "vllm.v1.worker.xpu_worker.XPUWorker",
}
"""By the name of a class of this module, vLLM's own, of which it is made when it is asked for."""


def served_by(worker: str) -> str:
    """The path of our class for vLLM's worker of this path."""
    for name, base in BASES.items():
        if worker in (base, f"{__name__}.{name}"):
            return f"{__name__}.{name}"
    raise ServingError(
        f"method '{METHOD}' does not go with --worker-cls {worker}: leave it out, as the method "
        "has workers of its own"
    )


class _Serving:
    """What differs from vLLM's own workers."""

    model_runner: Any

    def init_device(self) -> None:
        """As vLLM does, then put a session into the model runner that was made."""
        super().init_device()  # type: ignore[misc]
        runner = self.model_runner
        options = getattr(runner.speculative_config, OPTIONS_ATTRIBUTE)
        if options.runner == "V2":
            from adaspec.vllm.v2.attachment import attach
        else:
            from adaspec.vllm.v1 import attach
        attach(runner, options)


@functools.cache
def __getattr__(name: str) -> Any:
    """The class of this name: vLLM's is imported in the process that runs it, and nowhere else."""
    if name not in BASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return type(name, (_Serving, pkgutil.resolve_name(BASES[name])), {"__module__": __name__})

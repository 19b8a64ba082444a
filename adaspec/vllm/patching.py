"""How adaspec patches vLLM, the names that takes, and two workarounds for 0.32 and 0.33.

Only the standard library is imported.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

METHOD = "adaspec"
OPTIONS_ATTRIBUTE = "adaspec_options"
"""The attribute of a `SpeculativeConfig` that carries adaspec's options, outside of vLLM's schema
and hashes."""
SALT_ATTRIBUTE = "adaspec_cache_salt"
"""The attribute of a `NewRequestData` by which our scheduler tells workers of a `cache_salt`."""
ENGINE_ARGS = "vllm.engine.arg_utils"
EXECUTOR = "vllm.v1.executor.abstract"
SAMPLING_PARAMS = "vllm.sampling_params"
SERVE_COMMAND = "vllm.entrypoints.cli.serve"
RUNNER_V2 = "vllm.v1.worker.gpu.model_runner"
V2_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
FORCED_VARIABLE = "ADASPEC_FORCED_V1"
"""Set while `V2_VARIABLE` was set by adaspec and not by the user."""
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""The cores that this process starts with; on a CPU, vLLM's workers bind themselves to fewer."""
STOP_S = 15.0
"""How long an engine may take to end once it was told to."""
_MARK = "__adaspec__"
"""An attribute of functions that adaspec has wrapped."""


def in_one_line(error: BaseException, max_length: int | None = None) -> str:
    """An error's type and text, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:max_length]


def release_runner() -> None:
    """Let vLLM choose its model runner again if adaspec had forced V1 for an earlier engine."""
    if os.environ.pop(FORCED_VARIABLE, None) is not None:
        os.environ.pop(V2_VARIABLE, None)


def wrap(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a function, if it exists, by `replacement(original, ...)`, but only once."""
    original = getattr(owner, name, None)
    if owner is None or original is None or getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(patched, _MARK, True)
    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(patched) if is_static else patched)


def shield_llvmlite() -> None:
    """Let vLLM inspect the globals of every module although numba is imported.

    On CPU, vLLM calls `vars(x).get("kernel")` on everything with a `__dict__`. llvmlite's
    handle returns a function for any name, `__dict__` included, and vLLM does not start.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    functions = getattr(getattr(ffi, "lib", None), "_fntab", None)
    if isinstance(functions, dict):
        functions["__dict__"] = {}


def let_engines_write() -> None:
    """Give engines that this process stops the time to write what they hold.

    Without a `--shutdown-timeout`, vLLM tells them to abort their requests and kills them at once,
    but on ROCm, where it waits as long as here. Who ends earlier is not waited for.
    """

    def shutdown(original: Any, manager: Any, timeout: float | None = None) -> None:
        if timeout == 0 and getattr(manager, "_request_shutdown_timeout", 0) == 0:
            timeout = STOP_S
        original(manager, timeout)

    manager = getattr(
        importlib.import_module("vllm.v1.engine.utils"), "CoreEngineProcManager", None
    )
    wrap(manager, "shutdown", shutdown)

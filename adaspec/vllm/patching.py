"""How adaspec patches vLLM, and the names it needs for that; imports the standard library alone."""

from __future__ import annotations

import functools
import inspect
import os
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

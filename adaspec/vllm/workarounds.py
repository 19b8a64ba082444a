"""Workarounds for vLLM: 0.32 needs them, and 0.33 by its source."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

from adaspec.vllm.patching import wrap

log = logging.getLogger("vllm.adaspec")

STOP_S = 15.0
"""How long an engine may take to end once it was told to."""


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

"""Opens a vLLM engine for a command of adaspec, with errors of one line."""

from __future__ import annotations

import os
from typing import Any

from adaspec.errors import AdaspecError, ServingError
from adaspec.vllm.patching import in_one_line
from adaspec.vllm.plugin import register


def prepare_vllm(purpose: str) -> None:
    """Import vLLM and register adaspec with it; raises a `ServingError` if vLLM is missing."""
    # By default vLLM logs to standard output, which is for the command's result.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise ServingError(
            f"{purpose} needs vLLM, which cannot be imported here ({error}): install it beside "
            "adaspec, then see 'adaspec doctor'"
        ) from error
    from adaspec.vllm.workarounds import shield_llvmlite

    register()
    shield_llvmlite()


def open_engine(
    model: str, speculative_config: dict[str, Any] | None, arguments: dict[str, Any]
) -> Any:
    """Start vLLM's `LLM` of a model; raises an `AdaspecError` with the reason if it fails."""
    from vllm import LLM

    from adaspec.vllm.head_kind import check_there

    check_there("model", model)
    try:
        return LLM(model, speculative_config=speculative_config, **arguments)
    except AdaspecError:
        raise
    except Exception as error:
        why = in_one_line(error, 600)
        raise ServingError(f"vLLM does not start with '{model}': {why}") from error

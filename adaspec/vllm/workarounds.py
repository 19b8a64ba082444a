"""Workarounds for vLLM: 0.32 needs them, and 0.33 by its source."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

from adaspec.vllm.patching import wrap

log = logging.getLogger("vllm.adaspec")

_SAMPLER = "vllm.v1.sample.rejection_sampler"
_NO_LIMIT = 1 << 40
STOP_S = 15.0
"""How long an engine may take to end once it was told to."""


def draft_to_the_end(runner: Any) -> int:
    """Make the runner draft up to the maximum length; returns the drafter's limit on positions.

    vLLM stops drafting for all requests when one of them comes within CAP of the end. This is not
    needed with adaspec: the scheduler cuts each request's draft, and the drafter deals with
    positions beyond its limit.
    """
    limit = int(runner.effective_drafter_max_model_len)
    runner.effective_drafter_max_model_len = _NO_LIMIT
    return limit


def detach_adapters(drafter: Any, target: Any) -> None:
    """Make a drafter use its target's layers without adapters.

    With LoRA, the embedding that a head borrows is wrapped, and the wrapper expects as many tokens
    as the target has. A draft has fewer, which fails on CPU; elsewhere, a row gets another row's
    adapter.
    """
    shared = {id(module) for module in target.modules()}
    parents = [module for module in drafter.modules() if id(module) not in shared]
    for parent in parents:
        for name, child in list(parent.named_children()):
            base = getattr(child, "base_layer", None)
            if base is not None and type(child).__module__.startswith("vllm.lora."):
                setattr(parent, name, base)


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


def fix_expansion() -> None:
    """Give vLLM's rejection sampler the right temperature of each row on CPU.

    Without Triton, vLLM's `_expand_kernel_impl` writes to a copy of any output that does not have
    64-bit integers, and drops the copy. If a draft is verified and any row samples, the logits of
    all rows are then divided by uninitialised memory.
    """
    import torch

    if not importlib.import_module("vllm.platforms").current_platform.is_cpu():
        return

    def expand_batch_to_tokens(
        _: Any,
        x: Any,
        cu_num_tokens: Any,
        num_tokens: int,
        replace_from: int = 0,
        replace_to: int = 0,
    ) -> Any:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        replaced = torch.where(x == replace_from, replace_to, x).to(x.dtype)
        return replaced.repeat_interleave(counts, output_size=num_tokens)

    wrap(importlib.import_module(_SAMPLER), "expand_batch_to_tokens", expand_batch_to_tokens)


def fix_undrafted_steps() -> None:
    """Allow a step that verifies no draft while one of its rows samples by top-k.

    With speculation configured, vLLM sends every step through its rejection sampler. Without
    Triton, the sampler then takes the largest top-k of no tokens, which ends the engine.
    """

    def apply_sampling_constraints(original: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
        return original(logits, *args, **kwargs) if logits.shape[0] else logits

    sampler = importlib.import_module(_SAMPLER)
    wrap(sampler, "apply_sampling_constraints", apply_sampling_constraints)

"""What is worked around in vLLM, with the version that needs it."""

from __future__ import annotations

import importlib
import logging
import sys
from types import SimpleNamespace
from typing import Any

from adaspec.vllm.patching import wrap

log = logging.getLogger("vllm.adaspec")

_SAMPLER = "vllm.v1.sample.rejection_sampler"
_NO_LIMIT = 1 << 40


def draft_to_the_end(runner: Any) -> int:
    """Have the runner draft up to the longest length; returns the drafter's limit on positions.

    vLLM drafts for no request once one comes within CAP of the end. With adaspec the scheduler cuts
    each request's draft, and the drafter deals with positions beyond its limit.
    """
    limit = getattr(runner, "effective_drafter_max_model_len", None)
    if limit is None:
        config = runner.speculative_config.draft_model_config
        return int(config.max_model_len or runner.max_model_len)
    runner.effective_drafter_max_model_len = _NO_LIMIT
    return int(limit)


def detach_adapters(drafter: Any, target: Any) -> int:
    """Have a drafter use layers of its target without adapters; returns how many layers.

    With LoRA, the embedding that a head borrows is wrapped, and the wrapper expects as many tokens
    as the target has. A draft's are fewer, which fails on CPU and elsewhere gives a row another
    row's adapter.
    """
    shared = {id(module) for module in target.modules()}
    parents = [module for module in drafter.modules() if id(module) not in shared]
    count = 0
    for parent in parents:
        for name, child in list(parent.named_children()):
            base = getattr(child, "base_layer", None)
            if base is not None and type(child).__module__.startswith("vllm.lora."):
                setattr(parent, name, base)
                count += 1
    return count


def use_worker_threads() -> None:
    """Compute in this process with as many threads as vLLM gives a server's worker on a CPU.

    It keeps a core for the rest of the server; an engine in one process would use that one too.
    Nothing happens on other platforms, or where vLLM is told to bind nothing.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    try:
        from vllm.utils.ompmultiprocessing import OMPProcessManager
    except ImportError:  # older versions bind in the worker, in one process too
        return
    parallel = SimpleNamespace(
        local_world_size=1, data_parallel_rank_local=None, _api_process_count=1
    )
    config: Any = SimpleNamespace(parallel_config=parallel, kv_transfer_config=None)
    try:
        bound = OMPProcessManager(config)
        cores = bound.cpu_lists[0] if bound.cpu_lists else None
    except (AttributeError, AssertionError, IndexError, RuntimeError, TypeError) as error:
        log.warning("adaspec: how many threads a server's worker has is not known: %r", error)
        return
    if cores:
        import torch

        torch.set_num_threads(len(cores))


def shield_llvmlite() -> None:
    """Let vLLM walk over every module's globals although numba is imported.

    On CPU, vLLM 0.32 asks `vars(x).get("kernel")` of whatever has a `__dict__`; llvmlite's handle
    answers for any name with a function, and vLLM does not start.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    names = getattr(getattr(ffi, "lib", None), "_fntab", None)
    if isinstance(names, dict):
        names["__dict__"] = {}


def fix_expansion() -> None:
    """Let vLLM's rejection sampler know each row's temperature on CPU.

    Without Triton, vLLM 0.32's `_expand_kernel_impl` writes to a copy of any output that is not of
    64-bit integers, and drops it: where a draft is verified and any row samples, the logits of all
    rows are divided by whatever the memory held.
    """
    import torch

    if not importlib.import_module("vllm.platforms").current_platform.is_cpu():
        return
    try:
        kernel = importlib.import_module("vllm.utils.cpu_triton_utils")._expand_kernel_impl
        sampler = importlib.import_module(_SAMPLER)
    except (ImportError, AttributeError):
        return
    output = torch.full((2,), -1.0)
    kernel(output, torch.tensor([3.0]), torch.tensor([2], dtype=torch.int32), 0, 0)
    if bool((output == 3.0).all()):
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

    wrap(sampler, "expand_batch_to_tokens", expand_batch_to_tokens)


def fix_undrafted_steps() -> None:
    """Let a step verify nothing although a row of it samples by top-k.

    With speculation configured vLLM 0.32 sends every step through its rejection sampler, and
    without Triton looks for the largest top-k among those of no tokens, which ends the engine.
    """

    def apply_sampling_constraints(original: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
        return original(logits, *args, **kwargs) if logits.shape[0] else logits

    try:
        wrap(
            importlib.import_module(_SAMPLER),
            "apply_sampling_constraints",
            apply_sampling_constraints,
        )
    except ImportError:
        return

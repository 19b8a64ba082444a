"""What is known of vLLM's versions: which are supported, and what is put right in them.

A new version is judged by its number here, then by every patched and called name (`signatures`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from adaspec.errors import ServingError
from adaspec.trace.identity import vocabulary_hash
from adaspec.vllm.exposition import expose
from adaspec.vllm.options import read_options
from adaspec.vllm.signatures import check_arguments, installed_version
from adaspec.vllm.touchpoints import (
    ATTRIBUTE,
    FORCED_VARIABLE,
    METHOD,
    V2_VARIABLE,
    hand_back_runner,
)
from adaspec.vllm.translation import translated

log = logging.getLogger("vllm.adaspec")

OLDEST, NEWEST = (0, 24), (0, 33)
"""The versions whose source has been read."""
RAN = ((0, 32),)
"""The versions that the engine tests have run on."""

_SAMPLER = "vllm.v1.sample.rejection_sampler"


def version_problem(version: str) -> str | None:
    """Why that version cannot be served with, in one line; None if it can."""
    words = version.split(".")
    try:
        found = int(words[0]), int(words[1])
    except (IndexError, ValueError):
        return f"vLLM {version}: no version number that adaspec can read"
    if OLDEST <= found <= NEWEST:
        return None
    known = f"{_shown(OLDEST)} to {_shown(NEWEST)}"
    return (
        f"vLLM {version} is not supported: adaspec knows {known}; install one of these, or an "
        "adaspec that knows yours"
    )


def was_run(version: str) -> bool:
    """Whether the engine tests have run on that version, not only read its source."""
    return any(version.startswith(f"{_shown(each)}.") for each in RAN)


def speculative_config(
    original: Callable[..., Any], args: Any, target_model_config: Any, target_parallel_config: Any
) -> Any:
    """What `EngineArgs.create_speculative_config` answers where method 'adaspec' was asked for."""
    problem = version_problem(installed_version())
    if problem:
        raise ServingError(problem)
    check_arguments()
    written = args.speculative_config
    flags = {name: getattr(args, name, None) for name in _FLAGS}
    options = dataclasses.replace(
        read_options(_with_flags(written or {}, flags)),
        replicas=target_parallel_config.data_parallel_size,
        vocabulary_hash=vocabulary_of(target_model_config),
    )
    if options.mode == "off":
        hand_back_runner()
        return None
    _check_combination(args, target_model_config, target_parallel_config)
    config, options = translated(options, target_model_config)
    # vLLM writes into its arguments; whoever makes a second config of them must find ours again.
    args.speculative_config = config
    for name in _FLAGS:
        if hasattr(args, name):
            setattr(args, name, None)
    try:
        made = original(args, target_model_config, target_parallel_config)
    finally:
        args.speculative_config = written
        for name, value in flags.items():
            if hasattr(args, name):
                setattr(args, name, value)
    if made.method != config["method"]:
        raise ServingError(
            f"drafter '{config['model']}' is for method '{config['method']}', and vLLM takes it "
            f"for '{made.method}' by its name: give it a path that does not say so"
        )
    shield_llvmlite()
    expose()
    # Model runner V2 and async scheduling never call what we patch, and would not say so.
    if os.environ.get(V2_VARIABLE) != "0":
        os.environ[V2_VARIABLE], os.environ[FORCED_VARIABLE] = "0", "1"
    args.async_scheduling = False
    object.__setattr__(made, ATTRIBUTE, options)
    return made


def vocabulary_of(model_config: Any) -> str | None:
    """The hash of the vocabulary that an engine's tokenizer has; None where it cannot be read."""
    try:
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(model_config)
        return None if tokenizer is None else vocabulary_hash(tokenizer.get_vocab())
    except Exception as error:  # the server's own matter, if it needs one
        log.warning("adaspec: the tokenizer's vocabulary is not known: %r", error)
        return None


def replica_of(parallel: Any, replicas: int) -> int | None:
    """Which one this engine is of several that serve the same; None if it is the only one.

    Engines of a dense model do not know of each other: vLLM tells each that it is alone, and leaves
    only an index behind.
    """
    if replicas == 1:
        return None
    return int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))


def draft_to_the_end(runner: Any) -> int:
    """Have the runner draft up to the longest length; the drafter's own limit on positions.

    vLLM drafts for nobody once one request comes within CAP of the end. Here the scheduler cuts
    each request's draft, and the head deals with positions beyond its own limit.
    """
    limit = getattr(runner, "effective_drafter_max_model_len", None)
    if limit is None:
        config = runner.speculative_config.draft_model_config
        return int(config.max_model_len or runner.max_model_len)
    runner.effective_drafter_max_model_len = _NO_LIMIT
    return int(limit)


_NO_LIMIT = 1 << 40


def part_from_adapters(drafter: Any, target: Any) -> int:
    """Have a drafter use what it shares with its target without adapters; how many layers that is.

    With LoRA, the embedding that a head borrows is wrapped, and the wrapper counts on the target's
    tokens: a draft's are fewer, which fails on CPU and mistakes one row's adapter for another's
    elsewhere.
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


def take_a_workers_threads() -> None:
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
    asked: Any = SimpleNamespace(parallel_config=parallel, kv_transfer_config=None)
    try:
        bound = OMPProcessManager(asked)
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


def mend_expansion() -> bool:
    """Let vLLM's rejection sampler know each row's temperature on CPU; whether it did not before.

    Without Triton, vLLM 0.32's `_expand_kernel_impl` writes to a copy of any output that is not of
    64-bit integers, and drops it: where a draft is verified and any row samples, the logits of all
    rows are divided by whatever the memory held.
    """
    import torch

    platform = importlib.import_module("vllm.platforms").current_platform
    if not platform.is_cpu():
        return False
    try:
        kernel = importlib.import_module("vllm.utils.cpu_triton_utils")._expand_kernel_impl
        sampler = importlib.import_module(_SAMPLER)
        wrong = sampler.expand_batch_to_tokens
    except (ImportError, AttributeError):
        return False
    if getattr(wrong, "__adaspec__", False):
        return True
    output = torch.full((2,), -1.0)
    kernel(output, torch.tensor([3.0]), torch.tensor([2], dtype=torch.int32), 0, 0)
    if bool((output == 3.0).all()):
        return False

    @functools.wraps(wrong)
    def expand_batch_to_tokens(
        x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> Any:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        replaced = torch.where(x == replace_from, replace_to, x).to(x.dtype)
        return replaced.repeat_interleave(counts, output_size=num_tokens)

    vars(expand_batch_to_tokens)["__adaspec__"] = True
    vars(sampler)["expand_batch_to_tokens"] = expand_batch_to_tokens
    return True


def mend_undrafted_steps() -> bool:
    """Let a step verify nothing although a row of it samples by top-k; whether we had to.

    With speculation configured vLLM 0.32 sends every step through its rejection sampler, and
    without Triton looks for the largest top-k among those of no tokens, which ends the engine.
    """
    try:
        sampler = importlib.import_module(_SAMPLER)
        fragile = sampler.apply_sampling_constraints
    except (ImportError, AttributeError):
        return False
    if getattr(fragile, "__adaspec__", False):
        return True

    @functools.wraps(fragile)
    def apply_sampling_constraints(logits: Any, *args: Any, **kwargs: Any) -> Any:
        return fragile(logits, *args, **kwargs) if logits.shape[0] else logits

    vars(apply_sampling_constraints)["__adaspec__"] = True
    vars(sampler)["apply_sampling_constraints"] = apply_sampling_constraints
    return True


_FLAGS = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}


def _with_flags(config: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The config with what `--spec-method` and its kin said; saying a thing twice is refused."""
    merged = dict(config)
    for name, value in flags.items():
        if value is None:
            continue
        key = _FLAGS[name]
        if key in merged:
            raise ServingError(
                f"--{name.replace('_', '-')} and the speculative config's '{key}' say the same: "
                "leave one out"
            )
        merged[key] = value
    return merged


def _check_combination(args: Any, target: Any, parallel: Any) -> None:
    """Refuse what the plug-in cannot serve with, in one line that says what to change."""
    if os.environ.get(V2_VARIABLE, "0").strip().lower() not in ("", "0", "false"):
        raise ServingError(
            f"{V2_VARIABLE}={os.environ[V2_VARIABLE]}: method '{METHOD}' runs on model runner V1: "
            "unset it"
        )
    if getattr(args, "async_scheduling", None):
        raise ServingError(
            f"async scheduling was asked for: method '{METHOD}' decides on tokens that it would "
            "not know yet: leave --async-scheduling out"
        )
    if parallel.pipeline_parallel_size > 1:
        raise ServingError(
            f"pipeline_parallel_size={parallel.pipeline_parallel_size}: method '{METHOD}' needs "
            "the whole model on every rank: use tensor parallelism"
        )
    if parallel.data_parallel_size > 1 and getattr(target, "is_moe", False):
        raise ServingError(
            f"data_parallel_size={parallel.data_parallel_size} with a mixture of experts: its "
            f"ranks must run the drafter in step, which method '{METHOD}' does not: serve one "
            "replica per address"
        )
    if parallel.decode_context_parallel_size > 1:
        raise ServingError(
            f"decode_context_parallel_size={parallel.decode_context_parallel_size}: not supported "
            f"by method '{METHOD}': set it to 1"
        )


def _shown(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))

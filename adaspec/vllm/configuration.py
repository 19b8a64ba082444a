"""Translates the operator's speculative config into one that vLLM understands."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from adaspec.cost import ASYNC, SYNC
from adaspec.errors import ServingError
from adaspec.files import check_writable
from adaspec.policy.budget import LONGEST_DRAFT
from adaspec.trace.identity import vocabulary_hash
from adaspec.vllm import scheduler
from adaspec.vllm.choice import (
    ON_ACCELERATORS,
    baseline_of,
    choose,
    named_policy,
    runner_of,
    target_of,
)
from adaspec.vllm.compatibility import installed_version, version_problem
from adaspec.vllm.head_kind import check_there, drafter_method, tokens_of_pass
from adaspec.vllm.metrics import expose
from adaspec.vllm.options import IN_ONE_PASS, Options, read_options
from adaspec.vllm.patching import (
    CORES,
    FORCED_VARIABLE,
    METHOD,
    OPTIONS_ATTRIBUTE,
    V2_VARIABLE,
    let_engines_write,
    release_runner,
    shield_llvmlite,
)
from adaspec.vllm.v2.graphs import add_coarse_sizes
from adaspec.vllm.worker import served_by

log = logging.getLogger("vllm.adaspec")

NGRAM_DRAFTER = "adaspec.vllm.v1.NgramDrafter"
LOOK_UP = {"prompt_lookup_min": 1, "prompt_lookup_max": 4}
"""What vLLM asks of an n-gram drafter; adaspec looks up in its own way."""
LONGEST_OF_HYBRIDS = 4
"""The longest draft of a model with recurrent layers: vLLM keeps a state for each of its tokens."""
UNPADDED = ("eagle", "eagle3", "mtp")
"""Heads that can draft after vLLM's bookkeeping, from tokens that are already on the host."""


def speculative_config(
    original: Callable[..., Any], args: Any, target_model_config: Any, target_parallel_config: Any
) -> Any:
    """The result of `EngineArgs.create_speculative_config` when method 'adaspec' was asked for."""
    problem = version_problem(installed_version())
    if problem:
        raise ServingError(problem)
    release_runner()
    operator_config = args.speculative_config
    options = structs.replace(
        asked_for(args),
        replica=0 if target_parallel_config.data_parallel_size > 1 else None,
        vocabulary_hash=vocabulary_of(target_model_config),
    )
    if options.mode == "off" and options.mode_file is None:
        return None
    _check_combination(target_model_config, target_parallel_config, options)
    config, options = translated(
        options, target_model_config, needs_v1(args), largest_named_graph(args)
    )
    if options.runner == "V1" and getattr(args, "async_scheduling", None):
        raise ServingError(
            f"method '{METHOD}' does not go with async scheduling on model runner V1, which serves "
            "here: it decides on tokens that it would not know yet: leave --async-scheduling out"
        )
    # The operator's config is put back afterwards, because a second one may be made from it.
    args.speculative_config = config
    try:
        speculative = original(args, target_model_config, target_parallel_config)
    finally:
        args.speculative_config = operator_config
    if speculative.method != config["method"]:
        raise ServingError(
            f"drafter '{config['model']}' is for method '{config['method']}', and vLLM takes it "
            f"for '{speculative.method}' by its name: give it a path that does not say so"
        )
    expose()
    if options.writes:
        let_engines_write()
    if options.runner == "V1":
        # Model runner V2 and async scheduling would silently not call the patched methods.
        if os.environ.get(V2_VARIABLE) != "0":
            os.environ[V2_VARIABLE], os.environ[FORCED_VARIABLE] = "0", "1"
        args.async_scheduling = False
    object.__setattr__(speculative, OPTIONS_ATTRIBUTE, options)
    return speculative


def asked_for(args: Any) -> Options:
    """The operator's options; refuses what is wrong with them whatever the model holds.

    `args` are vLLM's `EngineArgs`, or the parsed command line of `vllm serve`.
    """
    shield_llvmlite()  # vLLM goes on after this, and numba has come with this module
    options = read_options(args.speculative_config)
    check_there("model", getattr(args, "model_tag", None) or args.model)
    if options.model is not None:
        check_there("drafter", options.model)
    if options.policy is not None:
        named_policy(options.policy)
    if options.baseline is not None:
        baseline_of(options.baseline)
    return options


def vocabulary_of(model_config: Any) -> str | None:
    """The hash of the vocabulary of an engine's tokenizer; None if it cannot be read."""
    try:
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(model_config)
        return None if tokenizer is None else vocabulary_hash(tokenizer.get_vocab())
    except Exception as error:  # if the server needs a tokenizer, vLLM will report it
        log.warning("adaspec: the tokenizer's vocabulary is not known: %r", error)
        return None


def needs_v1(args: Any) -> str:
    """Why an engine of these arguments is served on V1, as far as they say; empty if they do not.

    `adaspec_needs_v1` is set where a first attempt has shown that vLLM will not take V2.
    """
    if getattr(args, "adaspec_needs_v1", False):
        return "vLLM has chosen it for this engine"
    if getattr(args, "enable_lora", False):
        # vLLM 0.32 itself maps adapters there to one logit of each request, drafts or not.
        return "LoRA adapters"
    from vllm.triton_utils import HAS_TRITON

    # With Triton's interpreter, as in tests, a CPU can have V2 if it is asked for.
    return "" if HAS_TRITON or not on_cpu() else ON_ACCELERATORS


def create_engine_config(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """`EngineArgs.create_engine_config`, once more for V1 where vLLM does not take V2 after all."""
    config = original(args, *rest, **named)
    options = getattr(config.speculative_config, OPTIONS_ATTRIBUTE, None)
    if options is not None and options.runner == "V2" and not config.use_v2_model_runner:
        args.adaspec_needs_v1 = True
        try:
            config = original(args, *rest, **named)
        finally:
            del args.adaspec_needs_v1
        options = getattr(config.speculative_config, OPTIONS_ATTRIBUTE, None)
    if options is not None:
        _announce(options)
        _set_scheduler(config.scheduler_config, options)
        parallel = config.parallel_config
        parallel.worker_cls = served_by(parallel.worker_cls)
        if options.runner == "V2" and largest_named_graph(args) is None:
            add_coarse_sizes(config)
    return config


def _announce(options: Options) -> None:
    """Say in one line what serves and why, and in further ones what is in doubt about it."""
    log.info(
        "adaspec: policy '%s' (%s), mode %s, model runner %s%s, drafts of at most %s tokens, "
        "drafter %s, costs '%s'%s%s",
        options.policy,
        options.policy_why,
        options.mode,
        options.runner,
        f" ({options.why_v1})" if options.why_v1 else "",
        options.num_speculative_tokens,
        f"'{options.model}' as {options.draft_method}" if options.model else "none: n-gram alone",
        options.cost,
        " until they are measured" if options.measures else "",
        f", compared with '{options.baseline}'" if options.baseline else "",
    )
    for doubt in options.doubts:
        log.warning("adaspec: %s", doubt)


def largest_named_graph(args: Any) -> int | None:
    """The largest size of CUDA graphs that the operator has named; None where none is."""
    given = [args, args.compilation_config]
    sizes = [getattr(each, "max_cudagraph_capture_size", None) for each in given]
    sizes += [max(getattr(each, "cudagraph_capture_sizes", None) or (0,)) for each in given]
    return max((size for size in sizes if size), default=None)


def _set_scheduler(config: Any, options: Options) -> None:
    """Have the engine use our scheduler, unless the operator names one."""
    if config.scheduler_cls in (None, scheduler.PATH):
        config.scheduler_cls = scheduler.PATH
    elif options.mode_file is not None:
        raise ServingError(
            "mode_file does not go with --scheduler-cls: the engine's scheduler reads the file: "
            "leave one out"
        )
    elif options.baseline is not None:
        raise ServingError(
            "baseline does not go with --scheduler-cls: the engine's scheduler compares: leave one "
            "out"
        )
    elif options.is_guarded:
        log.warning(
            "adaspec: no guard: with --scheduler-cls nothing holds speculation off where it is "
            "slower than none"
        )


def _check_combination(target: Any, parallel: Any, options: Options) -> None:
    """Refuse vLLM settings with which the plug-in cannot serve."""
    pipelines, replicas = parallel.pipeline_parallel_size, parallel.data_parallel_size
    contexts, ranks = parallel.decode_context_parallel_size, parallel.tensor_parallel_size
    for is_asked_for, problem in (
        (
            pipelines > 1,
            f"pipeline_parallel_size={pipelines}: it needs the whole model on every rank: use "
            "tensor parallelism",
        ),
        (
            replicas > 1 and target.is_moe,
            f"data_parallel_size={replicas} with a mixture of experts, whose ranks must run the "
            "drafter in step: serve one replica per address",
        ),
        (contexts > 1, f"decode_context_parallel_size={contexts}: set it to 1"),
        (
            ranks > 1 and options.ring_file is not None,
            f"ring_file and tensor_parallel_size={ranks}: every rank would read the file for "
            "itself, and must not find another one: leave ring_file out",
        ),
    ):
        if is_asked_for:
            raise ServingError(f"method '{METHOD}' does not go with {problem}")


def translated(
    options: Options, target_config: Any, why_v1: str = "", largest_graph: int | None = None
) -> tuple[dict[str, Any], Options]:
    """vLLM's speculative config for these options, and the options with every choice filled in.

    `largest_graph` is the largest size of CUDA graphs that the operator named, in tokens.
    """
    target = target_of(target_config, options.vocabulary_hash)
    method, asked_cap = None, options.num_speculative_tokens
    if options.model is not None:
        revision = options.passed.get("revision")
        method = drafter_method(options.model, target, revision, options.draft_method)
    runner, problem = runner_of(on_cpu(), why_v1)
    longest = LONGEST_DRAFT[ASYNC if runner == "V2" else SYNC]
    if target_config.is_hybrid:  # it keeps a recurrent state for each token of a draft
        longest = LONGEST_OF_HYBRIDS
    if method in IN_ONE_PASS:
        assert options.model is not None
        if runner == "V1":
            raise ServingError(
                f"drafter '{options.model}' drafts all its tokens in one pass ({method}), which "
                f"method '{METHOD}' serves on model runner V2 alone, and here V1 serves: {problem}"
            )
        # In a longer one than it was trained for, a head drafts worse from the first token on.
        longest = min(longest, tokens_of_pass(options.model, revision, method) or longest)
    options = choose(options, target, method, longest)
    if options.trace_dir is not None:
        check_writable(Path(options.trace_dir) / "trace", ServingError)
    if options.ring_file is not None:
        check_writable(Path(options.ring_file), ServingError)
        Path(options.ring_file).parent.mkdir(parents=True, exist_ok=True)
    cap = options.num_speculative_tokens
    assert cap is not None
    if runner == "V2" and asked_cap is None and largest_graph:
        cap = max(min(cap, largest_graph - 1), 1)
    options = structs.replace(
        options,
        draft_method=method,
        num_speculative_tokens=cap,
        hardware=hardware(),
        runner=runner,
        why_v1=problem,
    )
    config: dict[str, Any] = {**options.passed, "num_speculative_tokens": cap}
    if method is not None:
        config |= {"method": method, "model": options.model}
        if runner == "V1" and method in UNPADDED:
            config["disable_padded_drafter_batch"] = True
    elif runner == "V2":
        config |= {"method": "ngram_gpu", **LOOK_UP}
    else:
        config |= {"method": "custom_class", "model": NGRAM_DRAFTER}
    return config, options


def on_cpu() -> bool:
    """Whether vLLM serves on a CPU here."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def hardware() -> str:
    """The device that models run on: a GPU's name, or the processor and its usable cores."""
    with contextlib.suppress(ImportError, NotImplementedError):
        engine = importlib.import_module("vllm.platforms").current_platform
        # torch is not asked for the name, because that would start CUDA in a process that has
        # still to fork.
        if not engine.is_cpu():
            return str(engine.get_device_name())
    processor = platform.processor() or platform.machine() or "of an unknown kind"
    with contextlib.suppress(OSError):
        said = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if named := re.search(r"^model name\s*:(.*\S)", said, re.MULTILINE):
            processor = " ".join(named[1].split())
    return f"CPU {processor}, {CORES} cores"

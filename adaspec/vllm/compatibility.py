"""Checks that adaspec knows a vLLM: its version, and every name that adaspec patches or reads."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Collection, Iterator, Mapping

from adaspec.errors import ServingError
from adaspec.vllm.patching import (
    ENGINE_ARGS,
    EXECUTOR,
    RUNNER,
    RUNNER_V2,
    SAMPLING_PARAMS,
    SCHEDULED,
    SERVE_COMMAND,
)

KNOWN = ("0.32", "0.33")
"""The versions whose source has been read."""

_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer"
_SAMPLER = "vllm.v1.sample.rejection_sampler"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
FUNCTIONS_OF_SERVERS: dict[str, tuple[str, ...]] = {
    "vllm.v1.engine.utils:CoreEngineProcManager.shutdown": ("timeout",),
    f"{SERVE_COMMAND}:ServeSubcommand.cmd": ("args",),
}
"""Those of a server's own process: without them it serves all the same, but ends less well."""
_OF_BOTH: dict[str, tuple[str, ...]] = {
    _SCHEDULER: (
        "kv_cache_manager",
        "max_num_scheduled_tokens",
        "num_lookahead_tokens",
        "num_spec_tokens",
        "requests",
        "running",
        "dynamic_sd_lookup",
    ),
    "vllm.v1.core.block_pool:BlockPool": ("blocks",),
    f"{_SCHEDULER}._update_after_schedule": ("scheduler_output",),
    f"{_SCHEDULER}.update_from_output": ("scheduler_output", "model_runner_output"),
    "vllm.v1.core.sched.interface:SchedulerInterface.has_unfinished_requests": (),
    "vllm.v1.core.sched.output:SchedulerOutput.__init__": (
        "scheduled_spec_decode_tokens",
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "preempted_req_ids",
        "finished_req_ids",
        "num_spec_tokens_to_schedule",
    ),
    f"{SCHEDULED}:NewRequestData.__init__": ("req_id", "block_ids", "num_computed_tokens"),
    f"{SCHEDULED}:CachedRequestData.__init__": (
        "req_ids",
        "new_block_ids",
        "num_computed_tokens",
        "resumed_req_ids",
    ),
    "vllm.v1.core.block_pool:BlockPool.evict_blocks": ("block_ids",),
    "vllm.v1.outputs:ModelRunnerOutput.__init__": ("sampled_token_ids",),
    f"{EXECUTOR}:Executor.compile_or_warm_up_model": (),
    f"{EXECUTOR}:Executor.collective_rpc": ("method", "args"),
    "vllm.v1.request:Request.__init__": ("cache_salt",),
    "vllm.v1.worker.gpu_worker:Worker.init_device": (),
    "vllm.v1.worker.cpu_worker:CPUWorker.init_device": (),
    f"{SAMPLING_PARAMS}:SamplingParams.verify": (),
    f"{ENGINE_ARGS}:EngineArgs.create_engine_config": (),
    f"{ENGINE_ARGS}:EngineArgs.create_speculative_config": (
        "target_model_config",
        "target_parallel_config",
    ),
    "vllm.sampling_params:SamplingParams.min_tokens": (),
    "vllm.sampling_params:SamplingParams.all_stop_token_ids": (),
    "vllm.sampling_params:SamplingParams.eos_token_id": (),
    "vllm.sampling_params:SamplingParams.extra_args": (),
}
FUNCTIONS_V1: dict[str, tuple[str, ...]] = {
    **_OF_BOTH,
    f"{RUNNER}:GPUModelRunner": (
        "discard_request_mask",
        "drafter",
        "effective_drafter_max_model_len",
        "input_batch",
        "kv_cache_config",
        "requests",
    ),
    f"{_PROPOSER}:SpecDecodeBaseProposer": ("hidden_states", "model", "needs_extra_input_slots"),
    f"{RUNNER}:GPUModelRunner.initialize_kv_cache": (),
    f"{RUNNER}:GPUModelRunner.execute_model": ("scheduler_output",),
    f"{RUNNER}:GPUModelRunner.propose_draft_token_ids": ("scheduler_output", "sampled_token_ids"),
    f"{RUNNER}:GPUModelRunner._dummy_run": ("force_attention", "profile_seq_lens", "skip_eplb"),
    f"{_PROPOSER}:SpecDecodeBaseProposer.dummy_run": ("num_tokens",),
    f"{_PROPOSER}:SpecDecodeBaseProposer.propose": (
        "num_speculative_tokens",
        "target_positions",
        "common_attn_metadata",
    ),
    f"{_PROPOSER}:SpecDecodeBaseProposer._sample_draft_tokens": (
        "hidden_states",
        "sampling_metadata",
    ),
    f"{_PROPOSER}:SpecDecodeBaseProposer.prepare_inputs": (),
    f"{_PROPOSER}:SpecDecodeBaseProposer.load_model": ("target_model",),
    f"{_PROPOSER}:CommonAttentionMetadata.__init__": ("max_seq_len", "seq_lens"),
    f"{_SCHEDULER}.schedule": (),
    f"{RUNNER}:CachedRequestState.__init__": ("sampling_params",),
    f"{_SAMPLER}:expand_batch_to_tokens": ("x", "cu_num_tokens", "num_tokens"),
    f"{_SAMPLER}:apply_sampling_constraints": ("logits",),
}
"""What adaspec patches, calls or reads of vLLM: functions, as module:class.name, with the
parameters that it relies on, and classes, as module:class, with the attributes. A dataclass's
`__init__` stands for its fields. An entry without names only has to exist."""
_GPU = "vllm.v1.worker.gpu"
_HEADS = f"{_GPU}.spec_decode.target_dependent_ar"
_MANAGER = f"{_GPU}.spec_decode.adaptive_verification:AdaptiveVerificationManager"
FUNCTIONS_V2: dict[str, tuple[str, ...]] = {
    **_OF_BOTH,
    f"{RUNNER_V2}:GPUModelRunner": (
        "adaptive_verification",
        "cudagraph_manager",
        "kv_cache_config",
        "num_speculative_steps",
        "output_copy_stream",
        "rejection_sampler",
        "req_states",
        "speculator",
        "step_timing",
    ),
    _MANAGER: (
        "_batch_budget",
        "_confidence_probs",
        "_cu_num_logits",
        "_max_total_logits",
        "num_bonus_tokens",
        "query_start_loc",
    ),
    f"{_GPU}.async_utils:StepTimingCollector.forward_start": (),
    f"{_GPU}.cudagraph_utils:CudaGraphManager": ("_candidates", "_capture_descs"),
    f"{_GPU}.cudagraph_utils:CudaGraphManager.dispatch": ("max_query_len",),
    f"{_GPU}.spec_decode.speculator:DraftModelSpeculator": (
        "draft_token_confidence_probs",
        "draft_tokens",
        "dtype",
        "enable_adaptive_verification",
        "model",
        "num_speculative_steps",
    ),
    f"{_HEADS}.speculator:TargetDependentARSpeculator": (
        "decode_cudagraph_manager",
        "prefill_cudagraph_manager",
        "supports_decode_metadata_update",
    ),
    f"{_GPU}.spec_decode.ngram.speculator:NgramGPUSpeculator": ("drafts",),
    f"{_GPU}.spec_decode.rejection_sampler:RejectionSampler": ("enable_adaptive_verification",),
    f"{_GPU}.states:RequestState": ("all_token_ids", "prompt_len", "total_len"),
    f"{RUNNER_V2}:GPUModelRunner.initialize_kv_cache": (),
    f"{RUNNER_V2}:GPUModelRunner._dummy_run": ("num_tokens", "context_len", "skip_eplb"),
    f"{RUNNER_V2}:GPUModelRunner.execute_model": ("scheduler_output", "dummy_run"),
    f"{RUNNER_V2}:GPUModelRunner.sample_tokens": (),
    f"{_GPU}.spec_decode.adaptive_verification:maybe_create_adaptive_verification_manager": (
        "enable_adaptive_verification",
        "vllm_config",
    ),
    f"{_MANAGER}.get_num_tokens": ("num_tokens_per_req", "draft_tokens"),
    f"{_MANAGER}.reallocate_drafts": ("req_ids", "idx_mapping"),
    f"{_MANAGER}.record_confidences": ("confidence_probs", "input_batch"),
    f"{_MANAGER}.batches_to_profile": ("capture_sizes",),
    f"{_MANAGER}.set_initial_cost_curves": ("samples",),
    f"{_MANAGER}.add_request": ("req_idx",),
    f"{_GPU}.spec_decode.speculator:BaseSpeculator.propose": (
        "input_batch",
        "num_sampled",
        "num_rejected",
        "dummy_run",
        "num_speculative_tokens",
    ),
    f"{_GPU}.spec_decode.speculator:DraftModelSpeculator.sample_draft": (
        "hidden_states",
        "draft_step",
        "spec_step_idx",
    ),
    f"{_GPU}.spec_decode.speculator:DraftModelSpeculator._maybe_predict_acceptance": (
        "logits",
        "idx_mapping",
        "draft_step",
    ),
    f"{_GPU}.spec_decode.dflash.speculator:DFlashSpeculator": ("query_cudagraph_manager",),
    f"{_GPU}.spec_decode.speculator:DraftModelSpeculator.compute_draft_logits": (
        "hidden_states",
        "spec_step_idx",
    ),
    f"{_HEADS}.speculator:TargetDependentARSpeculator.init_cudagraph_manager": ("cudagraph_mode",),
    f"{_HEADS}.cudagraph_utils:SpeculatorCudaGraphManager.capture": ("specialize_spec_tokens",),
    f"{_HEADS}.cudagraph_utils:SpeculatorBatchDescriptor.__init__": ("num_speculative_tokens",),
    f"{_GPU}.spec_decode.ngram.speculator:NgramGPUSpeculator.propose": ("num_sampled",),
    f"{_GPU}.buffer_utils:StagedWriteTensor.__init__": ("uva_instead_of_gpu",),
    f"{_GPU}.states:RequestState.__init__": ("max_num_reqs", "max_model_len"),
    f"{_GPU}.input_batch:InputBatch.__init__": (
        "req_ids",
        "num_reqs",
        "idx_mapping",
        "idx_mapping_np",
        "num_scheduled_tokens",
        "num_draft_tokens_per_req",
        "num_computed_tokens_np",
        "prefill_len_np",
        "num_computed_prefill_tokens_np",
    ),
    f"{SCHEDULED}:NewRequestData.__init__": (
        "req_id",
        "block_ids",
        "num_computed_tokens",
        "prefill_token_ids",
        "sampling_params",
        "lora_request",
    ),
}
"""The same for model runner V2."""


def installed_version() -> str:
    """The version of the installed vLLM."""
    return str(importlib.import_module("vllm").__version__)


def version_problem(version: str) -> str | None:
    """One line on why adaspec cannot serve with that version; None if it can."""
    if version.startswith(tuple(f"{known}." for known in KNOWN)):
        return None
    return (
        f"vLLM {version} is not supported: adaspec knows {' and '.join(KNOWN)}; install one of "
        "these, or an adaspec that knows yours"
    )


def imported_names(path: str) -> Collection[str]:
    """The parameters of a function of vLLM, which is imported for that, or a class's attributes.

    An `ImportError` or an `AttributeError` where there is none.
    """
    found = pkgutil.resolve_name(path)
    if inspect.isclass(found):
        sources = [inspect.getsource(each) for each in found.__mro__[:-1]]
        return attributes_in("".join(sources)) | set(dir(found))
    return inspect.signature(inspect.unwrap(found)).parameters if callable(found) else ()


def attributes_in(source: str) -> set[str]:
    """The attributes that methods of this source give their objects, or read of them."""
    return set(re.findall(r"\bself\.(\w+)", source))


def signature_problems(
    functions: Mapping[str, tuple[str, ...]] = FUNCTIONS_V1,
    names_of: Callable[[str], Collection[str]] = imported_names,
) -> Iterator[str]:
    """One line for each that is missing, or lacks a parameter or an attribute that is needed."""
    for path, needed in functions.items():
        name = path.replace(":", ".")
        try:
            present = names_of(path)
        except (ImportError, AttributeError):
            yield f"{name} is missing"
            continue
        missing = [each for each in needed if each not in present]
        if missing:
            yield f"{name} lacks {', '.join(missing)}"


def check_functions(functions: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a vLLM that lacks any of these functions or their parameters."""
    for problem in signature_problems(functions):
        raise ServingError(
            f"vLLM {installed_version()} is not as adaspec knows it: {problem}; install a vLLM "
            "that it knows, or an adaspec that knows yours ('adaspec doctor' says more)"
        )

"""Checks that adaspec knows a vLLM: its version, and every name that adaspec patches or reads."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Collection, Iterator, Mapping

from adaspec.errors import ServingError
from adaspec.vllm.patching import ENGINE_ARGS, EXECUTOR, RUNNER_V2, SAMPLING_PARAMS, SERVE_COMMAND

KNOWN = ("0.32", "0.33")
"""The versions whose source has been read."""

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_STEP = "vllm.v1.core.sched.output"
FUNCTIONS_OF_SERVERS = {
    "vllm.v1.engine.utils:CoreEngineProcManager.shutdown": "timeout",
    f"{SERVE_COMMAND}:ServeSubcommand.cmd": "args",
}
"""Those of a server's own process: without them it serves all the same, but ends less well."""
_OF_BOTH = {
    _SCHEDULER: (
        "dynamic_sd_lookup kv_cache_manager max_num_scheduled_tokens num_lookahead_tokens "
        "num_spec_tokens requests running schedule"
    ),
    f"{_SCHEDULER}._update_after_schedule": "scheduler_output",
    f"{_SCHEDULER}.update_from_output": "scheduler_output model_runner_output",
    "vllm.v1.core.sched.interface:SchedulerInterface": "has_unfinished_requests",
    f"{_STEP}:SchedulerOutput.__init__": (
        "finished_req_ids num_scheduled_tokens num_spec_tokens_to_schedule preempted_req_ids "
        "scheduled_cached_reqs scheduled_new_reqs scheduled_spec_decode_tokens "
        "total_num_scheduled_tokens"
    ),
    f"{_STEP}:NewRequestData.__init__": (
        "block_ids lora_request num_computed_tokens prefill_token_ids req_id sampling_params"
    ),
    f"{_STEP}:CachedRequestData.__init__": (
        "new_block_ids num_computed_tokens req_ids resumed_req_ids"
    ),
    "vllm.v1.core.block_pool:BlockPool": "blocks evict_blocks",
    "vllm.v1.outputs:ModelRunnerOutput.__init__": "sampled_token_ids",
    f"{EXECUTOR}:Executor": "compile_or_warm_up_model",
    f"{EXECUTOR}:Executor.collective_rpc": "method args",
    "vllm.v1.request:Request.__init__": "cache_salt",
    "vllm.v1.worker.gpu_worker:Worker": "init_device",
    "vllm.v1.worker.cpu_worker:CPUWorker": "init_device",
    f"{SAMPLING_PARAMS}:SamplingParams.all_stop_token_ids": "",
    f"{SAMPLING_PARAMS}:SamplingParams.eos_token_id": "",
    f"{SAMPLING_PARAMS}:SamplingParams.extra_args": "",
    f"{SAMPLING_PARAMS}:SamplingParams.min_tokens": "",
    f"{SAMPLING_PARAMS}:SamplingParams.verify": "",
    f"{ENGINE_ARGS}:EngineArgs": "create_engine_config",
    f"{ENGINE_ARGS}:EngineArgs.create_speculative_config": (
        "target_model_config target_parallel_config"
    ),
}
_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer"
_SAMPLER = "vllm.v1.sample.rejection_sampler"
FUNCTIONS_V1 = {
    **_OF_BOTH,
    _RUNNER: (
        "discard_request_mask drafter effective_drafter_max_model_len initialize_kv_cache "
        "input_batch kv_cache_config requests"
    ),
    f"{_RUNNER}.execute_model": "scheduler_output",
    f"{_RUNNER}.propose_draft_token_ids": "scheduler_output sampled_token_ids",
    f"{_RUNNER}._dummy_run": "force_attention profile_seq_lens skip_eplb",
    "vllm.v1.worker.block_table:BlockTable": "get_numpy_array",
    "vllm.v1.worker.block_table:MultiGroupBlockTable": "block_tables clear",
    "vllm.v1.worker.gpu_input_batch:InputBatch": (
        "block_table num_computed_tokens_cpu num_prompt_tokens num_reqs num_tokens_no_spec "
        "req_id_to_index req_ids token_ids_cpu vocab_size"
    ),
    "vllm.v1.worker.gpu_input_batch:CachedRequestState.__init__": "sampling_params",
    _PROPOSER: "hidden_states model needs_extra_input_slots prepare_inputs",
    f"{_PROPOSER}.dummy_run": "num_tokens",
    f"{_PROPOSER}.load_model": "target_model",
    f"{_PROPOSER}.propose": "common_attn_metadata num_speculative_tokens target_positions",
    f"{_PROPOSER}._sample_draft_tokens": "hidden_states sampling_metadata",
    "vllm.v1.attention.backend:CommonAttentionMetadata.__init__": "max_seq_len seq_lens",
    f"{_SAMPLER}:expand_batch_to_tokens": "x cu_num_tokens num_tokens replace_from replace_to",
    f"{_SAMPLER}:apply_sampling_constraints": "logits",
}
"""What adaspec patches, calls or reads of vLLM: functions, as module:class.name, with the
parameters that it relies on, and classes, as module:class, with the attributes and methods. A
dataclass's `__init__` stands for its fields. An entry without names only has to exist."""
_GPU = "vllm.v1.worker.gpu"
_SPECULATORS = f"{_GPU}.spec_decode"
_RUNNER_V2 = f"{RUNNER_V2}:GPUModelRunner"
_HEAD = f"{_SPECULATORS}.speculator:DraftModelSpeculator"
_GRAPHS = f"{_SPECULATORS}.target_dependent_ar.cudagraph_utils"
_AUTOREGRESSIVE = f"{_SPECULATORS}.target_dependent_ar.speculator:TargetDependentARSpeculator"
_MANAGER = f"{_SPECULATORS}.adaptive_verification:AdaptiveVerificationManager"
FUNCTIONS_V2 = {
    **_OF_BOTH,
    _RUNNER_V2: (
        "adaptive_verification block_tables cudagraph_manager initialize_kv_cache kv_cache_config "
        "num_speculative_steps output_copy_stream rejection_sampler req_states sample_tokens "
        "speculator step_timing"
    ),
    f"{_RUNNER_V2}._dummy_run": "context_len num_tokens skip_eplb",
    f"{_RUNNER_V2}.execute_model": "dummy_run scheduler_output",
    f"{_GPU}.async_utils:StepTimingCollector": "forward_start",
    f"{_GPU}.block_table:BlockTables.get_dummy_block_tables": "num_reqs",
    f"{_GPU}.buffer_utils:StagedWriteTensor.__init__": "uva_instead_of_gpu",
    f"{_GPU}.cudagraph_utils:CudaGraphManager": "_candidates _capture_descs",
    f"{_GPU}.cudagraph_utils:CudaGraphManager.dispatch": "max_query_len",
    f"{_GPU}.input_batch:InputBatch.__init__": (
        "idx_mapping idx_mapping_np num_computed_prefill_tokens_np num_computed_tokens_np "
        "num_draft_tokens_per_req num_reqs num_scheduled_tokens prefill_len_np req_ids"
    ),
    f"{_GPU}.states:RequestState": "all_token_ids max_model_len max_num_reqs prompt_len total_len",
    f"{_SPECULATORS}.adaptive_verification:maybe_create_adaptive_verification_manager": (
        "enable_adaptive_verification vllm_config"
    ),
    _MANAGER: (
        "_batch_budget _confidence_probs _cu_num_logits _max_total_logits num_bonus_tokens "
        "query_start_loc"
    ),
    f"{_MANAGER}.add_request": "req_idx",
    f"{_MANAGER}.batches_to_profile": "capture_sizes",
    f"{_MANAGER}.get_num_tokens": "draft_tokens num_tokens_per_req",
    f"{_MANAGER}.reallocate_drafts": "idx_mapping req_ids",
    f"{_MANAGER}.record_confidences": "confidence_probs input_batch",
    f"{_MANAGER}.set_initial_cost_curves": "samples",
    f"{_SPECULATORS}.dflash.speculator:DFlashSpeculator": "query_cudagraph_manager",
    f"{_SPECULATORS}.ngram.speculator:NgramGPUSpeculator": "drafts",
    f"{_SPECULATORS}.ngram.speculator:NgramGPUSpeculator.propose": "num_sampled",
    f"{_SPECULATORS}.rejection_sampler:RejectionSampler": "enable_adaptive_verification",
    f"{_SPECULATORS}.speculator:BaseSpeculator.propose": (
        "dummy_run input_batch num_rejected num_sampled num_speculative_tokens"
    ),
    _HEAD: (
        "draft_token_confidence_probs draft_tokens dtype enable_adaptive_verification model "
        "num_speculative_steps"
    ),
    f"{_HEAD}._maybe_predict_acceptance": "draft_step idx_mapping logits",
    f"{_HEAD}.compute_draft_logits": "hidden_states spec_step_idx",
    f"{_HEAD}.sample_draft": "draft_step hidden_states spec_step_idx",
    _AUTOREGRESSIVE: (
        "decode_cudagraph_manager prefill_cudagraph_manager supports_decode_metadata_update"
    ),
    f"{_AUTOREGRESSIVE}.init_cudagraph_manager": "cudagraph_mode",
    f"{_GRAPHS}:SpeculatorBatchDescriptor.__init__": "num_speculative_tokens",
    f"{_GRAPHS}:SpeculatorCudaGraphManager.capture": "specialize_spec_tokens",
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
    functions: Mapping[str, str],
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
        missing = [each for each in needed.split() if each not in present]
        if missing:
            yield f"{name} lacks {', '.join(missing)}"


def check_functions(functions: Mapping[str, str]) -> None:
    """Refuse a vLLM that lacks any of these functions or their parameters."""
    for problem in signature_problems(functions):
        raise ServingError(
            f"vLLM {installed_version()} is not as adaspec knows it: {problem}; install a vLLM "
            "that it knows, or an adaspec that knows yours ('adaspec doctor' says more)"
        )

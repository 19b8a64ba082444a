"""Puts a worker into vLLM's model runner V2 when the runner is created."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from adaspec.cost.engine import ASYNC
from adaspec.errors import ServingError
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.static import StaticPolicy
from adaspec.vllm.attachment import owner_key
from adaspec.vllm.compatibility import FUNCTIONS_V2, check_functions
from adaspec.vllm.following import follow
from adaspec.vllm.options import Options
from adaspec.vllm.scheduler import LENGTH
from adaspec.vllm.serving import announce, recording_policy, serving_of
from adaspec.vllm.tracing import observers_of
from adaspec.vllm.v2 import speculator, trimming
from adaspec.vllm.v2.graphs import report_capture
from adaspec.vllm.v2.running import Request
from adaspec.vllm.v2.worker import Worker


def attach(runner: Any, options: Options) -> None:
    """Make the runner's speculator follow the policy that the options name."""
    if runner.speculator is None:
        return
    check_functions(FUNCTIONS_V2)
    keep_text_on_device(runner)
    runner.adaspec_worker = worker_of(runner, options)
    speculator.take_over(runner, runner.adaspec_worker)
    # vLLM creates its manager where the speculator asks for one.
    runner.speculator.enable_adaptive_verification = True
    runner.initialize_kv_cache = _with_trimming(runner, runner.initialize_kv_cache)
    runner.capture_model = report_capture(runner, runner.capture_model)
    runner.execute_model = _with_requests(runner, runner.execute_model)
    runner.sample_tokens = _with_length(runner, runner.sample_tokens)


def keep_text_on_device(runner: Any) -> None:
    """Hold the requests' tokens in the device's own memory, which look-ups read in every step."""
    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

    states = runner.req_states
    states.all_token_ids = StagedWriteTensor(
        (states.max_num_reqs, states.max_model_len),
        dtype=torch.int32,
        device=runner.device,
        uva_instead_of_gpu=False,
    )


def worker_of(runner: Any, options: Options) -> Worker:
    """The worker that serves a runner's requests."""
    config = runner.vllm_config
    parallel = config.parallel_config
    choice, serving = serving_of(config, options)
    setup = dataclasses.replace(
        serving.setup, cap=runner.num_speculative_steps, slots=runner.max_num_reqs, engine=ASYNC
    )
    serving = dataclasses.replace(serving, setup=setup)
    policy = recording_policy() if options.mode == "record" else choice.policy
    if not isinstance(policy, LearnedPolicy | StaticPolicy):
        raise ServingError(f"policy '{choice.spec}' does not run on model runner V2")
    worker = Worker(
        policy,
        serving,
        runner.device,
        runner.output_copy_stream,
        stop_if_slow=parallel.tensor_parallel_size == 1,
    )
    if parallel.rank == 0:
        worker.observers.add(*observers_of(options, serving))
        announce(config, choice, serving, options)
    return worker


def serve_by(runner: Any, policy: LearnedPolicy | StaticPolicy, **changes: Any) -> Worker:
    """Start a new worker, by which another policy serves the requests that come from now on."""
    before: Worker = runner.adaspec_worker
    serving = dataclasses.replace(before.serving, **changes)
    worker = Worker(policy, serving, runner.device, runner.output_copy_stream, before.stop_if_slow)
    worker.trims = before.trims
    speculator.warm_up(runner, worker)
    holders = [runner, runner.speculator, runner.adaptive_verification]
    for holder in holders:
        if holder is not None:
            holder.adaspec_worker = worker
    return worker


def _with_trimming(runner: Any, original: Any) -> Any:
    """Wrap `initialize_kv_cache`, which creates the manager that trims drafts."""

    def initialize_kv_cache(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        manager = runner.adaptive_verification
        if manager is not None:
            largest = trimming.largest_graph(runner.vllm_config.compilation_config)
            trimming.take_over(manager, runner.adaspec_worker, largest)
            runner.rejection_sampler.enable_adaptive_verification = True
            runner.adaspec_worker.trims = True
        return result

    return initialize_kv_cache


def _with_requests(runner: Any, original: Any) -> Any:
    """Wrap `execute_model`, to see which requests are let in and which have ended."""

    def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("dummy_run"):
            follow(runner.adaspec_worker, scheduler_output)
            runner.adaspec_worker.leave(sorted(scheduler_output.finished_req_ids))
            for request in scheduler_output.scheduled_new_reqs:
                runner.adaspec_worker.arrive(_request(request))
            if not scheduler_output.total_num_scheduled_tokens:
                runner.adaspec_worker.idle()
        return original(scheduler_output, *args, **kwargs)

    return execute_model


def _request(data: Any) -> Request:
    """A request as the scheduler hands it over."""
    tokens, prompt_len = data.prefill_token_ids, data.prompt_len
    params = data.sampling_params
    return Request(
        name=data.req_id,
        prompt=np.array(tokens[:prompt_len], np.int32),
        output=list(tokens[prompt_len:]),
        max_tokens=params.max_tokens if params else None,
        ends=frozenset(params.all_stop_token_ids if params and not params.ignore_eos else ()),
        least_tokens=params.min_tokens if params else 0,
        params=params,
        key=owner_key(data),
    )


def _with_length(runner: Any, original: Any) -> Any:
    """Wrap `sample_tokens`, to tell the scheduler how long drafts shall be, and observers all else.

    By now the device has all of the step's work.
    """

    def sample_tokens(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        runner.adaspec_worker.tell()
        length = runner.adaspec_worker.length
        made = getattr(output, "model_runner_output", output)
        if made is not None and length is not None:
            setattr(made, LENGTH, length)
        return output

    return sample_tokens

"""Puts a session into vLLM's model runner V2 when the runner is created."""

from __future__ import annotations

from typing import Any

import torch

from adaspec.vllm.compatibility import FUNCTIONS_V2, check_functions
from adaspec.vllm.options import Options
from adaspec.vllm.scheduler import LENGTH, follow
from adaspec.vllm.session.requests import RunningRequest, shares_ring
from adaspec.vllm.session.session import Session, session_of
from adaspec.vllm.session.unread_blocks import unread_blocks
from adaspec.vllm.v2 import speculator, trimming
from adaspec.vllm.v2.graphs import find_each_length


def attach(runner: Any, options: Options) -> None:
    """Make the runner's speculator follow the policy that the options name."""
    if runner.speculator is None:
        return
    check_functions(FUNCTIONS_V2)
    keep_text_on_device(runner)
    runner.adaspec_session = session_of(
        runner.vllm_config, options, runner.device, runner.output_copy_stream
    )
    speculator.take_over(runner, runner.adaspec_session)
    # vLLM creates its manager where the speculator asks for one.
    runner.speculator.enable_adaptive_verification = True
    hooks = Hooks(runner)
    runner.initialize_kv_cache = hooks.initialize
    runner.execute_model, runner.sample_tokens = hooks.execute, hooks.sample


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


class Hooks:
    """What a runner calls as it starts, and in every step."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._initialize = runner.initialize_kv_cache
        self._execute, self._sample = runner.execute_model, runner.sample_tokens

    def initialize(self, *args: Any, **kwargs: Any) -> Any:
        """`initialize_kv_cache`, whose blocks the session follows, and which creates the manager
        that trims drafts."""
        result, runner = self._initialize(*args, **kwargs), self._runner
        manager, session = runner.adaptive_verification, runner.adaspec_session
        if session.serving.setup.neural_cap:
            session.unread = unread_blocks(
                runner.vllm_config.cache_config,
                runner.kv_cache_config,
                slack=2 * runner.num_speculative_steps,
            )
        if manager is not None:
            largest = trimming.largest_graph(runner.vllm_config.compilation_config)
            trimming.take_over(manager, session, largest)
            runner.rejection_sampler.enable_adaptive_verification = True
            session.trims = True
        else:
            find_each_length(runner.cudagraph_manager)
        return result

    def execute(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """See which requests are let in and which have ended, then `execute_model`."""
        if not kwargs.get("dummy_run"):
            session: Session = self._runner.adaspec_session
            finished = scheduler_output.finished_req_ids
            session.take_reports()
            session.rehearse((*scheduler_output.num_scheduled_tokens, *finished))
            follow(session, scheduler_output)
            session.end(sorted(finished))
            session.follow_blocks(scheduler_output)
            for request in scheduler_output.scheduled_new_reqs:
                session.admit(_request(request, self._runner.max_model_len))
            if not scheduler_output.total_num_scheduled_tokens:
                session.idle()
        return self._execute(scheduler_output, *args, **kwargs)

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """`sample_tokens`; then the scheduler is told how long drafts shall be, observers all else.

        By now the device has all of the step's work.
        """
        output, session = self._sample(*args, **kwargs), self._runner.adaspec_session
        session.tell()
        made = getattr(output, "model_runner_output", output)
        if made is not None:
            setattr(made, LENGTH, session.length)
        return output


def _request(data: Any, max_model_len: int) -> RunningRequest:
    """A request as the scheduler hands it over."""
    tokens, prompt_len = data.prefill_token_ids, data.prompt_len
    prompt, output = tokens[:prompt_len], list(tokens[prompt_len:])
    params, in_ring = data.sampling_params, shares_ring(data)
    return RunningRequest(data.req_id, prompt, output, params, in_ring, max_model_len)

"""The engine's scheduler, which schedules drafts of one length where they cannot be trimmed.

The worker says how long they shall be; its word comes with a step's output. Where it says nothing,
as where drafts are trimmed on the device, vLLM's scheduler is as it was.
"""

from __future__ import annotations

from typing import Any

PATH = "adaspec.vllm.v2.scheduler.scheduler"
LENGTH = "adaspec_length"
"""The attribute of a step's output that says how long drafts shall be."""


def scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """vLLM's own scheduler for this config, made to take the worker's word."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    base = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    made: Any = base(vllm_config, *args, **kwargs)
    length: list[int] = []

    update_after_schedule, update_from_output = made._update_after_schedule, made.update_from_output

    def update_with_length(scheduler_output: Any) -> None:
        if length:
            scheduler_output.num_spec_tokens_to_schedule = length[0]
        update_after_schedule(scheduler_output)

    def take_length(scheduler_output: Any, model_runner_output: Any) -> Any:
        told = getattr(model_runner_output, LENGTH, None)
        if told is not None:
            length[:] = [told]
        return update_from_output(scheduler_output, model_runner_output)

    made._update_after_schedule, made.update_from_output = update_with_length, take_length
    return made

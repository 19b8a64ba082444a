"""The engine's scheduler, which guards, sends the mode along, and schedules drafts of one length.

With a guard, every step that is scheduled says whether it speculates, and with a `mode_file`, in
which mode it is served. Where drafts on V2 cannot be trimmed, the session says how long they shall
be; its word comes with a step's output. Where nothing is so, vLLM's scheduler is as it was.
"""

from __future__ import annotations

from typing import Any

from adaspec.cost.engine import ASYNC, SYNC
from adaspec.cost.load import cost_from_document
from adaspec.cost.model import plain_seconds
from adaspec.policy.guard import PLAN, Guard
from adaspec.vllm.events import Fault
from adaspec.vllm.guarding import ATTRIBUTE as GUARD
from adaspec.vllm.guarding import LAGS, Guarded, send_guard, state_of
from adaspec.vllm.mode_file import ATTRIBUTE as MODE
from adaspec.vllm.mode_file import ModeFile, Told
from adaspec.vllm.patching import ATTRIBUTE

PATH = "adaspec.vllm.scheduler.scheduler"
LENGTH = "adaspec_length"
"""The attribute of a step's output that says how long drafts shall be."""


def scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """vLLM's own scheduler for this config, made to follow the options and the session's word."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    base = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    made: Any = base(vllm_config, *args, **kwargs)
    options = getattr(vllm_config.speculative_config, ATTRIBUTE)
    if options.runner == "V2":
        follow_length(made)
    file = None if options.mode_file is None else ModeFile(options.mode_file, options.mode)
    if file is not None:
        send_mode(made, file)
    if options.is_guarded:
        cost = cost_from_document(options.costs, "costs")
        cost = cost.under(ASYNC if options.runner == "V2" else SYNC)
        guard = Guard(plain_seconds(cost), LAGS[options.runner])
        send_guard(made, guard, lambda: (options if file is None else file).mode == "serve")
    return made


def follow_length(scheduler: Any) -> None:
    """Make a scheduler schedule drafts as long as the session says, if it says so.

    Where many requests run, drafts take at most half of a step's room for tokens: of most few
    tokens are verified, and new prompts have to be read.
    """
    length: list[int] = []
    update_after_schedule = scheduler._update_after_schedule
    update_from_output = scheduler.update_from_output

    def update_with_length(scheduler_output: Any) -> None:
        if length:
            speculates = state_of(getattr(scheduler_output, GUARD, None)) == PLAN
            scheduler_output.num_spec_tokens_to_schedule = length[0] if speculates else 0
        rows = max(len(scheduler.running), 1)
        room = scheduler.max_num_scheduled_tokens // (2 * rows) - 1
        scheduler_output.num_spec_tokens_to_schedule = max(
            min(scheduler_output.num_spec_tokens_to_schedule, room), 0
        )
        update_after_schedule(scheduler_output)

    def take_length(scheduler_output: Any, model_runner_output: Any) -> Any:
        told = getattr(model_runner_output, LENGTH, None)
        if told is not None:
            length[:] = [told]
        return update_from_output(scheduler_output, model_runner_output)

    scheduler._update_after_schedule, scheduler.update_from_output = update_with_length, take_length


def send_mode(scheduler: Any, file: ModeFile) -> None:
    """Make a scheduler say in every step that it schedules in which mode the step is served."""
    schedule = scheduler.schedule

    def schedule_with_mode(*args: Any, **kwargs: Any) -> Any:
        told = file.read()
        output = schedule(*args, **kwargs)
        setattr(output, MODE, told)
        return output

    scheduler.schedule = schedule_with_mode


def follow(session: Any, scheduled: Any) -> None:
    """Take a session over to what a scheduled step says."""
    told: Told | None = getattr(scheduled, MODE, None)
    guarded: Guarded | None = getattr(scheduled, GUARD, None)
    session.guard_state = state_of(guarded)
    session.drift.step()
    if guarded is not None:
        session.observers.notify("guarded", guarded)
    if told is not None and told.mode != session.mode:
        session.mode = told.mode
        session.observers.notify("switched", told.mode)
    for stage, said in (("guard", guarded), ("mode_file", told)):
        if said is not None and said.problem:  # it failed outside of the session, and was logged
            session.observers.notify("fault", Fault(stage, session.breaker.off))

"""The engine's scheduler, which guards, sends the mode along, and makes room for drafts.

With a guard, every step that is scheduled says which arm it is, and with a `mode_file`, in which
mode it is served: so all ranks change over in the same step. On V2 drafts are scheduled before they
are made, and the session says for how long ones; its word comes with a step's output. Where nothing
is so, vLLM's scheduler is as it was.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, NamedTuple

from adaspec.cost.load import cost_from_document
from adaspec.cost.model import plain_seconds
from adaspec.errors import nearest, shown
from adaspec.policy.guard import BASELINE, NONE, POLICY, SPECULATING, Guard
from adaspec.predict.model import LONGEST_NEURAL
from adaspec.vllm.options import IN_ONE_PASS
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE, SALT_ATTRIBUTE
from adaspec.vllm.timed_steps import GUARD_ATTRIBUTE, LAGS, GuardReport, TimedSteps, state_of

log = logging.getLogger("vllm.adaspec")

PATH = "adaspec.vllm.scheduler.scheduler"
LENGTH = "adaspec_length"
"""The attribute of a step's output that says for how long drafts the next steps make room."""
WORDS = ("serve", "off")
"""The modes that the file may name; for what they are, see `options.MODES`."""
MODE_ATTRIBUTE = "adaspec_mode"
"""The attribute of a scheduled step that says in which mode it is served."""
PERIOD_S = 0.02
"""The file is looked at no more often than this, in steps that are scheduled anyway."""
_MAX_BYTES = 64


class Told(NamedTuple):
    """The mode of one step."""

    mode: str
    problem: str
    """What is wrong with the file, in the step that found it; else empty."""


class ModeFile:
    """The mode that a file names, which an operator may change while the engine serves."""

    def __init__(self, path: str, mode: str) -> None:
        """`mode` holds until the file says otherwise."""
        self.path, self.mode = Path(path), mode
        self._due_s = -1.0
        self._seen: str | None = None

    def read(self) -> Told:
        """The mode of the step that is scheduled now; never raises."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return Told(self.mode, "")
        self._due_s = now_s + PERIOD_S
        try:
            with self.path.open("rb") as file:
                word = file.read(_MAX_BYTES).decode("utf-8", "replace").strip()
        except OSError as error:
            word = f"({error.strerror})"
        if word == self._seen:
            return Told(self.mode, "")
        self._seen = word
        if word not in WORDS:
            close, words = nearest(word, WORDS), " or ".join(WORDS)
            problem = f"mode_file '{self.path}' says {shown(word)}{close}: write {words}"
            log.warning("adaspec: %s; mode %s stays", problem, self.mode)
            return Told(self.mode, problem)
        if word != self.mode:
            log.info("adaspec: mode %s instead of %s, as mode_file says", word, self.mode)
        self.mode = word
        return Told(word, "")


def scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """vLLM's own scheduler for this config, made to follow the options and the session's word."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    base = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    made: Any = following(base)(vllm_config, *args, **kwargs)
    options = getattr(vllm_config.speculative_config, OPTIONS_ATTRIBUTE)
    if options.runner == "V2":
        made.adaspec_make_room(options)
    file = None if options.mode_file is None else ModeFile(options.mode_file, options.mode)
    made.adaspec_mode_file = file
    if options.is_guarded:
        cost = cost_from_document(options.costs, "costs")
        arms = (NONE, POLICY) if options.baseline is None else (NONE, POLICY, BASELINE)
        guard = Guard(plain_seconds(cost), LAGS[options.runner], arms)
        made.adaspec_timed = TimedSteps(
            made, guard, lambda: (options if file is None else file).mode == "serve"
        )
    return made


def following(base: Any) -> Any:
    """The class of a scheduler that says more of its steps than `base` does."""
    return type(f"AdaSpec{base.__name__}", (_Following, base), {})


class _Following:
    """What differs from vLLM's own schedulers."""

    adaspec_mode_file: ModeFile | None = None
    adaspec_timed: TimedSteps | None = None
    """The steps as the guard is told of them; None where nothing is guarded."""
    adaspec_length: int | None = None
    """The longest draft that the session says to make room for; None on V1, which schedules drafts
    that are there."""
    requests: Any
    running: Any
    kv_cache_manager: Any
    max_num_scheduled_tokens: int
    num_spec_tokens: int
    num_lookahead_tokens: int

    def adaspec_make_room(self, options: Any) -> None:
        """From now on make as much room for drafts as the session says, step by step."""
        self.adaspec_length = self.num_spec_tokens
        # By this table vLLM would say how long drafts are at each load. Without one it pads a row
        # of one token to the longest draft, whatever the others are padded to.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_scheduled_tokens + 1)
        # No drafter writes KV for more tokens, but in one pass, or for recordings.
        if options.mode != "record" and options.draft_method not in IN_ONE_PASS:
            self.num_lookahead_tokens = min(self.num_lookahead_tokens, LONGEST_NEURAL)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """A step, with the salts of its new requests, and the mode that a file names, if any."""
        told = None
        if self.adaspec_mode_file is not None:
            before, told = self.adaspec_mode_file.mode, self.adaspec_mode_file.read()
            if told.mode == "serve" != before:
                self._adaspec_forget_prefixes()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        for new in output.scheduled_new_reqs:
            setattr(new, SALT_ATTRIBUTE, self.requests[new.req_id].cache_salt)
        if told is not None:
            setattr(output, MODE_ATTRIBUTE, told)
        return output

    def _adaspec_forget_prefixes(self) -> None:
        """Share no block any more that was written while the drafter was off and read none."""
        pool = self.kv_cache_manager.block_pool
        pool.evict_blocks({block.block_id for block in pool.blocks})

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Say of a step what the guard says, and for how long drafts the next one makes room."""
        if self.adaspec_timed is not None:
            setattr(scheduler_output, GUARD_ATTRIBUTE, self.adaspec_timed.begin(scheduler_output))
        if self.adaspec_length is not None:
            scheduler_output.num_spec_tokens_to_schedule = self._adaspec_length_of(scheduler_output)
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]

    def _adaspec_length_of(self, scheduler_output: Any) -> int:
        """For how long drafts there is room: none where speculation is held off.

        Where many requests run, drafts take at most half of a step's room for tokens: of most few
        tokens are verified, and new prompts have to be read.
        """
        if state_of(getattr(scheduler_output, GUARD_ATTRIBUTE, None)) not in SPECULATING:
            return 0
        assert self.adaspec_length is not None
        rows = max(len(self.running), 1)
        return max(min(self.adaspec_length, self.max_num_scheduled_tokens // (2 * rows) - 1), 0)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take in what came of a step, and how long the session says that drafts are."""
        self.adaspec_length = getattr(model_runner_output, LENGTH, self.adaspec_length)
        timed = self.adaspec_timed
        came_s = 0.0 if timed is None else timed.clock()
        result = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if timed is not None:
            timed.end(scheduler_output, came_s, result)
            timed.is_busy = self.has_unfinished_requests()  # type: ignore[attr-defined]
        return result


def follow(session: Any, scheduled: Any) -> None:
    """Take a session over to what a scheduled step says."""
    told: Told | None = getattr(scheduled, MODE_ATTRIBUTE, None)
    guarded: GuardReport | None = getattr(scheduled, GUARD_ATTRIBUTE, None)
    session.guard_state = state_of(guarded)
    if guarded is not None:
        session.observers.notify("guarded", guarded)
    if told is not None and told.mode != session.mode:
        session.mode = told.mode
        session.observers.notify("switched", told.mode)
    for stage, said in (("guard", guarded), ("mode_file", told)):
        if said is not None and said.problem:  # it failed outside of the session, and was logged
            session.observers.notify("fault", stage, session.breaker.off)

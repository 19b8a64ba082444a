"""The engine's scheduler, which guards, sends the mode along, and makes room for drafts.

With a guard, every step that is scheduled says which arm it is, and with a `mode_file`, in which
mode it is served: so all ranks change over in the same step. There is one clock, the scheduler's: a
step takes from the output before its own to its own, which holds with asynchronous scheduling, too,
where the next step is scheduled meanwhile. On V2 drafts are scheduled before they
are made, and the session says for how long ones; its word comes with a step's output.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from adaspec.cost.load import cost_from_document
from adaspec.cost.model import plain_seconds
from adaspec.errors import nearest, shown
from adaspec.policy.guard import BASELINE, NONE, PLAN, POLICY, SPECULATING, Guard, GuardDecision
from adaspec.predict.model import LONGEST_NEURAL
from adaspec.vllm.options import IN_ONE_PASS
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE, SALT_ATTRIBUTE, in_one_line

GUARD_ATTRIBUTE = "adaspec_guard"
"""The attribute of a scheduled step that holds its `GuardReport`; None where nothing is guarded."""
LAGS = {"V1": 1, "V2": 3}
"""By model runner, how many steps after a change-over are blurred: V1 verifies in a step what the
step before drafted. On V2 outputs also come before the drafting behind them is done, and what a
step verifies may have been scheduled before that."""
_LOG_PERIOD_S = 60.0
"""A server at an edge would log every few seconds otherwise."""
_MOST_IN_FLIGHT = 16
_SLOW = 1.3
"""Where plain steps take so many times as long as the costs say, the operator is told."""
log = logging.getLogger("vllm.adaspec")
PATH = "adaspec.vllm.scheduler.scheduler"
LENGTH = "adaspec_length"
"""The attribute of a step's output that says for how long drafts the next steps make room."""
WORDS = ("serve", "off")
"""The modes that the file may name, of `options.MODES`."""
MODE_ATTRIBUTE = "adaspec_mode"
"""The attribute of a scheduled step that says in which mode it is served."""
PERIOD_S = 0.02
"""The file is looked at no more often than this, in steps that are scheduled anyway."""
_MAX_BYTES = 64


class GuardReport(NamedTuple):
    """What the guard says of one step, and what it knows."""

    state: str
    """One of `guard.STATES`, which names the arm of the step."""
    switches: int
    """How often another arm began to serve, since the start."""
    rates: Mapping[str, float]
    """By arm, tokens per second at the load of the step, as far as they are known."""
    slowness: float = 1.0
    """How many times as long as the costs say plain steps take now."""
    problem: str | None = None
    """Why there is no guard any more, told once."""


def state_of(guarded: GuardReport | None) -> str:
    """What a step is to do."""
    return PLAN if guarded is None else guarded.state


class TimedSteps:
    """The steps of one scheduler, as its guard is told of them; `begin` and `end` never raise."""

    def __init__(
        self,
        scheduler: Any,
        guard: Guard,
        serves: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`serves` says whether speculation is on at all; if not, nothing is judged."""
        self.scheduler, self.guard, self.serves, self.clock = scheduler, guard, serves, clock
        self.is_busy = False
        """Whether the next step follows the last one at once."""
        self._last_s = 0.0
        self._logged_s = -_LOG_PERIOD_S
        self._in_flight: deque[tuple[Any, GuardDecision, float]] = deque(maxlen=_MOST_IN_FLIGHT)
        """The last steps that were scheduled, what was decided of them, and when."""
        self._failed = self._was_slow = False
        self._untold_failure: GuardReport | None = None

    def begin(self, step: Any) -> GuardReport | None:
        """The state of the guard for a step that has been scheduled."""
        if not step.total_num_scheduled_tokens:
            return None
        if self._failed:
            failure, self._untold_failure = self._untold_failure, None
            return failure
        try:
            if not self.serves():
                self.guard.interrupt()
                return None
            scheduled, requests = step.num_scheduled_tokens, self.scheduler.requests
            drafted = sum(map(len, step.scheduled_spec_decode_tokens.values()))
            prompt_tokens = step.total_num_scheduled_tokens - len(scheduled) - drafted
            context_tokens = sum(requests[name].num_computed_tokens for name in scheduled)
            decision = self.guard.decide(len(scheduled), context_tokens, prompt_tokens)
            self._in_flight.append((step, decision, self.clock()))
            slowness, rates = self.guard.slowness(decision), self.guard.rates(decision)
            if slowness > _SLOW and not self._was_slow:
                self._was_slow = True
                text = "adaspec: steps take %.1f times as long as the costs say (told once)"
                log.warning(text, slowness)
            return GuardReport(decision.state, self.guard.switches, rates, slowness)
        except Exception as error:
            return self._fail(error)

    def end(self, step: Any, now_s: float, outputs: Any) -> None:
        """Tell the guard what a step took whose output came at this time, and what was delivered.

        `outputs` are the scheduler's by client. Nobody gets the tokens of a request that has ended,
        or those behind a stop.
        """
        in_flight = ((decision, at_s) for each, decision, at_s in self._in_flight if each is step)
        decision, scheduled_s = next(in_flight, (None, now_s))
        began_s = self._last_s if self.is_busy else scheduled_s
        self._last_s = now_s
        if decision is None or self._failed:
            return
        try:
            switches = self.guard.switches
            counts = [
                len(each.new_token_ids) for client in outputs.values() for each in client.outputs
            ]
            emitting = sum(count > 0 for count in counts)
            self.guard.note(decision, now_s - began_s, sum(counts), emitting)
            if self.guard.switches > switches and now_s - self._logged_s >= _LOG_PERIOD_S:
                self._logged_s = now_s
                rates = self.guard.rates(decision).items()
                said = ", ".join(f"{arm} {rate:.0f}" for arm, rate in rates)
                text = "adaspec: with %d requests at once, what serves now is %s; tokens/s: %s"
                log.info(text, decision.rows, self.guard.incumbent(decision), said)
        except Exception as error:
            self._untold_failure = self._fail(error)

    def _fail(self, error: Exception) -> GuardReport:
        self._failed = True
        log.warning("adaspec: the guard failed and is off until a restart: %r", error)
        return GuardReport(PLAN, 0, {}, problem=in_one_line(error, 300))


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
            found = f"{shown(word)}{nearest(word, WORDS)}"
            problem = f"mode_file '{self.path}' says {found}: write {' or '.join(WORDS)}"
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
    if options.mode_file is not None:
        made.adaspec_mode_file = ModeFile(options.mode_file, options.mode)
    if options.is_guarded:
        cost = cost_from_document(options.costs, "costs")
        arms = (NONE, POLICY) if options.baseline is None else (NONE, POLICY, BASELINE)
        guard = Guard(plain_seconds(cost), LAGS[options.runner], arms)
        mode_of = made.adaspec_mode_file or options
        made.adaspec_timed = TimedSteps(made, guard, lambda: mode_of.mode == "serve")
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

    def adaspec_make_room(self: Any, options: Any) -> None:
        """From now on make as much room for drafts as the session says, step by step."""
        self.adaspec_length = self.num_spec_tokens
        # By this table vLLM would say how long drafts are at each load. Without one it pads a row
        # of one token to the longest draft, whatever the others are padded to.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_scheduled_tokens + 1)
        # No drafter writes KV for more tokens, but in one pass, or for recordings.
        if options.mode != "record" and options.draft_method not in IN_ONE_PASS:
            self.num_lookahead_tokens = min(self.num_lookahead_tokens, LONGEST_NEURAL)

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        """A step, with the salts of its new requests, and the mode that a file names, if any."""
        file, told = self.adaspec_mode_file, None
        if file is not None:
            before, told = file.mode, file.read()
            if told.mode == "serve" != before:
                # Blocks that were written until now the drafter may not have read.
                pool = self.kv_cache_manager.block_pool
                pool.evict_blocks({block.block_id for block in pool.blocks})
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        for new in output.scheduled_new_reqs:
            setattr(new, SALT_ATTRIBUTE, self.requests[new.req_id].cache_salt)
        setattr(output, MODE_ATTRIBUTE, told)
        return output

    def _update_after_schedule(self: Any, scheduler_output: Any) -> None:
        """Say of a step what the guard says, and for how long drafts the next one makes room.

        That is none where speculation is held off. Where many requests run, drafts take at most
        half of a step's room for tokens: of most few tokens are verified, and new prompts have to
        be read.
        """
        if self.adaspec_timed is not None:
            setattr(scheduler_output, GUARD_ATTRIBUTE, self.adaspec_timed.begin(scheduler_output))
        if self.adaspec_length is not None:
            length = 0
            if state_of(getattr(scheduler_output, GUARD_ATTRIBUTE, None)) in SPECULATING:
                share = self.max_num_scheduled_tokens // (2 * max(len(self.running), 1))
                length = max(min(self.adaspec_length, share - 1), 0)
            scheduler_output.num_spec_tokens_to_schedule = length
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take in what came of a step, and how long the session says that drafts are."""
        self.adaspec_length = getattr(model_runner_output, LENGTH, self.adaspec_length)
        timed = self.adaspec_timed
        came_s = 0.0 if timed is None else timed.clock()
        result = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if timed is not None:
            timed.end(scheduler_output, came_s, result)
            timed.is_busy = self.has_unfinished_requests()
        return result


def follow(session: Any, scheduled: Any) -> None:
    """Take a session over to what a scheduled step says."""
    told: Told | None = getattr(scheduled, MODE_ATTRIBUTE, None)
    guarded: GuardReport | None = getattr(scheduled, GUARD_ATTRIBUTE, None)
    session.guard_state = state_of(guarded)
    if guarded is not None:
        session.take_slowness(guarded.slowness)
        session.observers.notify("guarded", guarded)
    if told is not None and told.mode != session.mode:
        session.mode = told.mode
        session.observers.notify("switched", told.mode)
    for stage, said in (("guard", guarded), ("mode_file", told)):
        if said is not None and said.problem:  # it failed outside of the session, and was logged
            session.observers.notify("fault", stage, session.breaker.off)

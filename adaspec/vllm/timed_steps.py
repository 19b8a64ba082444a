"""The guard of an engine: its scheduler times the steps and sends each one the guard's state.

There is one clock, the scheduler's, and one place that decides, so that all ranks of an engine do
the same in the same step. A step takes from the output before its own to its own, which holds with
asynchronous scheduling, too, where the next step is scheduled meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from adaspec.policy.guard import PLAN, Guard, GuardDecision
from adaspec.vllm.patching import in_one_line

log = logging.getLogger("vllm.adaspec")

GUARD_ATTRIBUTE = "adaspec_guard"
"""The attribute of a scheduled step that holds its `GuardReport`; None where nothing is guarded."""
LAGS = {"V1": 1, "V2": 3}
"""By model runner, how many steps after a change-over are blurred: V1 verifies in a step what the
step before drafted. On V2 outputs also come before the drafting behind them is done, and what a
step verifies may have been scheduled before that."""
_LOG_PERIOD_S = 60.0
"""A server at an edge would log every few seconds otherwise."""
_MOST_IN_FLIGHT = 16


class GuardReport(NamedTuple):
    """What the guard says of one step, and what it knows."""

    state: str
    """One of `guard.STATES`, which names the arm of the step."""
    switches: int
    """How often another arm began to serve, since the start."""
    rates: Mapping[str, float]
    """By arm, tokens per second at the load of the step, as far as they are known."""
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
        self._failed = False
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
            return GuardReport(decision.state, self.guard.switches, self.guard.rates(decision))
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
        return GuardReport(PLAN, 0, {}, in_one_line(error, 300))

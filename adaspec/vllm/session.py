"""Drives one engine by a policy; it knows requests and token ids, but no particular engine.

An engine calls these methods of a session in every step:

    idle(alive)                 in a step in which nothing runs: release
    begin(batch, alive)         after the target verified: learn, release, admit, index, keep
    forwards()                  get the maximum number of drafter forwards
    take(tokens, confidences)   after each forward: get whether to run another
    finish()                    get the proposal, row by row of the engine's batch

None of them raises: a failure is counted and becomes an empty proposal.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np

from adaspec.cost.model import CostModel
from adaspec.draft.answers import AnswerIndex
from adaspec.policy.guard import HOLD, PLAN, PROBE
from adaspec.policy.protocol import Bools, Floats, Ints, Policy
from adaspec.policy.step import Cut, Executor, shorten_longest
from adaspec.vllm.batch import (
    EngineBatch,
    EngineDrafts,
    EngineStep,
    RunningRequest,
    RunningRequests,
    verify,
)
from adaspec.vllm.breaker import CircuitBreaker
from adaspec.vllm.drift import Drift
from adaspec.vllm.events import Observers, Serving
from adaspec.vllm.kept_answers import answers_of
from adaspec.vllm.request_limits import NOTHING, UNLIMITED, Limits, is_chosen, limits_of
from adaspec.vllm.request_record import is_named

log = logging.getLogger("vllm.adaspec")

SLOW_S = 1.0
"""A decision that takes longer counts as a fault, but its result is still used."""


def limits_or_note(request: str, params: Any, serving: Serving, breaker: CircuitBreaker) -> Limits:
    """A request's limits; if its arguments are wrong, that is noted and they do not count.

    The API server refuses such arguments, but a request need not have come through it.
    """
    try:
        return limits_of(request, params, serving.serve_fraction)
    except Exception as error:
        breaker.note("request", error)
        return UNLIMITED


def _is_whole(state: Any) -> bool:
    """Whether a request's output has reached its limit, or a token that ends it."""
    params, output = state.sampling_params, state.output_token_ids
    return bool(output) and (
        len(output) >= params.max_tokens or output[-1] in params.all_stop_token_ids
    )


class Session:
    """One policy serving one engine."""

    def __init__(self, policy: Policy, serving: Serving, stop_if_slow: bool) -> None:
        """`stop_if_slow` lets repeated slow decisions switch the policy off.

        Several ranks must decide alike but their clocks differ, so they cannot do that. They only
        count and log slow decisions.
        """
        self.policy, self.serving, self.setup = policy, serving, serving.setup
        self.observers = Observers()
        self.breaker = CircuitBreaker(serving.policy, self.observers)
        self.step = 0
        self.counts_slow_decisions = True
        """Whether slow decisions are faults; set to False while the first decisions compile."""
        self._stop_if_slow = stop_if_slow
        self.mode = serving.mode
        """The mode of the step that runs or begins next."""
        self._running = RunningRequests(self.setup.slots, answers_of(serving, policy))
        self.word = PLAN
        """What the guard says of that step."""
        self._sampled: set[str] = set()
        """The requests that sampled a token in the last step: all of their text had been read."""
        self._undrafted: dict[str, object] = {}
        """Requests that ran in mode 'off', or were held off, by id: the drafter's KV of their text
        has holes."""
        self._current: EngineStep | None = None
        self._pending: EngineStep | None = None
        """The step whose proposal the target is verifying."""
        self._engine_rows = 0
        self._failed = False
        self._ever_held = False
        self._keeps_alive = False
        self._decision_s = self._began_s = 0.0
        self._expects = getattr(policy, "expects", None)
        self._shortened = getattr(policy, "shortened", None)
        self._draft_to = 0
        """How many tokens the current step drafts at least, whatever the policy asks for."""
        self._executor = Executor(policy, self.setup, self._running.index)
        self.drift = Drift(policy, self.observers)

    def take_costs(self, cost: CostModel) -> None:
        """Decide by these costs; nothing has been served so far."""
        self.setup = dataclasses.replace(self.setup, cost=cost)
        self.serving = dataclasses.replace(self.serving, setup=self.setup)
        self._executor = Executor(self.policy, self.setup, self._running.index)

    @property
    def answers(self) -> AnswerIndex | None:
        """The answers of earlier requests; None if none are remembered."""
        return self._running.answers

    @property
    def keeps_alive(self) -> bool:
        """Whether the drafter must run over this step's tokens, even if only for its KV."""
        return self._keeps_alive and not self.breaker.off

    def begin(self, batch: EngineBatch, alive: Mapping[str, object]) -> None:
        """Learn from the last step's verification, and take in the requests that now run."""
        now_s = perf_counter()
        since_s, self._began_s = now_s - self._began_s, now_s
        self._open(len(batch.requests))
        off = self._failed = self.breaker.off
        if not off:
            self._learn(batch, since_s)
        sampled_before = self._sampled
        rows = zip(batch.requests, batch.sampled, strict=True)
        self._sampled = {name for name, tokens in rows if len(tokens)}
        with self._stage("look-up"):
            try:
                if self.mode == "off" or self.word == HOLD:
                    self._pause(batch, alive)
                    return
                if self.word == PROBE:
                    self._probe(batch, sampled_before)
                    return
                # Ended requests are forgotten even if the policy is off.
                steady = self._running.is_steady(batch, alive)
                if not steady:
                    self._release(batch, alive)
                if not off:
                    if not steady:
                        self._admit(batch)
                    running = self._running.catch_up(batch, self.step)
                    self._current = self._new_step(batch, running)
            except Exception:
                # The state may be half updated, so the next step builds it anew from the text.
                self._running = RunningRequests(self.setup.slots, self._running.answers)
                self._executor.index = self._running.index
                raise

    def idle(self, alive: Mapping[str, object]) -> None:
        """In a step in which nothing runs: if all requests have ended, forget them, as none may
        follow.

        In mode `record`, a request that can be recorded again stays if it did not end by itself: an
        engine that stops aborts what runs, and a partial row would be in the way.
        """
        requests = self._running.requests
        if any(alive.get(name) is request.state for name, request in requests.items()):
            return
        with self._stage("look-up"):
            cut = {
                name: request.state
                for name, request in requests.items()
                if self.serving.mode == "record" and is_named(name) and not _is_whole(request.state)
            }
            names = self._running.remove_ended(cut)
            if names:
                self.observers.notify("left", names)

    def skip(self, rows: int, error: Exception) -> None:
        """Begin a step whose batch could not be read; nothing is proposed in it."""
        self._open(rows)
        self._fault("batch", error)

    def _open(self, rows: int) -> None:
        self.step += 1
        self._engine_rows = rows
        self._current, self._failed = None, False
        self._decision_s = 0.0
        # If anything fails from now on, the drafter still runs, so that its KV gets no holes.
        self._keeps_alive = self._ever_held and self.mode != "off" and self.word == PLAN

    def forwards(self, possible: bool = True) -> int:
        """The maximum number of drafter forwards; 0 if it cannot run or the policy wants none."""
        current = self._current
        if current is None or self._failed:
            return 0
        with self._stage("plan"):
            self._executor.plan(current.step)
        current.wants_forward = current.step.planned > 0
        limit = max(current.step.planned, self._draft_to)
        if limit and not possible:
            current.drafter_unable = True
            return 0
        return limit

    def take(self, tokens: Ints, confidences: Floats) -> bool:
        """Store one drafted token per row of the engine's batch; returns whether to draft more."""
        current = self._current
        if current is None or self._failed:
            return False
        with self._stage("proceed"):
            current.drafts.take(tokens, confidences)
            if current.wants_forward:
                current.wants_forward = self._executor.forward_ran(current.step)
        if self._failed:
            return False
        return current.wants_forward or current.drafts.count < self._draft_to

    def finish(self) -> list[list[int]]:
        """The proposed tokens, row by row of the engine's batch."""
        proposed: list[list[int]] = [[] for _ in range(self._engine_rows)]
        current, self._current = self._current, None
        if current is None or self._failed:
            return proposed
        with self._stage("settle"):
            cut = self._executor.settle(current.step, current.room, current.drafter_unable)
            self._shorten(current, cut)
            chosen = current.chosen_tokens(
                self._executor.copied(current.step), self.serving.vocabulary
            )
            current.chosen = chosen
            current.proposed = chosen if current.proposes else [[] for _ in chosen]
        if self._failed:
            return proposed
        for engine_row, tokens in zip(current.engine_rows.tolist(), current.proposed, strict=True):
            proposed[engine_row] = tokens
        self._pending = current
        current.expected = self._expected(current)
        current.reasons = getattr(self.policy, "reasons", None)
        current.decision_s = self._decision_s
        self.observers.notify("proposed", current)
        if self.counts_slow_decisions and self._decision_s > SLOW_S:
            error = TimeoutError(f"a decision took {self._decision_s:.2f} s")
            if self._stop_if_slow:
                self.breaker.fault("time", error)
                return proposed
            self.breaker.note("time", error)
        self.breaker.step_succeeded()
        return proposed

    def drafter_ran(self, drafting: int, keep_alive: int) -> None:
        """Tell observers how many forwards the drafter ran in this step."""
        self.observers.notify("forwards", self.step, drafting, keep_alive, self._engine_rows)

    def _shorten(self, current: EngineStep, cut: Cut) -> None:
        """Propose nothing for recorded rows, for others what requests and the operator allow."""
        cut.neural_len[current.recorded] = cut.ngram_len[current.recorded] = 0
        if current.copies is not None:
            cut.ngram_len[~current.copies] = 0
        most = self.serving.max_drafted_tokens
        if most is not None:
            shorten_longest(cut, most)
        if self._shortened is not None and (most is not None or current.room is not None):
            self._shortened(current.step.proposal, cut.neural_len, cut.ngram_len)

    def _expected(self, current: EngineStep) -> Floats | None:
        if self._expects is None:
            return None
        try:
            return np.asarray(self._expects(current.step.proposal), np.float32)
        except Exception as error:
            self._expects = None  # this figure is only shown, so it may cause one fault at most
            self.breaker.fault("expects", error)
            return None

    def _learn(self, batch: EngineBatch, since_s: float) -> None:
        """Hand the policy the outcome of the rows of its last proposal that were verified.

        `since_s` is the time since the step of that proposal began.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        result = None
        with self._stage("learn"):
            result = verify(pending, batch)
            report = self._executor.report(
                pending.step,
                drafted=result.drafted,
                neural_drafted=result.neural_drafted,
                accepted=result.accepted,
                emitted=result.emitted,
                emitted_tokens=result.emitted_tokens,
                forwards=pending.drafts.count,
                known=result.known,
                judged=result.judged if pending.proposes else np.zeros_like(result.judged),
            )
            result.step_s = report.step_s
            result.took_s = since_s if result.complete else None
            if result.known.any():
                self._executor.learn(report)
        if result is not None:
            self.observers.notify("verified", result)
            if result.dropped:
                self.observers.notify("dropped", result.dropped)

    def _pause(self, batch: EngineBatch, alive: Mapping[str, object]) -> None:
        """Take a step without speculation: whoever runs in it gets no drafter any more."""
        names = self._running.remove_all()
        if names:
            self.observers.notify("left", names)
        self._forget_undrafted(alive)
        self._undrafted.update(zip(batch.requests, batch.states, strict=True))

    def _probe(self, batch: EngineBatch, sampled_before: set[str]) -> None:
        """Take a step without speculation after which requests keep the drafter, as it misses one
        token of each: but not those whose text is read in it, for the first time or once more."""
        for name, state in zip(batch.requests, batch.states, strict=True):
            if name in sampled_before:
                continue
            self._undrafted[name] = state
            request = self._running.requests.get(name)
            if request is not None:
                request.holds_neural = False

    def _forget_undrafted(self, alive: Mapping[str, object]) -> None:
        self._undrafted = {
            name: state for name, state in self._undrafted.items() if alive.get(name) is state
        }

    def _release(self, batch: EngineBatch, alive: Mapping[str, object]) -> None:
        if self._undrafted:
            self._forget_undrafted(alive)
        for names in (self._running.remove_ended(alive), self._running.make_room(batch)):
            if names:
                self.observers.notify("left", names)

    def _admit(self, batch: EngineBatch) -> None:
        for row, name in enumerate(batch.requests):
            if name in self._running.requests:
                continue
            request = self._running.enter(batch, row)
            params = getattr(request.state, "sampling_params", None)
            request.limits = limits_or_note(name, params, self.serving, self.breaker)
            whole = self._undrafted.pop(name, None) is not request.state
            request.recorded = (
                whole
                and request.limits is not NOTHING
                and is_chosen(name, self.serving.record_fraction)
            )
            request.holds_neural = request.recorded and self.serving.record_cap > 0
            with self._stage("admit"):  # if this fails, the request runs without the drafter
                admitted = self._executor.enter(request.slot, len(batch.requests))
                request.holds_neural |= admitted and whole and request.limits.drafter
            self._ever_held |= request.holds_neural
            prompt = batch.tokens[row, : request.prompt_tokens]
            most = getattr(params, "max_tokens", None)
            greedy = getattr(params, "temperature", None) == 0
            self.observers.notify("entered", name, prompt, request.recorded, most, greedy)

    def _new_step(self, batch: EngineBatch, running: Sequence[RunningRequest]) -> EngineStep | None:
        """Make a step of all rows whose prompts have been read; sets if the drafter must run."""
        ready = [row for row, sampled in enumerate(batch.sampled) if sampled]
        most = self.serving.max_context_tokens
        if most is not None:
            for request in running:
                if request.tokens > most and not request.recorded:
                    request.limits, request.holds_neural = NOTHING, False
        # While no request holds the drafter, the drafter reads no prompts. A later request that
        # holds it and finds such blocks in the prefix cache drafts a little worse, which costs
        # less than always reading them.
        self._keeps_alive = any(request.holds_neural for request in running)
        if not ready:
            return None
        stepping = [running[row] for row in ready]
        holds, recorded = np.array(
            [
                [request.holds_neural for request in stepping],
                [request.recorded for request in stepping],
            ],
            np.bool_,
        )
        self._draft_to = self.serving.record_cap if recorded.any() else 0
        slots, prompt, position, engine_rows = np.array(
            [
                [request.slot for request in stepping],
                [request.prompt_tokens for request in stepping],
                [request.tokens - request.prompt_tokens for request in stepping],
                ready,
            ],
            np.int32,
        )
        step = self._executor.begin(slots, prompt, position, holds)
        with self._stage("keep"):
            if not self._executor.keep(step, exempt=recorded):
                for request in self._running.requests.values():  # taken from them for good
                    request.holds_neural &= request.recorded
                self._keeps_alive = any(request.holds_neural for request in running)
        drafts = EngineDrafts(self._executor.index, step, engine_rows, self.setup.neural_cap)
        step.source = drafts
        room = None if batch.room is None else batch.room[ready].astype(np.int32)
        limits = [request.limits for request in stepping]
        copies: Bools | None = None
        limited: Bools | None = None
        if any(each is not UNLIMITED for each in limits):
            allowed = np.array([each.most_tokens for each in limits], np.int32)
            limited, copies = allowed == 0, np.array([each.copies for each in limits], np.bool_)
            room = allowed if room is None else np.minimum(room, allowed)
        return EngineStep(
            number=self.step,
            requests=[batch.requests[row] for row in ready],
            engine_rows=engine_rows,
            step=step,
            drafts=drafts,
            recorded=recorded,
            proposes=self.mode == "serve",
            room=room,
            limited=limited,
            copies=copies,
        )

    def _stage(self, stage: str) -> _Stage:
        """Adds the stage's time to the decision time, and turns an exception into a fault."""
        return _Stage(self, stage)

    def _fault(self, stage: str, error: Exception) -> None:
        if self._failed:  # several faults in one step count as one
            self.breaker.counts[stage] += 1
            return
        self._failed = True
        self._pending = None
        self.breaker.fault(stage, error, self._engine_rows)


class _Stage:
    """The context of a stage; a generator's would take longer than some stages do."""

    __slots__ = ("_before_s", "_began_s", "_name", "_session")

    def __init__(self, session: Session, name: str) -> None:
        self._session, self._name = session, name

    def __enter__(self) -> None:
        self._before_s = self._session._decision_s
        self._began_s = perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        failed = isinstance(error, Exception)
        if isinstance(error, Exception):
            self._session._fault(self._name, error)
        # A nested stage has already added its time, which must not count twice.
        self._session._decision_s = self._before_s + perf_counter() - self._began_s
        return failed

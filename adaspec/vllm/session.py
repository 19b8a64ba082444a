"""A policy serving one engine; it knows requests and token ids, and no engine in particular.

    begin(batch, alive)         the target has verified: learn, release, admit, index, keep
    forwards()                  at most how many drafter forwards
    take(tokens, confidences)   after each of them: one more?
    finish()                    what is proposed, row by row of the engine's batch

Nothing here raises: what fails becomes an empty proposal, and is counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from adaspec.policy.base import BasePolicy
from adaspec.policy.protocol import Arrival, Floats, Ints, Policy, Proposal
from adaspec.step.executor import Executor
from adaspec.vllm.batch import (
    EngineBatch,
    EngineDrafts,
    EngineStep,
    RunningRequest,
    RunningRequests,
    verify,
)
from adaspec.vllm.breaker import CircuitBreaker
from adaspec.vllm.events import (
    Observer,
    Observers,
    RequestEntered,
    Serving,
    StepProposed,
    StepVerified,
)

SLOW_S = 1.0
"""A decision that takes longer counts as a fault; its result is used all the same."""


class RecordPolicy(BasePolicy):
    """Proposes nothing, and gives the drafter to no request: recorded ones get it anyway."""

    name = "record"

    def admit(self, arrival: Arrival) -> bool:
        """Never."""
        return False


def is_recorded(request: str, fraction: float) -> bool:
    """Whether a request is in the recorded fraction: decided by its id, on every rank alike."""
    digest = hashlib.blake2b(request.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2.0**64


class Session:
    """One policy serving one engine."""

    def __init__(self, policy: Policy, serving: Serving, stop_if_slow: bool) -> None:
        """`stop_if_slow`: repeated slow decisions switch the policy off.

        Ranks that must decide alike cannot do that, for their clocks differ: there slow decisions
        are only counted and logged.
        """
        self.policy, self.serving, self.setup = policy, serving, serving.setup
        self.observers = Observers()
        self.breaker = CircuitBreaker(serving.policy, self.observers)
        self.step = 0
        self.counts_slow_decisions = True
        """Whether slow decisions are faults; not while the first ones compile."""
        self._stop_if_slow = stop_if_slow
        self._proposes = serving.mode == "serve"
        self._running = RunningRequests(self.setup.slots)
        self._current: EngineStep | None = None
        self._pending: EngineStep | None = None
        """The step whose proposal the target is verifying."""
        self._engine_rows = 0
        self._failed = False
        self._ever_held = False
        self._keeps_alive = False
        self._decision_s = self._began_s = 0.0
        self._expects = getattr(policy, "expects", None)
        self._record_to = 0
        self._executor = Executor(policy, self.setup, self._running.index)

    def add_observers(self, *observers: Observer) -> None:
        """Notify these observers of what happens from now on."""
        self.observers.add(*observers)

    @property
    def keeps_alive(self) -> bool:
        """Whether the drafter must run over this step's tokens, if only to keep its KV complete."""
        return self._keeps_alive and not self.breaker.off

    def begin(self, batch: EngineBatch, alive: Mapping[str, object]) -> None:
        """Learn from the last step's verification, and look at who is running now."""
        now_s = perf_counter()
        since_s, self._began_s = now_s - self._began_s, now_s
        self._open(len(batch.requests))
        off = self._failed = self.breaker.off
        if not off:
            with self._stage("learn"):
                self._learn(batch, since_s)
        with self._stage("look-up"):
            try:
                # Requests that have ended are forgotten even when the policy is off.
                self._release(batch, alive)
                if not off:
                    self._admit(batch)
                    self._running.catch_up(batch, self.step)
                    self._current = self._new_step(batch)
            except Exception:
                # What is half done is built anew from the text in the next step.
                self._running = RunningRequests(self.setup.slots)
                self._executor.index = self._running.index
                raise

    def skip(self, rows: int, error: Exception) -> None:
        """Begin a step whose batch could not be read: nothing is proposed in it."""
        self._open(rows)
        self._fault("batch", error)

    def _open(self, rows: int) -> None:
        self.step += 1
        self._engine_rows = rows
        self._current, self._failed = None, False
        self._decision_s = 0.0
        # If anything fails from here on, the drafter still runs, so that its KV gets no holes.
        self._keeps_alive = self._ever_held

    def forwards(self, possible: bool = True) -> int:
        """The most forwards that the drafter runs; 0 where it cannot or the policy will not."""
        current = self._current
        if current is None or self._failed:
            return 0
        with self._stage("plan"):
            self._executor.plan(current.step)
        current.wants_forward = current.step.planned > 0
        limit = max(current.step.planned, self._record_to)
        if limit and not possible:
            current.drafter_unable = True
            return 0
        return limit

    def take(self, tokens: Ints, confidences: Floats) -> bool:
        """Take in one drafted token per row of the engine's batch; whether to draft another."""
        current = self._current
        if current is None or self._failed:
            return False
        with self._stage("proceed"):
            current.drafts.take(tokens, confidences)
            if current.wants_forward:
                current.wants_forward = self._executor.forward_ran(current.step)
        if self._failed:
            return False
        return current.wants_forward or current.drafts.count < self._record_to

    def finish(self) -> list[list[int]]:
        """The proposed tokens, row by row of the engine's batch."""
        proposed: list[list[int]] = [[] for _ in range(self._engine_rows)]
        current, self._current = self._current, None
        if current is None or self._failed:
            return proposed
        with self._stage("settle"):
            cut = self._executor.settle(current.step, current.room, current.drafter_unable)
            chosen = current.chosen_tokens(self._executor.index, self.serving.vocabulary)
            cut.neural_len[current.recorded] = cut.ngram_len[current.recorded] = 0
            for row in np.flatnonzero(current.recorded):
                chosen[row] = []
            current.proposed = chosen if self._proposes else [[] for _ in chosen]
        if self._failed:
            return proposed
        for engine_row, tokens in zip(current.engine_rows.tolist(), current.proposed, strict=True):
            proposed[engine_row] = tokens
        self._pending = current
        self._notify_proposed(current, chosen)
        if self.counts_slow_decisions and self._decision_s > SLOW_S:
            slow = TimeoutError(f"a decision took {self._decision_s:.2f} s")
            if self._stop_if_slow:
                self.breaker.fault(self.step, "time", slow)
                return proposed
            self.breaker.note(self.step, "time", slow)
        self.breaker.step_succeeded()
        return proposed

    def drafter_ran(self, drafting: int, keep_alive: int) -> None:
        """Report how many forwards the drafter ran in this step."""
        self.observers.notify("forwards", self.step, drafting, keep_alive, self._engine_rows)

    def _notify_proposed(self, current: EngineStep, chosen: list[list[int]]) -> None:
        step = current.step
        assert step.proposal is not None and step.cut is not None
        event = StepProposed(
            step=self.step,
            requests=current.requests,
            batch=step.batch,
            planned=step.planned,
            drafts=current.drafts.drafts(current.drafts.count),
            shown=step.forwards,
            recorded=current.recorded,
            proposal=step.proposal,
            neural_len=step.cut.neural_len,
            ngram_len=step.cut.ngram_len,
            tokens=current.proposed,
            chosen=chosen,
            expected=self._expected(step.proposal),
            decision_s=self._decision_s,
            barred=None if current.room is None else current.room <= 0,
        )
        self.observers.notify("proposed", event)

    def _expected(self, proposal: Proposal) -> Floats | None:
        """The accepted tokens that the policy expects of its proposal, if it says so."""
        if self._expects is None:
            return None
        try:
            return np.asarray(self._expects(proposal), np.float32)
        except Exception as error:
            self._expects = None  # the figure is only shown: one fault for it is enough
            self.breaker.fault(self.step, "expects", error)
            return None

    def _learn(self, batch: EngineBatch, since_s: float) -> None:
        """Hand the policy the outcome of its last proposal, as far as it was verified as proposed.

        `since_s`: the time since that proposal's step began.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        result = verify(pending, batch)
        outcome = self._executor.outcome(
            pending.step,
            drafted=result.drafted,
            neural_drafted=result.neural_drafted,
            accepted=result.accepted,
            emitted=result.emitted,
            emitted_tokens=result.emitted_tokens,
            forwards=pending.drafts.count,
            known=result.known,
            judged=result.judged & self._proposes,
        )
        # Observers get copies: a policy may write into what it is handed.
        event = StepVerified(
            step=pending.number,
            requests=pending.requests,
            known=result.known,
            drafted=result.drafted.copy(),
            neural_drafted=result.neural_drafted.copy(),
            accepted=result.accepted.copy(),
            step_s=outcome.step_s,
            took_s=since_s if result.complete else None,
        )
        self.observers.notify("verified", event)
        if result.dropped:
            self.observers.notify("dropped", result.dropped)
        if result.known.any():
            self._executor.learn(pending.step, outcome)

    def _release(self, batch: EngineBatch, alive: Mapping[str, object]) -> None:
        for names, slots in (self._running.remove_ended(alive), self._running.make_room(batch)):
            if names:
                self.observers.notify("left", names)
                with self._stage("release"):
                    self._executor.release(slots)

    def _admit(self, batch: EngineBatch) -> None:
        for row, name in enumerate(batch.requests):
            if name in self._running.requests:
                continue
            request = self._running.enter(batch, row)
            request.recorded = is_recorded(name, self.serving.record_fraction)
            request.holds_neural = request.recorded and self.serving.record_cap > 0
            with self._stage("admit"):  # where it fails, the request runs without the drafter
                request.holds_neural |= self._executor.admit(
                    request.slot, request.prompt_tokens, len(batch.requests)
                )
            self._ever_held |= request.holds_neural
            prompt = batch.tokens[row, : request.prompt_tokens]
            self.observers.notify("entered", RequestEntered(name, prompt, request.recorded))

    def _new_step(self, batch: EngineBatch) -> EngineStep | None:
        """A step of all rows whose prompt has been read; sets whether the drafter must run."""
        running = [self._running.requests[name] for name in batch.requests]
        ready = [row for row, sampled in enumerate(batch.sampled) if sampled]
        # While nobody holds the drafter it reads no prompts. A request that holds it later and
        # finds such blocks in the prefix cache drafts a little worse, which is cheaper.
        self._keeps_alive = any(request.holds_neural for request in running)
        if not ready:
            return None
        stepping = [running[row] for row in ready]
        recorded = np.array([request.recorded for request in stepping], np.bool_)
        self._record_to = self.serving.record_cap if recorded.any() else 0
        prompt = np.array([request.prompt_tokens for request in stepping], np.int32)
        step = self._executor.begin(
            np.array([request.slot for request in stepping], np.int32),
            prompt,
            np.array([request.tokens for request in stepping], np.int32) - prompt,
            np.array([request.holds_neural for request in stepping], np.bool_),
        )
        with self._stage("keep"):
            if not self._executor.keep(step, exempt=recorded):
                self._drop_drafter(running)
        engine_rows = np.array(ready, np.int32)
        drafts = EngineDrafts(self._executor.index, step, engine_rows, self.setup.neural_cap)
        step.source = drafts
        return EngineStep(
            number=self.step,
            requests=[batch.requests[row] for row in ready],
            engine_rows=engine_rows,
            step=step,
            drafts=drafts,
            recorded=recorded,
            room=None if batch.room is None else batch.room[ready].astype(np.int32),
        )

    def _drop_drafter(self, running: list[RunningRequest]) -> None:
        """Take the drafter from every request that is not recorded, for good."""
        for request in self._running.requests.values():
            request.holds_neural &= request.recorded
        self._keeps_alive = any(request.holds_neural for request in running)

    @contextmanager
    def _stage(self, stage: str) -> Iterator[None]:
        """Add a stage's time to the decision's, and turn what it raises into a fault."""
        before_s, began_s = self._decision_s, perf_counter()
        try:
            yield
        except Exception as error:
            self._fault(stage, error)
        # A stage within this one has added its time already: it must not count twice.
        self._decision_s = before_s + perf_counter() - began_s

    def _fault(self, stage: str, error: Exception) -> None:
        if self._failed:  # several faults in one step count as one
            self.breaker.counts[stage] += 1
            return
        self._failed = True
        self._pending = None
        self.breaker.fault(self.step, stage, error, self._engine_rows)

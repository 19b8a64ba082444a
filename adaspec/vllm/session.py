"""A policy, taken through an engine's steps as the replay takes it; knows requests, no engine.

    begin(rows, alive)          the target has verified: learn, release, admit, index, keep
    forwards()                  at most how many drafter forwards
    take(tokens, confidences)   after each of them: one more?
    finish()                    what is proposed, row by row of the engine's batch

Nothing here raises: what fails becomes an empty proposal, and is counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from time import perf_counter

import numpy as np

from adaspec.policy.base import BasePolicy
from adaspec.policy.protocol import Arrival, Floats, Ints, Policy, Proposal
from adaspec.step.cut import Cut
from adaspec.step.executor import Executor
from adaspec.vllm.drafting import EngineDrafts, EngineStep, proposed_tokens
from adaspec.vllm.guard import Guard
from adaspec.vllm.observer import Audience, Came, Entered, Observer, Proposed, Serving
from adaspec.vllm.running import EngineBatch, RunningRequest, RunningRequests
from adaspec.vllm.verification import Pending, is_all, verification_of

SLOW_S = 1.0
"""A decision that takes longer counts as a fault; it never changes what that decision is."""


class Recording(BasePolicy):
    """Proposes nothing; requests that are not recorded need no drafter."""

    name = "record"

    def admit(self, arrival: Arrival) -> bool:
        """Without it."""
        return False


def is_recorded(request: str, fraction: float) -> bool:
    """Whether a request is of the fraction that is recorded: by its id, on every rank alike."""
    digest = hashlib.blake2b(request.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2.0**64


class Session:
    """One policy serving one engine."""

    def __init__(self, policy: Policy, serving: Serving, vocabulary: int, watch: bool) -> None:
        """`watch`: repeated slow decisions switch the policy off.

        Ranks that must decide alike cannot have that, for their clocks differ: there slow decisions
        are counted and said, and nothing follows from them.
        """
        self.policy, self.serving, self.setup = policy, serving, serving.setup
        self.audience = Audience()
        self.guard = Guard(serving.policy, self.audience)
        self.step = 0
        self.counts_slow_decisions = True
        """Whether slow decisions are faults: while stages compile they are not."""
        self._vocabulary, self._watch = vocabulary, watch
        self._proposes = serving.mode == "serve"
        self._running = RunningRequests(self.setup.slots)
        self._pending: Pending | None = None
        self._current: EngineStep | None = None
        self._engine_rows = 0
        self._failed = False
        self._ever_held = False
        self._keeps_alive = False
        self._decision_s = self._began = 0.0
        self._expects = getattr(policy, "expects", None)
        self._record_to = 0
        self._executor = Executor(policy, self.setup, self._running.index)

    def watched_by(self, *observers: Observer) -> None:
        """Let these observers in, and tell them what is being served."""
        for observer in observers:
            self.audience.add(observer)
        self.audience.tell("serving", self.serving)

    @property
    def keeps_alive(self) -> bool:
        """Whether the drafter must run over this step's tokens, if only to keep its KV whole."""
        return self._keeps_alive and not self.guard.off

    def begin(self, rows: EngineBatch, alive: Mapping[str, object]) -> None:
        """Take in what came, and see who is running."""
        began = perf_counter()
        since_s = began - self._began
        self._began = began
        self._open(len(rows.requests))
        off = self._failed = self.guard.off
        try:
            if not off:
                self._learn(rows, since_s)
        except Exception as error:
            self._fault("learn", error)
        try:
            # Whoever has ended is forgotten even where nothing is decided any more.
            self._release(rows, alive)
            if not off:
                self._admit(rows)
                self._running.catch_up(rows, self.step)
                self._current = self._new_step(rows)
        except Exception as error:
            self._fault("look-up", error)
            # Whatever was half done is done again from the text in the next step.
            self._running = RunningRequests(self.setup.slots)
            self._executor.index = self._running.index
        self._decision_s = perf_counter() - began

    def skip(self, rows: int, error: Exception) -> None:
        """Begin a step of which nothing could be read: nothing is proposed in it."""
        self._open(rows)
        self._fault("batch", error)

    def _open(self, rows: int) -> None:
        self.step += 1
        self._engine_rows = rows
        self._current, self._failed = None, False
        # If anything fails from here on, the rows' KV must not get holes for it.
        self._keeps_alive = self._ever_held

    def forwards(self, possible: bool = True) -> int:
        """The most forwards that the drafter runs; 0 where it cannot or the policy will not."""
        current = self._current
        if current is None or self._failed:
            return 0
        began = perf_counter()
        planned = 0
        try:
            planned = self._executor.plan(current.step)
        except Exception as error:
            self._fault("plan", error)
        self._decision_s += perf_counter() - began
        current.wants_forward = planned > 0
        most = max(planned, self._record_to)
        if most and not possible:
            current.drafter_unable = True
            return 0
        return most

    def take(self, tokens: Ints, confidences: Floats) -> bool:
        """Take in one drafted token per row of the engine's batch; whether to draft another."""
        current = self._current
        if current is None or self._failed:
            return False
        began = perf_counter()
        try:
            current.drafts.take(tokens, confidences)
            if current.wants_forward:
                current.wants_forward = self._executor.forward_ran(current.step)
        except Exception as error:
            self._fault("proceed", error)
            return False
        self._decision_s += perf_counter() - began
        return current.wants_forward or current.drafts.count < self._record_to

    def finish(self) -> list[list[int]]:
        """What is proposed, row by row of the engine's batch."""
        proposed: list[list[int]] = [[] for _ in range(self._engine_rows)]
        current, self._current = self._current, None
        if current is None or self._failed:
            return proposed
        began = perf_counter()
        step, drafts, recorded = current.step, current.drafts, current.recorded
        try:
            cut = self._executor.settle(step, current.room, lenient=current.drafter_unable)
            tokens = proposed_tokens(
                self._executor.index, step, cut, drafts.tokens, self._vocabulary
            )
        except Exception as error:
            self._fault("settle", error)
            return proposed
        cut.neural_len[recorded] = cut.ngram_len[recorded] = 0
        for row in np.flatnonzero(recorded):
            tokens[row] = []
        served = tokens if self._proposes else [[] for _ in tokens]
        for engine_row, draft in zip(current.engine_rows.tolist(), served, strict=True):
            proposed[engine_row] = draft
        self._pending = Pending(
            self.step,
            current.requests,
            step,
            cut.neural_len,
            served,
            ~recorded & self._proposes,
            drafts.count,
        )
        self._decision_s += perf_counter() - began
        self._tell_proposed(current, cut, served, tokens)
        if self.counts_slow_decisions and self._decision_s > SLOW_S:
            slow = TimeoutError(f"a decision took {self._decision_s:.2f} s")
            if self._watch:
                self.guard.fault(self.step, "time", slow)
                return proposed
            self.guard.note(self.step, "time", slow)
        self.guard.went_well()
        return proposed

    def drafter_ran(self, drafting: int, keep_alive: int) -> None:
        """Forwards of the drafter in this step, counted where they happened."""
        self.audience.tell("forwards", self.step, drafting, keep_alive, self._engine_rows)

    def _tell_proposed(
        self,
        current: EngineStep,
        cut: Cut,
        tokens: list[list[int]],
        meant: list[list[int]],
    ) -> None:
        step = current.step
        assert step.proposal is not None
        self.audience.tell(
            "proposed",
            Proposed(
                step=self.step,
                requests=current.requests,
                batch=step.batch,
                planned=step.planned,
                drafts=current.drafts.everything(),
                shown=step.forwards,
                recorded=current.recorded,
                proposal=step.proposal,
                neural_len=cut.neural_len,
                ngram_len=cut.ngram_len,
                tokens=tokens,
                meant=meant,
                expected=self._expected(step.proposal),
                decision_s=self._decision_s,
                barred=None if current.room is None else current.room <= 0,
            ),
        )

    def _expected(self, proposal: Proposal) -> Floats | None:
        """What the policy expects of its proposal, if it is one that says so."""
        if self._expects is None:
            return None
        try:
            found: Floats = np.asarray(self._expects(proposal), np.float32)
        except Exception as error:
            self._expects = None  # a figure to look at is not worth a second fault
            self.guard.fault(self.step, "expects", error)
            return None
        return found

    def _learn(self, rows: EngineBatch, since_s: float) -> None:
        """Hand the policy what came of its last proposal, as far as it was verified as proposed.

        `since_s`: what has passed since that proposal's step began.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        verification = verification_of(pending, rows)
        outcome = self._executor.outcome(
            pending.step,
            drafted=verification.drafted,
            neural_drafted=verification.neural_drafted,
            accepted=verification.accepted,
            emitted=verification.emitted,
            emitted_tokens=verification.emitted_tokens,
            forwards=pending.forwards,
            known=verification.known,
            judged=verification.judged,
        )
        # The watchers' arrays are their own: a policy may write into what it is handed.
        came = Came(
            step=pending.number,
            requests=pending.requests,
            known=verification.known,
            drafted=outcome.drafted.copy(),
            neural_drafted=outcome.neural_drafted.copy(),
            accepted=outcome.accepted.copy(),
            emitted=outcome.emitted.copy(),
            emitted_tokens=outcome.emitted_tokens.copy(),
            step_s=outcome.step_s,
            took_s=since_s if is_all(pending, verification, rows) else None,
        )
        self.audience.tell("came", came)
        if verification.dropped:
            self.audience.tell("dropped", verification.dropped)
        if verification.known.any():
            self._executor.learn(pending.step, outcome)

    def _release(self, rows: EngineBatch, alive: Mapping[str, object]) -> None:
        for names, slots in (self._running.leave(alive), self._running.make_room(rows, self.step)):
            if names:
                self.audience.tell("left", names)
                try:
                    self._executor.release(slots)
                except Exception as error:
                    self._fault("release", error)

    def _admit(self, rows: EngineBatch) -> None:
        for row, name in enumerate(rows.requests):
            if name in self._running.requests:
                continue
            request = self._running.enter(rows, row)
            request.recorded = is_recorded(name, self.serving.record_fraction)
            request.holds_neural = request.recorded and self.serving.record_cap > 0
            try:
                request.holds_neural |= self._executor.admit(
                    request.slot, request.prompt_tokens, len(rows.requests)
                )
            except Exception as error:
                self._fault("admit", error)  # it runs without the drafter
            self._ever_held |= request.holds_neural
            prompt = rows.tokens[row, : request.prompt_tokens]
            self.audience.tell(
                "entered",
                Entered(name, request.slot, prompt, request.holds_neural, request.recorded),
            )

    def _new_step(self, rows: EngineBatch) -> EngineStep | None:
        """A step of all rows whose prompt is through, and whether the drafter must run."""
        running = [self._running.requests[name] for name in rows.requests]
        ready = [row for row, sampled in enumerate(rows.sampled) if sampled]
        # A holder that later finds the blocks of a prompt which the drafter did not read drafts a
        # little worse, and no request pays for what may never come.
        self._keeps_alive = any(request.holds_neural for request in running)
        if not ready:
            return None
        chosen = [running[row] for row in ready]
        recorded = np.array([request.recorded for request in chosen], np.bool_)
        self._record_to = self.serving.record_cap if recorded.any() else 0
        prompt = np.array([request.prompt_tokens for request in chosen], np.int32)
        step = self._executor.begin(
            np.array([request.slot for request in chosen], np.int32),
            prompt,
            np.array([request.tokens for request in chosen], np.int32) - prompt,
            np.array([request.holds_neural for request in chosen], np.bool_),
        )
        try:
            if not self._executor.keep(step, exempt=recorded):
                self._let_drafter_go(running)
        except Exception as error:
            self._fault("keep", error)
        engine_rows = np.array(ready, np.int32)
        drafts = EngineDrafts(self._executor.index, step, engine_rows, self.setup.neural_cap)
        step.source = drafts
        return EngineStep(
            requests=[rows.requests[row] for row in ready],
            engine_rows=engine_rows,
            step=step,
            drafts=drafts,
            recorded=recorded,
            room=None if rows.room is None else rows.room[ready].astype(np.int32),
        )

    def _let_drafter_go(self, running: list[RunningRequest]) -> None:
        """Take the drafter from every request that is not recorded, for good."""
        for request in self._running.requests.values():
            request.holds_neural &= request.recorded
        self._keeps_alive = any(request.holds_neural for request in running)

    def _fault(self, stage: str, error: Exception) -> None:
        if self._failed:  # one step, one fault: several in one do not wear out the guard
            self.guard.counts[stage] += 1
            return
        self._failed = True
        self._pending = None
        self.guard.fault(self.step, stage, error, self._engine_rows)

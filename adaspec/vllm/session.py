"""A policy, driven step by step as the replay drives it; knows requests, but no engine.

    begin(rows, alive)          the target has spoken: learn, release, admit, index, keep
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

from adaspec.policy.base import BasePolicy, keeps_drafter
from adaspec.policy.protocol import (
    Arrival,
    Batch,
    Floats,
    Ints,
    Outcome,
    Policy,
    Proposal,
)
from adaspec.vllm.desk import Cut, Decision, cut, decision_of, planned_forwards
from adaspec.vllm.guard import Guard
from adaspec.vllm.observer import Audience, Came, Entered, Observer, Proposed, Serving
from adaspec.vllm.roster import Roster, Rows
from adaspec.vllm.verdict import Pending, is_all, verdict_on

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
        self.hurries = True
        """Whether slow decisions matter: while stages compile they do not."""
        self._vocabulary, self._watch = vocabulary, watch
        self._proposes = serving.mode == "serve"
        self._roster = Roster(self.setup.slots)
        self._pending: Pending | None = None
        self._decision: Decision | None = None
        self._engine_rows = 0
        self._failed = False
        self._lenient = False
        self._ever_held = False
        self._keeps_alive = False
        self._decision_s = self._began = 0.0
        self._expects = getattr(policy, "expects", None)
        self._recorded = np.zeros(0, np.bool_)
        self._record_to = 0
        policy.start(self.setup)

    def watched_by(self, *observers: Observer) -> None:
        """Let these observers in, and tell them what is being served."""
        for observer in observers:
            self.audience.add(observer)
        self.audience.tell("serving", self.serving)

    @property
    def keeps_alive(self) -> bool:
        """Whether the drafter must run over this step's tokens, if only to keep its KV whole."""
        return self._keeps_alive and not self.guard.off

    def begin(self, rows: Rows, alive: Mapping[str, object]) -> None:
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
                self._roster.catch_up(rows, self.step)
                self._decision = self._look(rows)
        except Exception as error:
            self._fault("look-up", error)
            # Whatever was half done is done again from the text in the next step.
            self._roster = Roster(self.setup.slots)
        self._decision_s = perf_counter() - began

    def skip(self, rows: int, error: Exception) -> None:
        """Begin a step of which nothing could be read: nothing is proposed in it."""
        self._open(rows)
        self._fault("batch", error)

    def _open(self, rows: int) -> None:
        self.step += 1
        self._engine_rows = rows
        self._decision, self._failed, self._lenient = None, False, False
        # If anything fails from here on, the rows' KV must not get holes for it.
        self._keeps_alive = self._ever_held

    def forwards(self, possible: bool = True) -> int:
        """The most forwards that the drafter runs; 0 where it cannot or the policy will not."""
        decision = self._decision
        if decision is None or self._failed:
            return 0
        began = perf_counter()
        held = bool(decision.batch.holds_neural.any())
        try:
            planned = planned_forwards(
                self.policy.plan(decision.batch), self.setup.neural_cap, held
            )
        except Exception as error:
            self._fault("plan", error)
            planned = 0
        self._decision_s += perf_counter() - began
        decision.planned = planned
        most = max(planned, self._record_to)
        if most and not possible:
            self._lenient = True
            return 0
        return most

    def take(self, tokens: Ints, confidences: Floats) -> bool:
        """Take in one drafted token per row of the engine's batch; whether to draft another."""
        decision = self._decision
        if decision is None or self._failed:
            return False
        began = perf_counter()
        asked = not decision.ended and decision.count < decision.planned
        going_on = False
        try:
            decision.take(tokens, confidences)
            if asked:
                decision.shown = decision.count
                if decision.count < decision.planned:
                    going_on = bool(self.policy.proceed(decision.batch, decision.drafts()))
                decision.ended = not going_on
        except Exception as error:
            self._fault("proceed", error)
            return False
        self._decision_s += perf_counter() - began
        return going_on or decision.count < self._record_to

    def finish(self) -> list[list[int]]:
        """What is proposed, row by row of the engine's batch."""
        proposed: list[list[int]] = [[] for _ in range(self._engine_rows)]
        decision = self._decision
        self._decision = None
        if decision is None or self._failed:
            return proposed
        began = perf_counter()
        try:
            proposal = self.policy.settle(decision.batch, decision.drafts())
            made = cut(proposal, decision, self.setup.cap, self._vocabulary, self._lenient)
        except Exception as error:
            self._fault("settle", error)
            return proposed
        made.neural_len[self._recorded] = made.ngram_len[self._recorded] = 0
        for row in np.flatnonzero(self._recorded):
            made.tokens[row] = []
        tokens = made.tokens if self._proposes else [[] for _ in made.tokens]
        for row, found in zip(decision.rows.tolist(), tokens, strict=True):
            proposed[row] = found
        self._pending = Pending(
            self.step,
            decision.requests,
            decision.batch,
            proposal,
            made.neural_len,
            tokens,
            ~self._recorded & self._proposes,
            decision.count,
        )
        self._decision_s += perf_counter() - began
        self._tell_proposed(decision, proposal, made, tokens)
        if self.hurries and self._decision_s > SLOW_S:
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
        decision: Decision,
        proposal: Proposal,
        made: Cut,
        tokens: list[list[int]],
    ) -> None:
        self.audience.tell(
            "proposed",
            Proposed(
                step=self.step,
                requests=decision.requests,
                batch=decision.batch,
                planned=decision.planned,
                drafts=decision.everything(),
                shown=decision.shown,
                recorded=self._recorded,
                proposal=proposal,
                neural_len=made.neural_len,
                ngram_len=made.ngram_len,
                tokens=tokens,
                meant=made.tokens,
                expected=self._expected(proposal),
                decision_s=self._decision_s,
                barred=None if decision.room is None else decision.room <= 0,
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

    def _learn(self, rows: Rows, since_s: float) -> None:
        """Hand the policy what came of its last proposal, as far as it was verified as proposed.

        `since_s`: what has passed since that proposal's step began.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        found = verdict_on(pending, rows)
        batch, known = pending.batch, found.known
        # Who has left was in none of the step's rows.
        step_s = self.setup.cost.step_s(
            int(known.sum() + found.drafted.sum()),
            int(batch.context_tokens[known].sum()),
            pending.forwards,
            bool(batch.holds_neural[known].any()),
        )
        # The watchers' arrays are their own: a policy may write into what it is handed.
        came = Came(
            step=pending.step,
            requests=pending.requests,
            known=found.known,
            drafted=found.drafted.copy(),
            neural_drafted=found.neural_drafted.copy(),
            accepted=found.accepted.copy(),
            emitted=found.emitted.copy(),
            emitted_tokens=found.emitted_tokens.copy(),
            step_s=step_s,
            took_s=since_s if is_all(pending, found, rows) else None,
        )
        self.audience.tell("came", came)
        if found.dropped:
            self.audience.tell("dropped", found.dropped)
        outcome = Outcome(
            found.drafted,
            found.neural_drafted,
            found.accepted,
            found.emitted,
            found.emitted_tokens,
            step_s,
            found.judged,
        )
        if known.any():
            self.policy.learn(batch, pending.proposal, outcome)

    def _release(self, rows: Rows, alive: Mapping[str, object]) -> None:
        for names, slots in (self._roster.leave(alive), self._roster.make_room(rows, self.step)):
            if names:
                self.audience.tell("left", names)
                try:
                    self.policy.release(slots)
                except Exception as error:
                    self._fault("release", error)

    def _admit(self, rows: Rows) -> None:
        for row, name in enumerate(rows.requests):
            if name in self._roster.seats:
                continue
            seat = self._roster.enter(rows, row)
            seat.recorded = is_recorded(name, self.serving.record_fraction)
            seat.holds_neural = seat.recorded and self.serving.record_cap > 0
            arrival = Arrival(seat.slot, seat.prompt_tokens, len(rows.requests))
            try:
                seat.holds_neural |= bool(self.policy.admit(arrival)) and self.setup.neural_cap > 0
            except Exception as error:
                self._fault("admit", error)  # it runs without the drafter
            self._ever_held |= seat.holds_neural
            prompt = rows.tokens[row, : seat.prompt_tokens]
            self.audience.tell(
                "entered", Entered(name, seat.slot, prompt, seat.holds_neural, seat.recorded)
            )

    def _look(self, rows: Rows) -> Decision | None:
        """A decision on all rows whose prompt is through, and whether the drafter must run."""
        seats = [self._roster.seats[name] for name in rows.requests]
        ready = [row for row, came in enumerate(rows.sampled) if came]
        # A holder that later finds the blocks of a prompt which the drafter did not read drafts a
        # little worse, and no request pays for what may never come.
        self._keeps_alive = any(seat.holds_neural for seat in seats)
        if not ready:
            return None
        chosen = [seats[row] for row in ready]
        self._recorded = np.array([seat.recorded for seat in chosen], np.bool_)
        self._record_to = self.serving.record_cap if self._recorded.any() else 0
        prompt = np.array([seat.prompt_tokens for seat in chosen], np.int32)
        decision = decision_of(
            self._roster.index,
            [rows.requests[row] for row in ready],
            np.array(ready, np.int32),
            np.array([seat.slot for seat in chosen], np.int32),
            prompt,
            np.array([seat.tokens for seat in chosen], np.int32) - prompt,
            np.array([seat.holds_neural for seat in chosen], np.bool_),
            self.setup.neural_cap,
        )
        if rows.room is not None:
            decision.room = rows.room[ready]
        if decision.batch.holds_neural.any():
            self._keep(decision.batch)
            self._keeps_alive = any(seat.holds_neural for seat in seats)
        return decision

    def _keep(self, batch: Batch) -> None:
        """Take the drafter from everyone if the policy says so; recorded requests hold it still."""
        try:
            if keeps_drafter(self.policy, batch):
                return
        except Exception as error:
            self._fault("keep", error)
            return
        for seat in self._roster.seats.values():
            seat.holds_neural &= seat.recorded
        batch.holds_neural[~self._recorded] = False

    def _fault(self, stage: str, error: Exception) -> None:
        if self._failed:  # one step, one fault: several in one do not wear out the guard
            self.guard.counts[stage] += 1
            return
        self._failed = True
        self._pending = None
        self.guard.fault(self.step, stage, error, self._engine_rows)

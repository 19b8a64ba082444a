"""Any policy, driven through a closed loop or in lockstep exactly as an engine would drive it.

What a policy can see is what the executor of its steps hands over: facts about the text known so
far, and what was drafted in this step. The tape itself never leaves this file and `recorded`.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.draft import NgramIndex
from adaspec.policy.protocol import Policy, Setup
from adaspec.replay.recorded import (
    HiddenDrafts,
    RecordedDrafts,
    RecordedText,
    Verification,
    verify,
)
from adaspec.replay.result import Result
from adaspec.replay.rows import entry_s, new_latency, seconds_per_token
from adaspec.replay.tape import Tape
from adaspec.step.cut import Cut
from adaspec.step.executor import DraftSource, Executor, Step

Ints = NDArray[np.int32]


def run_policy(
    tape: Tape,
    policy: Policy,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    refills: bool = True,
    charged: bool = False,
) -> Result:
    """One run of the loop: it ends with the step that frees a slot that nobody is left to fill.

    Without refills the first `concurrency` entries of the order all run to their ends.

    What deciding takes on this machine (index, look-ups, every call of the policy) is clocked;
    where it is `charged`, it also counts as time.
    """
    return _Run(tape, policy, order, concurrency, cost, cap, refills, charged).result()


class _Run:
    """The state of one run. Row arrays keep their length; `rows` of them are running."""

    def __init__(
        self,
        tape: Tape,
        policy: Policy,
        order: Ints,
        concurrency: int,
        cost: CostModel,
        cap: int,
        refills: bool,
        charged: bool,
    ) -> None:
        self.tape, self.order = tape, order
        self.refills, self.charged = refills, charged
        self.recorded = RecordedText(tape)
        self.index = NgramIndex()
        setup = Setup(
            cost=cost,
            cap=cap,
            neural_cap=min(tape.neural_cap, cap),
            slots=concurrency,
            shows_tokens=tape.shows_tokens,
            shows_confidences=tape.shows_confidences,
        )
        self.executor = Executor(policy, setup, self.index)
        self.request = np.zeros(concurrency, np.int64)
        self.entry = np.zeros(concurrency, np.int64)
        self.entered = np.zeros(concurrency)
        self.slots = np.zeros(concurrency, np.int32)
        self.prompt = np.zeros(concurrency, np.int32)
        self.position = np.zeros(concurrency, np.int32)
        self.holds = np.zeros(concurrency, np.bool_)
        self.rows = concurrency
        self.following = 0
        self.time = self.decision_s = 0.0
        self.latency = new_latency(order)
        self.tokens = self.steps = self.row_steps = 0
        self.accepted = self.drafted = self.neural_steps = 0

    def result(self) -> Result:
        """Run to the end."""
        for row in range(self.rows):
            self._enter(row)
        ended = False
        while self.rows > 0 and not ended:
            ended = self._step()
        return Result(
            tokens=self.tokens,
            time_s=self.time,
            steps=self.steps,
            row_steps=self.row_steps,
            accepted=self.accepted,
            drafted=self.drafted,
            neural_steps=self.neural_steps,
            token_s=seconds_per_token(self.tape.columns, self.order, self.latency),
            decision_s=self.decision_s,
        )

    def _enter(self, row: int) -> None:
        entry = self.following
        self.following += 1
        r = int(self.order[entry])
        request = self.tape.requests[r]
        known = np.append(request.prompt_tokens, request.output_tokens[:1]).astype(np.int32)
        slot, prompt = self.index.open(known), len(request.prompt_tokens)
        holds = self.executor.admit(slot, prompt, self.rows)
        self.time += entry_s(self.tape.columns, r, holds)
        self.request[row], self.entry[row] = r, entry
        self.entered[row] = self.time if self.refills else 0.0
        self.slots[row], self.holds[row] = slot, holds
        self.prompt[row], self.position[row] = prompt, 1

    def _step(self) -> bool:
        """Take all running requests one step on; whether a slot stayed empty."""
        rows, executor = self.rows, self.executor
        request, slots, position = self.request[:rows], self.slots[:rows], self.position[:rows]
        began = perf_counter()
        step = executor.begin(
            slots.copy(), self.prompt[:rows].copy(), position.copy(), self.holds[:rows].copy()
        )
        if not executor.keep(step):
            self.holds[:rows] = False
        step.source = self._drafts(step, request, position)
        wants_forward = executor.plan(step) > 0
        while wants_forward:
            wants_forward = executor.forward_ran(step)
        cut = executor.settle(step)
        decision_s = perf_counter() - began
        verified = verify(
            self.recorded.text,
            self.recorded.start,
            self.tape.columns,
            request,
            position,
            cut.neural_len,
            cut.ngram_len,
            cut.start,
        )
        outcome = executor.outcome(
            step,
            drafted=cut.neural_len + cut.ngram_len,
            neural_drafted=cut.neural_len,
            accepted=verified.accepted,
            emitted=verified.emitted,
            emitted_tokens=verified.emitted_tokens.copy(),
            forwards=step.forwards,
        )
        self._count(cut, verified, step.forwards, outcome.step_s)
        began = perf_counter()
        executor.learn(step, outcome)
        going_on = ~verified.done
        if going_on.any():
            self.index.extend(slots[going_on], verified.flat, verified.emitted_tokens[going_on])
        decision_s += perf_counter() - began
        self.decision_s += decision_s
        if self.charged:
            self.time += decision_s
        position += verified.emitted_tokens
        return self._refill(verified.done) if verified.done.any() else False

    def _drafts(self, step: Step, request: NDArray[np.int64], position: Ints) -> DraftSource:
        """What was recorded of the drafter at these positions."""
        tape, setup = self.tape, self.executor.setup
        if tape.shows_tokens:
            return RecordedDrafts(tape, request, position, self.index, step, setup.neural_cap)
        facts, name = self.recorded.facts, self.executor.policy.name
        return HiddenDrafts(tape, request, position, facts, step.holds_neural, setup.cap, name)

    def _count(self, cut: Cut, verified: Verification, forwards: int, step_s: float) -> None:
        """Add a step to the sums."""
        self.time += step_s
        self.steps += 1
        self.row_steps += self.rows
        self.tokens += int(verified.emitted_tokens.sum())
        self.drafted += int(cut.neural_len.sum() + cut.ngram_len.sum())
        self.accepted += int(np.minimum(verified.accepted, verified.left).sum())
        self.neural_steps += forwards > 0

    def _refill(self, done: NDArray[np.bool_]) -> bool:
        """Let requests that are done go and others in; whether a slot stayed empty."""
        rows = self.rows
        kept = np.flatnonzero(~done)
        ended = False
        now = self.time
        for row in np.flatnonzero(done):
            self.latency[self.entry[row]] = now - self.entered[row]
            self.index.close(int(self.slots[row]))
        self.executor.release(self.slots[:rows][done].copy())
        if self.refills:
            for row in np.flatnonzero(done):
                if self.following < len(self.order):
                    self._enter(int(row))
                else:
                    ended = True
        else:
            for column in (
                self.request,
                self.entry,
                self.entered,
                self.slots,
                self.prompt,
                self.position,
                self.holds,
            ):
                column[: len(kept)] = column[kept]
            self.rows = len(kept)
        return ended

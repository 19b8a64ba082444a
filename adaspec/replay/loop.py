"""Any policy, driven through a closed loop exactly as an engine would drive it.

It is that of a sync engine. What a policy can see is what the executor of its steps hands over:
facts about the text known so far, and what was drafted in this step. The recording itself never
leaves this file and `recorded`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, Deciding, StepShape, deciding_s, step_s
from adaspec.draft.index import NgramIndex
from adaspec.policy.base import deciding_of
from adaspec.policy.guard import HOLD, Guard, Said
from adaspec.policy.protocol import Policy, Setup
from adaspec.policy.step import DraftSource, Executor, Step
from adaspec.replay.closed_loop import (
    advance,
    count_step,
    goes_on,
    read_beside,
    result_of,
    start,
    step_seconds,
    take_drafter,
)
from adaspec.replay.recorded import HiddenDrafts, RecordedDrafts, Verification, verify
from adaspec.replay.recording import Recording
from adaspec.replay.result import Result

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class SeenStep(NamedTuple):
    """A step that the target has verified, and of which the policy has not learned yet."""

    request: Longs
    """Index into the recording, per row."""
    entry: Longs
    """Place in the order."""
    position: Longs
    step: Step
    verified: Verification
    step_s: float


class Observer(Protocol):
    """Sees the steps of a run, one after another."""

    def __call__(self, seen: SeenStep) -> None:
        """Read what there is to know of a step; nothing may be written, or kept without a copy."""


def run_policy(
    recording: Recording,
    policy: Policy,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
    observer: Observer | None = None,
    guard: Guard | None = None,
    true_cost: CostModel | None = None,
) -> Result:
    """One run of the loop: it ends with the step that frees a slot that nobody is left to fill.

    Steps take what `true_cost` says; the policy weighs `cost` all the same. A `guard` sees what
    steps take and emit, and says which of them speculate.
    """
    run = _Run(recording, policy, order, concurrency, cost, cap, observer)
    run.guard = guard
    deciding = deciding_of(policy, recording.shows_tokens)
    true = true_cost or cost
    run.true_costs = true.charged_to(deciding).constants()
    run.plain_costs = true.charged_to(Deciding.NOTHING).constants()
    while goes_on(run.loop):
        run.step()
        run.advance()
    return result_of(run.loop)


class _Run:
    """The state of one run."""

    def __init__(
        self,
        recording: Recording,
        policy: Policy,
        order: Ints,
        concurrency: int,
        cost: CostModel,
        cap: int,
        observer: Observer | None,
    ) -> None:
        self.recording, self.observer = recording, observer
        self.index = NgramIndex()
        setup = Setup(
            cost=cost,
            cap=cap,
            neural_cap=min(recording.neural_cap, cap),
            slots=concurrency,
            shows_tokens=recording.shows_tokens,
            shows_confidences=recording.shows_confidences,
        )
        self.executor = Executor(policy, setup, self.index)
        self.loop = start(recording.columns, order, concurrency, False)
        self.guard: Guard | None = None
        self.true_costs = self.plain_costs = cost.constants()
        """What steps take by what the policy decides, and where nothing is decided."""
        self._noted_s = 0.0
        """Until when the guard was told of."""
        self._held_off = False
        """Whether the last step was held off: the policy knows nothing of the running requests."""
        self._admit(0)

    def _admit(self, first_entry: int) -> None:
        """Let in the requests that have entered, from this entry of the order on."""
        loop = self.loop
        rows = int(loop.state["rows"][0])
        for row in np.flatnonzero(loop.entry[:rows] >= first_entry).tolist():
            request = self.recording.requests[loop.request[row]]
            known = np.append(request.prompt_tokens, request.output_tokens[:1]).astype(np.int32)
            loop.slot[row] = self.index.open(known)
            if not self._held_off and self.executor.enter(int(loop.slot[row]), rows):
                take_drafter(loop, row)

    def step(self) -> None:
        """Take all running requests one step on."""
        guard, loop = self.guard, self.loop
        if guard is None:
            self._speculate()
            return
        rows, before_tokens = int(loop.state["rows"][0]), float(loop.totals["tokens"][0])
        prompt_tokens = int(loop.state["prompt_tokens"][0])
        said = guard.decide(rows, self._context_tokens(), prompt_tokens)
        if said.speculates:
            if self._held_off:
                self._readmit()
            self._speculate()
        else:
            self._go_without(said)
        now_s, tokens = float(loop.totals["time_s"][0]), float(loop.totals["tokens"][0])
        guard.note(said, now_s - self._noted_s, round(tokens - before_tokens), rows)
        self._noted_s = now_s

    def _readmit(self) -> None:
        """Let the policy know of requests again that ran while it was held off."""
        loop, self._held_off = self.loop, False
        rows = int(loop.state["rows"][0])
        for row in range(rows):  # none holds the drafter: it has not read what they emitted
            self.executor.enter(int(loop.slot[row]), rows)

    def _go_without(self, said: Said) -> None:
        """Take all running requests one token on, as an engine without speculation does."""
        loop = self.loop
        rows = int(loop.state["rows"][0])
        request, position = loop.request[:rows], loop.position[:rows]
        slots = loop.slot[:rows]
        if said.word == HOLD and not self._held_off:
            self._held_off, loop.holds_neural[:rows] = True, False
        nothing = np.zeros(rows, np.int32)
        verified = verify(self.recording.arrays, request, position, nothing, nothing, nothing)
        shape = StepShape(rows, self._context_tokens(), 0, 0, False, 0, 0, 0)
        seconds = float(step_seconds(loop, self.plain_costs, shape))
        loop.emitted[:rows] = verified.emitted_tokens
        count_step(loop, shape, seconds, 0.0, 0)
        going_on = ~verified.done
        if going_on.any():
            self.index.extend(slots[going_on], verified.flat, verified.emitted_tokens[going_on])
        self.ended = slots[verified.done].copy()

    def _context_tokens(self) -> int:
        loop, rows = self.loop, int(self.loop.state["rows"][0])
        prompt = loop.columns.prompt[loop.request[:rows]]
        return int(prompt.sum() + loop.position[:rows].sum())

    def _speculate(self) -> None:
        """Take all running requests on by what the policy plans."""
        loop, executor = self.loop, self.executor
        rows = int(loop.state["rows"][0])
        request, position = loop.request[:rows], loop.position[:rows]
        slots, prompt = loop.slot[:rows], loop.columns.prompt[request]
        step = executor.begin(
            slots,
            prompt.astype(np.int32),
            position.astype(np.int32),
            loop.holds_neural[:rows],
            int(read_beside(loop)),
        )
        if not executor.keep(step):
            loop.holds_neural[:rows] = False
        step.source = self._drafts(step)
        wants_forward = executor.plan(step) > 0
        while wants_forward:
            wants_forward = executor.forward_ran(step)
        cut = executor.settle(step)
        verified = verify(
            self.recording.arrays, request, position, cut.neural_len, cut.ngram_len, cut.start
        )
        report = executor.report(
            step,
            drafted=cut.neural_len + cut.ngram_len,
            neural_drafted=cut.neural_len,
            accepted=verified.accepted,
            emitted=verified.emitted,
            emitted_tokens=verified.emitted_tokens,
            forwards=step.forwards,
        )
        loop.emitted[:rows] = verified.emitted_tokens
        accepted = int(np.minimum(verified.accepted, verified.left).sum())
        assert step.shape is not None
        seconds = float(step_s(self.true_costs, step.shape))
        deciding = float(deciding_s(self.true_costs, step.shape))
        charged = float(step_seconds(loop, self.true_costs, step.shape))
        count_step(loop, step.shape, charged, deciding, accepted)
        if self.observer is not None:
            entry = loop.entry[:rows]
            self.observer(SeenStep(request, entry, position, step, verified, seconds))
        executor.learn(report)
        going_on = ~verified.done
        if going_on.any():
            self.index.extend(slots[going_on], verified.flat, verified.emitted_tokens[going_on])
        self.ended = slots[verified.done].copy()

    def advance(self) -> None:
        """Let requests that have ended go, and others in."""
        for slot in self.ended.tolist():
            self.index.close(slot)
        following = int(self.loop.state["following"][0])
        if advance(self.loop, False):
            self._admit(following)

    def _drafts(self, step: Step) -> DraftSource:
        """What was recorded of the drafter at these positions."""
        recording, setup, loop = self.recording, self.executor.setup, self.loop
        rows = len(step.slots)
        request, position = loop.request[:rows], loop.position[:rows].astype(np.int32)
        if recording.shows_tokens:
            return RecordedDrafts(recording, request, position, self.index, step, setup.neural_cap)
        facts, name = self.recording.arrays.facts, self.executor.policy.name
        return HiddenDrafts(recording, request, position, facts, step.holds_neural, setup.cap, name)

"""Any policy, driven through a closed loop exactly as a sync engine would drive it.

What a policy can see is what the executor of its steps hands over: facts about the text known so
far, and what was drafted in this step. The recording itself never leaves this file and `recorded`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, Costs, StepShape
from adaspec.draft.index import NgramIndex
from adaspec.policy.base import deciding_of
from adaspec.policy.protocol import Policy, Setup
from adaspec.policy.step import DraftSource, Executor, Step
from adaspec.replay.closed_loop import (
    finish_step,
    goes_on,
    read_beside,
    result_of,
    start,
    take_drafter,
)
from adaspec.replay.recorded import HiddenDrafts, RecordedDrafts, verify
from adaspec.replay.recording import Recording
from adaspec.replay.result import Result

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class Verified(NamedTuple):
    """What the target makes of a step's drafts, per row."""

    accepted: Ints
    emitted_tokens: Ints
    emitted: Ints
    """(rows, most emitted), padded with -1."""
    left: Longs
    """Tokens that were left to emit before the step."""


def run_policy(
    recording: Recording,
    policy: Policy,
    order: Ints,
    concurrency: int,
    cost: CostModel,
    cap: int,
) -> Result:
    """One run of the loop: it ends with the step that frees a slot that nobody is left to fill."""
    return Run(recording, policy, order, concurrency, cost, cap).result()


class Run:
    """The state of one run."""

    def __init__(
        self,
        recording: Recording,
        policy: Policy,
        order: Ints,
        concurrency: int,
        cost: CostModel,
        cap: int,
    ) -> None:
        self.recording, self.index = recording, NgramIndex()
        setup = Setup(
            cost=cost,
            cap=cap,
            neural_cap=min(recording.neural_cap, cap),
            slots=concurrency,
            shows_tokens=recording.shows_tokens,
            shows_confidences=recording.shows_confidences,
        )
        self.executor = Executor(policy, setup, self.index)
        self.costs = cost.charged_to(deciding_of(policy, recording.shows_tokens)).constants()
        self.loop = start(recording.columns, order, concurrency, False)
        self._admit(0)

    def result(self) -> Result:
        """Run to the end."""
        while goes_on(self.loop):
            self.step()
        return result_of(self.loop)

    def step(self) -> None:
        """Take all running requests on by what the policy plans."""
        executor, loop = self.executor, self.loop
        prompt = loop.columns.prompt[loop.request]
        step = executor.begin(
            loop.slot,
            prompt.astype(np.int32),
            loop.position.astype(np.int32),
            loop.holds_neural,
            int(read_beside(loop)),
        )
        if not executor.keep(step):
            loop.holds_neural[:] = False
        step.source = self._drafts(step)
        wants_forward = executor.plan(step) > 0
        while wants_forward:
            wants_forward = executor.forward_ran(step)
        cut = executor.settle(step)
        verified = self.verify(cut.neural_len, cut.ngram_len, cut.start)
        report = executor.report(
            step,
            drafted=cut.neural_len + cut.ngram_len,
            neural_drafted=cut.neural_len,
            accepted=verified.accepted,
            emitted=verified.emitted,
            emitted_tokens=verified.emitted_tokens,
            forwards=step.forwards,
        )
        executor.learn(report)
        assert step.shape is not None
        self.finish(step.shape, self.costs, verified)

    def verify(self, neural_len: Ints, ngram_len: Ints, start: Ints) -> Verified:
        """What the target makes of these drafts, as `recorded.verify` says."""
        arrays, columns = self.recording.arrays, self.loop.columns
        request, position = self.loop.request, self.loop.position
        accepted = verify(arrays, request, position, neural_len, ngram_len, start)
        left = columns.length[request] - position
        counts = np.minimum(accepted + 1, left).astype(np.int32)
        first = arrays.text_start[request] + columns.prompt[request] + position
        each = np.arange(counts.max())
        tokens = arrays.text.take(first[:, None] + each, mode="clip")
        emitted = np.where(each < counts[:, None], tokens, -1)
        return Verified(accepted, counts, emitted, left)

    def finish(self, shape: StepShape, costs: Costs, verified: Verified) -> None:
        """Charge the step, take in what it emitted, and let others in where requests have ended."""
        loop, slots = self.loop, self.loop.slot
        accepted, counts, emitted, left = verified
        going_on = counts < left
        if going_on.any():
            shown = np.arange(emitted.shape[1]) < counts[:, None]
            tokens = emitted[going_on][shown[going_on]]
            self.index.extend(slots[going_on], tokens, counts[going_on])
        for slot in slots[~going_on].tolist():
            self.index.close(slot)
        loop.emitted[:] = counts
        following = int(loop.state["following"][0])
        if finish_step(loop, costs, shape, int(np.minimum(accepted, left).sum())):
            self._admit(following)

    def _admit(self, first_entry: int) -> None:
        """Let in the requests that have entered, from this entry of the order on."""
        loop = self.loop
        for row in np.flatnonzero(loop.entry >= first_entry).tolist():
            request = self.recording.requests[loop.request[row]]
            known = np.append(request.prompt_tokens, request.output_tokens[:1]).astype(np.int32)
            loop.slot[row] = self.index.open(known)
            if self.gets_drafter(int(loop.slot[row])):
                take_drafter(loop, row)

    def gets_drafter(self, slot: int) -> bool:
        """Whether a request that enters holds the neural drafter."""
        return self.executor.enter(slot, len(self.loop.slot))

    def _drafts(self, step: Step) -> DraftSource:
        """What was recorded of the drafter at these positions."""
        recording, setup, request = self.recording, self.executor.setup, self.loop.request
        if recording.shows_tokens:
            return RecordedDrafts(recording, request, self.index, step, setup.neural_cap)
        return HiddenDrafts(recording, request, step, setup.cap, self.executor.policy.name)

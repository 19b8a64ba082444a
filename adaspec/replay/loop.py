"""A policy of one's own, driven through a closed loop exactly as a sync engine would drive it.

What a policy can see is what the executor of its steps hands over: facts about the text known so
far, and what was drafted in this step. The recording itself never leaves this file and `recorded`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.draft.index import NgramIndex
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
        self.loop = start(recording.columns, order, concurrency, False)
        self._admit(0)

    def result(self) -> Result:
        """Run to the end."""
        while goes_on(self.loop):
            self._step()
        return result_of(self.loop)

    def _step(self) -> None:
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
        loop.holds_neural[:] = step.holds_neural
        step.source = self._drafts(step)
        executor.draft(step)
        cut = executor.settle(step)
        arrays, request, position = self.recording.arrays, loop.request, loop.position
        accepted = verify(arrays, request, position, cut.neural_len, cut.ngram_len, cut.start)
        left = loop.columns.length[request] - position
        counts = np.minimum(accepted + 1, left).astype(np.int32)
        first = arrays.text_start[request] + prompt + position
        each = np.arange(counts.max())
        tokens = arrays.text.take(first[:, None] + each, mode="clip")
        emitted = np.where(each < counts[:, None], tokens, -1)
        shape = executor.learn(step, cut, accepted, emitted, counts)
        going_on = counts < left
        if going_on.any():
            tokens = emitted[going_on]
            self.index.extend(loop.slot[going_on], tokens[tokens >= 0], counts[going_on])
        for slot in loop.slot[~going_on].tolist():
            self.index.close(slot)
        loop.emitted[:] = counts
        following = int(loop.state["following"][0])
        if finish_step(loop, executor.costs, shape, int(np.minimum(accepted, left).sum())):
            self._admit(following)

    def _admit(self, first_entry: int) -> None:
        """Let in the requests that have entered, from this entry of the order on."""
        loop = self.loop
        for row in np.flatnonzero(loop.entry >= first_entry).tolist():
            request = self.recording.requests[loop.request[row]]
            known = np.append(request.prompt_tokens, request.output_tokens[:1]).astype(np.int32)
            loop.slot[row] = self.index.open(known)
            if self.executor.enter(int(loop.slot[row]), len(loop.slot)):
                take_drafter(loop, row)

    def _drafts(self, step: Step) -> DraftSource:
        """What was recorded of the drafter at these positions."""
        recording, setup, request = self.recording, self.executor.setup, self.loop.request
        if recording.shows_tokens:
            return RecordedDrafts(recording, request, self.index, step, setup.neural_cap)
        return HiddenDrafts(recording, request, step)

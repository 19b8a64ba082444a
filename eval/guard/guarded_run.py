"""A replay in a sync engine with the guard of servers over it, and costs that it does not know."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, StepShape, batch_shape
from adaspec.policy.guard import HOLD, Guard
from adaspec.policy.learned import LearnedPolicy, ServedPolicy, planner_for
from adaspec.policy.planner import stages
from adaspec.policy.static import StaticRule
from adaspec.replay.closed_loop import (
    ClosedLoop,
    Result,
    context_tokens,
    finish_step,
    goes_on,
    result_of,
    start,
)
from adaspec.replay.learned import decide_step, setup_for
from adaspec.replay.recording import Recording


class GuardedRun:
    """One run in which a guard sees what steps take and emit, and says which of them speculate.

    Steps take what `true_cost` says; the policy weighs `cost` all the same. Without a guard all of
    them speculate.
    """

    def __init__(
        self,
        recording: Recording,
        policy: ServedPolicy,
        order: NDArray[np.int32],
        concurrency: int,
        cost: CostModel,
        cap: int,
        guard: Guard | None,
        true_cost: CostModel,
    ) -> None:
        self.plain_costs = true_cost.without_deciding().constants()
        learned = isinstance(policy, LearnedPolicy)
        self.costs = true_cost.constants() if learned else self.plain_costs
        self.recording, self.policy, self.cap, self.guard = recording, policy, cap, guard
        if learned:
            self.planner = planner_for(policy, setup_for(recording, cost, concurrency, cap))
            self.holds = bool(stages.holds_drafter(self.planner.address, concurrency))
        else:
            self.holds = policy.rule.neural_len > 0
        self.loop = start(recording.columns, order, concurrency, self.holds)

    def result(self) -> Result:
        """Run to the end."""
        while goes_on(self.loop):
            self._step()
        return result_of(self.loop)

    def _step(self) -> None:
        """Take all running requests one step on, as the guard says."""
        guard, loop = self.guard, self.loop
        totals, rows = loop.totals[0], len(loop.slot)
        if guard is None:
            self._speculate()
            return
        time_s, tokens = float(totals["time_s"]), float(totals["tokens"])
        prompt_tokens = int(loop.state["prompt_tokens"][0])
        decision = guard.decide(rows, int(context_tokens(loop)), prompt_tokens)
        if decision.speculates:
            # Those that ran without the drafter stay so: it has not read what they emitted.
            loop.state["gives_drafter"] = self.holds
            self._speculate()
        else:
            if decision.state == HOLD:
                loop.state["gives_drafter"], loop.holds_neural[:] = False, False
            loop.emitted[:] = 1
            shape = StepShape(rows, int(context_tokens(loop)), 0, 0, False, 0, 0, 0)
            finish_step(loop, self.plain_costs, shape, 0)
        took_s, emitted = float(totals["time_s"]) - time_s, float(totals["tokens"]) - tokens
        guard.note(decision, took_s, round(emitted), rows)

    def _speculate(self) -> None:
        if isinstance(self.policy, LearnedPolicy):
            arrays, address = self.recording.arrays, self.planner.address
            decided = decide_step(arrays, self.loop, address, self.cap)
            finish_step(self.loop, self.costs, decided.shape, decided.accepted)
        else:
            shape, accepted = _rule_step(self.loop, self.policy.rule, self.cap)
            finish_step(self.loop, self.costs, shape, accepted)


def _rule_step(loop: ClosedLoop, rule: StaticRule, cap: int) -> tuple[StepShape, int]:
    """A step under a rule that copies or drafts and splices: its shape, and what was accepted."""
    columns, holds = loop.columns, loop.holds_neural
    at, left = columns.offset[loop.request] + loop.position, columns.length[loop.request]
    left = left - loop.position
    copies = columns.match[at] >= rule.min_match
    copied = np.where(copies, np.minimum(columns.available[at], min(rule.ngram_len, cap)), 0)
    neural = np.where(holds & ~copies, min(rule.neural_len, cap), 0)
    right = np.minimum(columns.neural[at], neural)
    # Behind a wrong draft the text goes where the output never went, as far as that is recorded.
    behind = np.where((neural > 0) & (neural < left), at + neural, 0)
    match, available = columns.match[behind], columns.available[behind]
    known_wrong = (right < neural) & (columns.splice_match_length.shape[1] > 0)
    wrong = known_wrong.nonzero()[0]
    match[wrong] = columns.splice_match_length[at[wrong], neural[wrong] - 1]
    available[wrong] = columns.splice_match_available[at[wrong], neural[wrong] - 1]
    splices = (neural > 0) & ((neural < left) | known_wrong) & (match >= rule.splice_min_match)
    spliced = np.where(splices, np.minimum(available, np.minimum(rule.splice_len, cap - neural)), 0)
    accepted = right + np.minimum(copied, np.where(copies, columns.run[at], 0))
    whole = splices & (right == neural)
    accepted += np.where(whole, np.minimum(spliced, columns.run[behind]), 0)
    loop.emitted[:] = np.minimum(accepted + 1, left)
    drafted = (copied + neural + spliced).astype(np.int32)
    context, forwards = int(context_tokens(loop)), int(neural.max())
    shape = batch_shape(len(at), context, drafted, forwards, bool(holds.any()))
    return shape, int(np.minimum(accepted, left).sum())

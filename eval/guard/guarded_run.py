"""A replay in a sync engine with the guard of servers over it, and costs that it does not know."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel, StepShape, step_shape
from adaspec.policy.guard import HOLD, KEEP, PLAN, Guard
from adaspec.policy.protocol import LearnedPolicy, ServedPolicy
from adaspec.policy.static import StaticRule
from adaspec.replay.learned import LearnedReplay, decide_step
from adaspec.replay.loop import (
    Loop,
    Result,
    context_tokens,
    finish_step,
    goes_on,
    new_loop,
    result_of,
)
from adaspec.replay.recording import Columns, Recording
from adaspec.replay.rules import matched_behind


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
            replay = LearnedReplay(recording, policy)
            self.loop, *self.decides = replay.begin(order, concurrency, cost, cap)
        else:
            holds = policy.rule.neural_len > 0
            self.loop = new_loop(recording.columns, order, concurrency, holds)
        self.holds = bool(self.loop.state["gives_drafter"][0])

    def result(self) -> Result:
        """Run to the end."""
        while goes_on(self.loop):
            self.step()
        return result_of(self.loop)

    def step(self) -> None:
        """Take all running requests one step on, as the guard says."""
        guard, loop = self.guard, self.loop
        totals, rows = loop.state[0], loop.rows
        if guard is None:
            self._speculate()
            return
        time_s, tokens = float(totals["time_s"]), float(totals["tokens"])
        prompt_tokens = int(loop.state["prompt_tokens"][0])
        decision = guard.decide(len(rows), int(context_tokens(rows)), prompt_tokens)
        if decision.state == PLAN:
            # Those that ran without the drafter stay so: it has not read what they emitted.
            loop.state["gives_drafter"] = self.holds
            self._speculate()
        else:
            if decision.state == HOLD:
                loop.state["gives_drafter"], rows["holds_neural"] = False, False
            rows["emitted"] = 1
            holds = decision.state == KEEP and bool(rows["holds_neural"].any())
            shape = step_shape(len(rows), int(context_tokens(rows)), 0, 0, holds)
            finish_step(loop, self.plain_costs, shape, 0)
        took_s, emitted = float(totals["time_s"]) - time_s, float(totals["tokens"]) - tokens
        guard.note(decision, took_s, round(emitted), len(rows))

    def _speculate(self) -> None:
        if isinstance(self.policy, LearnedPolicy):
            _, shape, accepted = decide_step(self.loop, *self.decides)
        else:
            shape, accepted = _rule_step(
                self.loop, self.recording.columns, self.policy.rule, self.cap
            )
        finish_step(self.loop, self.costs, shape, accepted)


def _rule_step(loop: Loop, columns: Columns, rule: StaticRule, cap: int) -> tuple[StepShape, int]:
    """A step under a rule that copies or drafts and splices: its shape, and what was accepted."""
    rows = loop.rows
    at, left, holds = rows["at"].copy(), rows["end"] - rows["at"], rows["holds_neural"]
    behind = matched_behind(columns, min(rule.neural_len, cap), at, left)
    neural, copied = rule.lengths(cap, holds, columns.match[at], columns.available[at], *behind)
    accepted = np.minimum(np.maximum(columns.neural[at], 0), neural)
    whole = (accepted == neural) & (copied > 0)
    run = columns.run[np.where(whole, at + neural, at)]
    accepted += np.where(whole, np.minimum(copied, run), 0)
    rows["emitted"] = np.minimum(accepted + 1, left)
    drafted = int((neural + copied).sum())
    forwards = min(rule.neural_len, cap) if rule.always_drafts else int(neural.max())
    context = int(context_tokens(rows))
    shape = step_shape(len(at), context, drafted, forwards, bool(holds.any()))
    return shape, int(np.minimum(accepted, left).sum())

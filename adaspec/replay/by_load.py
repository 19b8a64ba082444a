"""A static rule for each load: what an operator would serve who changed it as the load changes.

Nobody can run that, as vLLM takes one setting as it starts. In an open loop it says how much of a
policy's lead is of following the load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, step_shape
from adaspec.draft.chains import Ints
from adaspec.jit import compiled
from adaspec.policy.static import Needs, StaticPolicy
from adaspec.replay import closed_loop
from adaspec.replay.closed_loop import ClosedLoop, Result
from adaspec.replay.paths import RuleWalker
from adaspec.replay.recording import Columns

Longs = NDArray[np.int64]
Shorts = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class ByLoad:
    """The rules of some loads; each holds up to half way, by ratio, to the next load."""

    rules: tuple[tuple[int, StaticPolicy], ...]
    """(load, rule), loads ascending."""

    @property
    def name(self) -> str:
        """The loads and their rules."""
        return ", ".join(f"{load}: {rule.name}" for load, rule in self.rules)

    @property
    def needs(self) -> Needs:
        """The drafter where some rule drafts with it."""
        needs = [rule.needs for _, rule in self.rules]
        drafter, longest = (
            any(each.drafter for each in needs),
            max(each.neural_len for each in needs),
        )
        return Needs(drafter, longest, max(each.draft_len or 1 for each in needs))

    def numbers(self, most: int) -> Longs:
        """By the number of requests that run, which rule holds."""
        loads = np.array([load for load, _ in self.rules], np.float64)
        running = np.maximum(np.arange(most + 1), 1)
        return np.asarray(np.abs(np.log(running[:, None] / loads)).argmin(axis=1))


def run_by_load(
    columns: Columns,
    walker: RuleWalker,
    contender: ByLoad,
    order: Ints,
    concurrency: int,
    costs: Costs,
    comes_s: NDArray[np.float64] | None,
) -> Result:
    """One run of the loop under the rule of each step's load."""
    drafts = [walker.drafted(policy.rule) for _, policy in contender.rules]
    holds = np.array([policy.needs.drafter for _, policy in contender.rules])
    neural, copied = (np.stack(each) for each in zip(*(each[:2] for each in drafts), strict=True))
    forwards, paid = np.array([each[2:] for each in drafts], np.int64).T
    loop = closed_loop.start(columns, order, concurrency, contender.needs.drafter, comes_s)
    each = neural, copied, forwards.copy(), paid.copy(), holds
    _run(loop, *each, contender.numbers(concurrency), costs)
    return closed_loop.result_of(loop)


@compiled
def _run(
    loop: ClosedLoop,
    neural: Shorts,
    copied: Shorts,
    least_forwards: Longs,
    paid: Longs,
    holds: NDArray[np.bool_],
    of_load: Longs,
    costs: Costs,
) -> None:
    columns = loop.columns
    while closed_loop.goes_on(loop):
        rows, context = closed_loop.running(loop), closed_loop.context_tokens(loop)
        count = rows.request.shape[0]
        rule = of_load[count]
        drafted, accepted, forwards = 0, 0, least_forwards[rule]
        for row in range(count):
            request = rows.request[row]
            at = columns.offset[request] + rows.position[row]
            left = columns.length[request] - rows.position[row]
            by_head, by_copy = neural[rule, at], copied[rule, at]
            right = min(columns.neural[at], by_head) if by_head > 0 else 0
            if right == by_head and by_copy > 0:
                right += min(columns.run[at + by_head], by_copy)
            rows.emitted[row] = min(right + 1, left)
            accepted += min(right, left)
            drafted += by_head + by_copy
            forwards = max(forwards, by_head)
        shape = step_shape(count, context, drafted, forwards, holds[rule], count * paid[rule])
        closed_loop.finish_step(loop, costs, shape, accepted)

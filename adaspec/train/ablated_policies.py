"""The learned policy without one part of its decisions, to measure what that part gains."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import forward_s, paid_forwards
from adaspec.jit import compiled
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import planner_at
from adaspec.policy.planner.forwards import add_foreseen_value, add_row_value, weigh_ngram
from adaspec.policy.planner.stages import state_of
from adaspec.policy.protocol import Batch, Drafts, Proposal


class NoListeningWhileDrafting(LearnedPolicy):
    """Decides on all forwards before the first one; what was drafted is used afterwards."""

    def plan(self, batch: Batch) -> int:
        """The forwards that would pay if nothing were learned from them."""
        super().plan(batch)
        forwards: int = stages.forwards_unread(self._address)
        return forwards

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """All the planned forwards."""
        return True


class NoListeningAfterDrafting(LearnedPolicy):
    """Decides on forwards by what was drafted, and chooses as predicted before the first one."""

    def plan(self, batch: Batch) -> int:
        """As the policy itself; the predictions for both drafts are kept."""
        planned = super().plan(batch)
        memory = self.planner.memory
        self._predicted = memory.neural.copy(), memory.ngram.copy()
        return planned

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """As if no drafted token had been seen, but for the matches behind them."""
        if self._reads_drafts:
            self._observe(batch, drafts)
            memory = self.planner.memory
            memory.neural[:], memory.ngram[:] = self._predicted
        return super().settle(batch, drafts)


class NoBatchPlanning(LearnedPolicy):
    """Every request asks for the forwards that it would gain by; the batch runs the most of these.

    A request counts its own gain against an equal share of each forward, as if all others would
    pay theirs. Everything else is the policy's own: predictions, throughput, lengths, splices.
    """

    def plan(self, batch: Batch) -> int:
        """The most forwards that any request asks for."""
        super().plan(batch)
        values = self._values(batch, 0)
        if not len(values):
            return 0
        # Of equal ones the most, as the policy itself: evidence that costs nothing.
        most = values.shape[1] - 1 - values[:, ::-1].argmax(axis=1).min()
        return self._neural_cap if self._reads_drafts and most > 0 else int(most)

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """Go on as long as any request gains by more."""
        if not self._reads_drafts:
            return True
        super().proceed(batch, drafts)  # takes in what was drafted
        values = self._values(batch, drafts.count)
        now, later = values[:, drafts.count, None], values[:, drafts.count + 1 :]
        return bool((later > now).any())

    def _values(self, batch: Batch, count: int) -> NDArray[np.float64]:
        """What `count`, and more, forwards are worth to each request that holds the drafter."""
        holds = self.planner.rows.holds_neural[: len(batch)]
        values: NDArray[np.float64] = _net_values(self._address, self._reads_drafts, count)[holds]
        return values


@compiled
def _net_values(address: int, reads_drafts: bool, count: int) -> NDArray[np.float64]:
    """(rows, forwards) value of each row's best plan, less its share of the forwards."""
    state = state_of(planner_at(address), reads_drafts)
    rows, most = state.rows.slots.shape[0], state.neural_cap
    weigh_ngram(state.memory, state.rows, state.price, state.cap)
    values = np.zeros((rows, most + 1))
    share = state.rate * forward_s(state.costs, state.context) / rows
    for row in range(rows):
        if reads_drafts:
            add_foreseen_value(state, row, count, most, state.price, values[row])
        else:
            add_row_value(state, row, most, state.price, values[row])
        for forwards in range(most + 1):
            values[row, forwards] -= share * paid_forwards(state.costs, forwards, True)
    return values

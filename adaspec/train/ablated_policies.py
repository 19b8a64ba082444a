"""Learned policies that lack one part of their decisions, to measure what that part gains."""

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
    """Decides on all forwards before the first one; reads the drafted tokens only afterwards."""

    def plan(self, batch: Batch) -> int:
        """Plan the forwards that would pay if nothing were learned from their tokens."""
        super().plan(batch)
        forwards: int = stages.forwards_unread(self._address)
        return forwards

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """Go on: all planned forwards are run."""
        return True


class NoListeningAfterDrafting(LearnedPolicy):
    """Stops forwards by what was drafted, but chooses drafts by the predictions before drafting."""

    def plan(self, batch: Batch) -> int:
        """Plan as the full policy does, and keep its predictions for both drafts."""
        planned = super().plan(batch)
        memory = self.planner.memory
        self._predicted = memory.neural.copy(), memory.ngram.copy()
        return planned

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """Choose as if no drafted token had been seen; only the matches behind them are used."""
        if self._reads_drafts:
            self._observe(batch, drafts)
            memory = self.planner.memory
            memory.neural[:], memory.ngram[:] = self._predicted
        return super().settle(batch, drafts)


class NoBatchPlanning(LearnedPolicy):
    """Each request asks for the forwards that it gains by; the batch runs the highest number.

    A request weighs its own gain against an equal share of each forward, as if all others paid
    theirs. Predictions, throughput, lengths and splices are those of the full policy.
    """

    def plan(self, batch: Batch) -> int:
        """Plan as many forwards as the request that asks for most."""
        super().plan(batch)
        values = self._values(batch, 0)
        if not len(values):
            return 0
        # Ties go to the most forwards, as in the full policy: they bring evidence and cost nothing.
        most = values.shape[1] - 1 - values[:, ::-1].argmax(axis=1).min()
        return self._neural_cap if self._reads_drafts and most > 0 else int(most)

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """Go on as long as any request gains by more forwards."""
        if not self._reads_drafts:
            return True
        super().proceed(batch, drafts)  # reads the drafted tokens
        values = self._values(batch, drafts.count)
        now, later = values[:, drafts.count, None], values[:, drafts.count + 1 :]
        return bool((later > now).any())

    def _values(self, batch: Batch, count: int) -> NDArray[np.float64]:
        """Values of `count` forwards and more, for each request that has the drafter."""
        holds = self.planner.rows.holds_neural[: len(batch)]
        values: NDArray[np.float64] = _net_values(self._address, self._reads_drafts, count)[holds]
        return values


@compiled
def _net_values(address: int, reads_drafts: bool, count: int) -> NDArray[np.float64]:
    """The value of each row's best plan less its share of the forwards, as (rows, forwards)."""
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

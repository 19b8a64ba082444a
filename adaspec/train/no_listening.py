"""The learned policy without one use of what was drafted, to measure what that use is worth."""

from __future__ import annotations

from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner import stages
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

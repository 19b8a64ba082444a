"""The learned policy with half an ear for the drafter, to measure what listening is worth when."""

from __future__ import annotations

from adaspec.policy import stages
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.protocol import Batch, Drafts, Proposal


class PlansAhead(LearnedPolicy):
    """Runs the drafter as often as was foreseen before it ran; what it drafts is still judged."""

    def plan(self, batch: Batch) -> int:
        """The forwards that would pay if nothing were learned from them."""
        super().plan(batch)
        foreseen: int = stages.forwards_of(
            self.desk,
            self.mind.outlook,
            False,
            self.knobs,
            self._planned_rows(),
            self._cost,
            self._cap,
            self._neural_cap,
        )
        return foreseen

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """Up to what was foreseen."""
        return True


class ChoosesAhead(LearnedPolicy):
    """Listens to decide on another forward, then chooses by what was thought before the first."""

    def plan(self, batch: Batch) -> int:
        """As ever; what is thought of both drafts is kept."""
        planned = super().plan(batch)
        self._thought = self.desk.neural.copy(), self.desk.ngram.copy()
        return planned

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """As if no drafted token had been seen, but for the matches behind them."""
        if self._reads:
            self._listen(batch, drafts)
            self.desk.neural[:], self.desk.ngram[:] = self._thought
        return super().settle(batch, drafts)

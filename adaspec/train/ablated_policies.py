"""The learned policy without one part of its decisions, to measure what that part gains."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import forward_s, paid_forwards
from adaspec.jit import compiled
from adaspec.policy import stages
from adaspec.policy.desk import Desk
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.pace import context_of, rate_of
from adaspec.policy.planning import foresee_row, price_of, weigh_ngram, weigh_row
from adaspec.policy.protocol import Batch, Drafts, Proposal
from adaspec.predict.outlook import Outlook


class NoListeningWhileDrafting(LearnedPolicy):
    """Decides on all forwards before the first one; what was drafted is used afterwards."""

    def plan(self, batch: Batch) -> int:
        """The forwards that would pay if nothing were learned from them."""
        super().plan(batch)
        forwards: int = stages.forwards_of(
            self.desk,
            self.mind.outlook,
            False,
            self.knobs,
            self._planned_rows(),
            self._cost,
            self._cap,
            self._neural_cap,
        )
        return forwards

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """All the planned forwards."""
        return True


class NoListeningAfterDrafting(LearnedPolicy):
    """Decides on forwards by what was drafted, and chooses as predicted before the first one."""

    def plan(self, batch: Batch) -> int:
        """As the policy itself; the predictions for both drafts are kept."""
        planned = super().plan(batch)
        self._predicted = self.desk.neural.copy(), self.desk.ngram.copy()
        return planned

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """As if no drafted token had been seen, but for the matches behind them."""
        if self._reads:
            self._listen(batch, drafts)
            self.desk.neural[:], self.desk.ngram[:] = self._predicted
        return super().settle(batch, drafts)


class NoBatchPlanning(LearnedPolicy):
    """Every request asks for the forwards that it would gain by; the batch runs the most of these.

    A request counts its own gain against an equal share of each forward, as if all others would
    pay theirs. Everything else is the policy's own: predictions, pace, lengths, splices.
    """

    def plan(self, batch: Batch) -> int:
        """The most forwards that any request asks for."""
        super().plan(batch)
        values = self._values(0)
        if not len(values):
            return 0
        # Of equal ones the most, as the policy itself: evidence that costs nothing.
        most = values.shape[1] - 1 - values[:, ::-1].argmax(axis=1).min()
        return self._neural_cap if self._reads and most > 0 else int(most)

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """Go on as long as any request gains by more."""
        if not self._reads:
            return True
        super().proceed(batch, drafts)  # takes in what was drafted
        values = self._values(drafts.count)
        now, later = values[:, drafts.count, None], values[:, drafts.count + 1 :]
        return bool((later > now).any())

    def _values(self, count: int) -> NDArray[np.float64]:
        """What `count`, and more, forwards are worth to each request that holds the drafter."""
        rows, desk = self._planned_rows(), self.desk
        size, context = len(rows.slots), context_of(rows)
        price = price_of(desk, self.knobs, rows, self._cost)
        weigh_ngram(desk, rows, price, self._cap)
        most = self._neural_cap
        best = _plans(desk, self.mind.outlook, self._reads, size, count, most, price, self._cap)
        rate = rate_of(desk, self.knobs, self._cost, size, context)
        one = rate * forward_s(self._cost, context) / size
        shares = [one * paid_forwards(self._cost, k, True) for k in range(most + 1)]
        found: NDArray[np.float64] = (best - shares)[rows.holds_neural]
        return found


@compiled
def _plans(
    desk: Desk,
    outlook: Outlook,
    reads: bool,
    rows: int,
    count: int,
    most: int,
    price: float,
    cap: int,
) -> NDArray[np.float64]:
    """(rows, most + 1) what each row's best plan is worth by forwards at hand."""
    best = np.zeros((rows, most + 1))
    copied, neural, hope = desk.ngram_value, desk.neural, desk.hope
    for row in range(rows):
        total = best[row]
        if reads:
            foresee_row(
                copied[row], neural[row], hope[row], outlook, count, most, price, cap, total
            )
        else:
            weigh_row(copied[row], neural[row], hope[row], most, price, cap, total)
    return best

"""The learned policy without batch planning, to measure what that is worth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import forward_s, paid_forwards
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.pace import context_of, rate_of
from adaspec.policy.planning import price_of, weigh_ngram
from adaspec.policy.protocol import Batch, Drafts


class RowsAlone(LearnedPolicy):
    """Every request asks for the forwards that it would gain by; the batch makes the most asked.

    A request counts its own gain against an equal share of each forward, as if all others would
    pay theirs. Everything else is the policy's own: predictions, pace, lengths, splices.
    """

    def plan(self, batch: Batch) -> int:
        """The most forwards that any request asks for."""
        super().plan(batch)
        values = self._values()
        if not len(values):
            return 0
        # Of equal ones the most, as the policy itself: evidence that costs nothing.
        most = values.shape[1] - 1 - values[:, ::-1].argmax(axis=1).min()
        self._most = int(most)
        return self._neural_cap if self._reads and self._most > 0 else self._most

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """Go on as long as any request gains by more."""
        if not self._reads:
            return True
        self._take(drafts)
        values = self._values()
        now, later = values[:, drafts.count, None], values[:, drafts.count + 1 :]
        return bool((later > now).any())

    def _values(self) -> NDArray[np.float64]:
        """What 0, 1, .. forwards are worth to each request that holds the drafter."""
        rows, desk = self._rows, self.desk
        count, context = len(rows.slots), context_of(rows)
        price = price_of(desk, self.knobs, rows, self._cost)
        weigh_ngram(desk, rows, price, self._cap)
        most = self._neural_cap
        survives = desk.neural[:count, 1 : most + 1]
        room = np.arange(1, most + 1) < self._cap
        worth = np.cumsum(survives - price, axis=1) + survives * desk.gain[:count, None] * room
        best = np.maximum.accumulate(np.column_stack([desk.ngram_value[:count], worth]), axis=1)
        rate = rate_of(desk, self.knobs, self._cost, count, context)
        one = rate * forward_s(self._cost, context) / count
        shares = [one * paid_forwards(self._cost, k, True) for k in range(most + 1)]
        found: NDArray[np.float64] = (best - shares)[rows.holds_neural]
        return found

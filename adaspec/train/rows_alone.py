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
        if super().plan(batch) == 0 and not self._holders().any():
            return 0
        self._most = int(self._wanted().max(initial=0))
        return self._neural_cap if self._reads and self._most > 0 else self._most

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """Go on as long as any request asks for more."""
        if not self._reads:
            return True
        self._take(drafts)
        return bool(self._wanted().max(initial=0) > drafts.count)

    def _holders(self) -> NDArray[np.bool_]:
        return self._rows.holds_neural

    def _wanted(self) -> NDArray[np.int64]:
        """Per request the forwards worth most to it; 0 for those that do not hold the drafter."""
        rows, desk = self._rows, self.desk
        count, context = len(rows.slots), context_of(rows)
        price = price_of(desk, self.knobs, rows, self._cost)
        weigh_ngram(desk, rows, price, self._cap)
        most = self._neural_cap
        survives = desk.neural[:count, 1 : most + 1]
        worth = np.cumsum(survives - price, axis=1)
        room = np.arange(1, most + 1) < self._cap
        worth += survives * desk.gain[:count, None] * room
        rate = rate_of(desk, self.knobs, self._cost, count, context)
        one = rate * forward_s(self._cost, context) / count
        shares = [one * paid_forwards(self._cost, k, True) for k in range(most + 1)]
        values = np.column_stack([desk.ngram_value[:count], worth]) - shares
        wanted: NDArray[np.int64] = np.where(rows.holds_neural, values.argmax(axis=1), 0)
        return wanted

"""A policy of one's own that decides as a compiled one does."""

import numpy as np

from adaspec.policy import adaptive
from adaspec.policy.protocol import Batch, Proposal, Report
from adaspec.policy.spec import parse_policy
from adaspec.policy.static import ranking


class OwnRival:
    """What `budget:K` or `ema` decides, asked step by step where deciding costs nothing."""

    def __init__(self, spec: str, cap: int) -> None:
        self._rival, self._state = adaptive.begin(parse_policy(spec).rival, cap)
        self._odds = np.empty((0, 0))

    def decide(self, batch: Batch) -> Proposal:
        self._costs = batch.setup.cost.constants()
        depth = int(adaptive.forwards_of(self._rival, self._state, len(batch)))
        drafts = batch.draft(depth)
        if batch.setup.shows_confidences and self._rival.is_budget:
            self._odds = ranking(drafts.confidences).astype(np.float64)
        context = int((batch.prompt_tokens + batch.position).sum())
        shape = adaptive.decoding_shape(len(batch), context, 0, depth, True)
        lengths = adaptive.choose(self._rival, self._state, shape, self._odds, self._costs)
        return Proposal(lengths, np.zeros_like(lengths))

    def learn(self, report: Report) -> None:
        lengths, rows = report.proposal.neural_len, len(report.batch)
        adaptive.learn(self._rival, self._state, rows, self._odds, lengths, report.accepted)

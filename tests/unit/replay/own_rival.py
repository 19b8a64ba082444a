"""A policy of one's own that decides as a compiled one does."""

import numpy as np

from adaspec.cost.model import step_shape
from adaspec.policy.budget import keep_likeliest, ranked
from adaspec.policy.protocol import Proposal
from adaspec.policy.static import parse_policy, ranking
from adaspec.replay import adaptive


class OwnRival:
    """What `budget:K` decides, asked step by step where deciding costs nothing."""

    def __init__(self, spec, cap):
        self._depth = min(parse_policy(spec).draft_len, cap)
        self._state, self._odds = adaptive.begin(1, self._depth), np.empty((0, 0))

    def decide(self, batch):
        drafts, count = batch.draft(self._depth), len(batch)
        if batch.setup.shows_confidences:
            self._odds = ranking(drafts.confidences).astype(np.float64)
        shape = step_shape(
            count, int((batch.prompt_tokens + batch.position).sum()), 0, self._depth, True
        )
        lengths = np.full(count, self._depth)
        survival = adaptive.survivals(self._state, np.zeros(count, int), self._odds, lengths)
        offered = ranked(survival, lengths)
        best = adaptive.best_count(batch.setup.cost.constants(), shape, offered, 1.0)
        keep_likeliest(offered, survival, lengths, best)
        return Proposal(lengths, np.zeros_like(lengths))

    def learn(self, report):
        tried, accepted = (
            each.astype(int) for each in (report.proposal.neural_len, report.accepted)
        )
        adaptive.learn(self._state, np.zeros(len(tried), int), self._odds, tried, accepted)

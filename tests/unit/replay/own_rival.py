"""A policy of one's own that decides as a compiled one does."""

import numpy as np

from adaspec.cost.model import step_shape
from adaspec.policy.protocol import Proposal
from adaspec.policy.spec import parse_policy
from adaspec.policy.static import ranking
from adaspec.replay import budgeted


class OwnRival:
    """What `budget:K` decides, asked step by step where deciding costs nothing."""

    def __init__(self, spec, cap):
        self._depth, self._state = min(parse_policy(spec).draft_len, cap), budgeted.begin()
        self._odds = np.empty((0, 0))

    def decide(self, batch):
        drafts = batch.draft(self._depth)
        if batch.setup.shows_confidences:
            self._odds = ranking(drafts.confidences).astype(np.float64)
        context = int((batch.prompt_tokens + batch.position).sum())
        shape = step_shape(len(batch), context, 0, self._depth, True)
        lengths = budgeted.choose(self._state, shape, self._odds, batch.setup.cost.constants())
        return Proposal(lengths, np.zeros_like(lengths))

    def learn(self, report):
        budgeted.learn(self._state, self._odds, report.proposal.neural_len, report.accepted)

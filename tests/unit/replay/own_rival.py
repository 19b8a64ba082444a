"""A policy of one's own that decides as a compiled one does."""

import numpy as np

from adaspec.policy import adaptive
from adaspec.policy.base import BasePolicy, costs_of
from adaspec.policy.protocol import Batch, Proposal, Setup, StepResult
from adaspec.policy.spec import parse_policy
from adaspec.policy.static import ranking


class OwnRival(BasePolicy):
    """What `budget:K` or `ema` decides, asked step by step."""

    def __init__(self, spec: str) -> None:
        policy = parse_policy(spec)
        self.name, self._policy, self.deciding = spec, policy, policy.deciding

    def start(self, setup: Setup) -> None:
        self._rival, self._state = adaptive.begin(self._policy.rival, setup.cap)
        self._costs, self._odds = costs_of(self, setup), np.empty((0, 0))
        self._ranks = setup.shows_confidences and self._rival.is_budget

    def forwards(self, batch: Batch) -> int:
        return int(adaptive.forwards_of(self._rival, self._state, len(batch)))

    def decide(self, batch: Batch) -> Proposal:
        depth = batch.drafts.count
        if self._ranks:
            self._odds = ranking(batch.drafts.confidences).astype(np.float64)
        shape = adaptive.decoding_shape(len(batch), int(batch.context_tokens.sum()), 0, depth, True)
        lengths = adaptive.choose(self._rival, self._state, shape, self._odds, self._costs)
        return Proposal(lengths, np.zeros_like(lengths))

    def learn(self, report: StepResult) -> None:
        lengths, accepted, rows = report.neural_drafted, report.accepted, len(report.batch)
        adaptive.learn(self._rival, self._state, rows, self._odds, lengths, accepted)

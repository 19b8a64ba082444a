"""Policies that the engine tests serve by: one that takes every path, and ones that fail."""

import numpy as np

from adaspec.policy.base import BasePolicy
from adaspec.policy.protocol import Proposal

STAGES = ("refused", "held", "idle", "went_on", "stopped", "trimmed")
SOURCES = ("none", "ngram", "neural", "splice")


class Wanderer(BasePolicy):
    """Takes every method's every way in turn: seeded chance, evidence and agreement decide."""

    name = "wanderer"
    stops_early = True
    seed = 7

    def start(self, setup):
        self.setup = setup
        self.draw = np.random.default_rng(self.seed)
        self.taken = dict.fromkeys((*STAGES, *SOURCES), 0)
        self.learned = 0

    def holds_drafter(self, load):
        holds = bool(self.draw.random() < 0.95)
        self.taken["held" if holds else "refused"] += 1
        return holds

    def forwards(self, batch):
        drafts, held = batch.drafts, batch.holds_neural
        if drafts.count == 0:
            if not held.any() or self.draw.random() < 0.25:
                self.taken["idle"] += 1
                return 0
            self.most = int(self.draw.integers(1, min(self.setup.neural_cap, 6) + 1))
            return self.most
        last = drafts.confidences[held, drafts.count - 1]
        assert np.isfinite(last).all()
        assert (last[:, 0] <= 0).all()
        assert (last[:, 1] >= 0).all()
        assert (drafts.tokens[held] >= 0).all()
        assert (drafts.tokens[~held] == -1).all()
        agreed = batch.context.candidate(drafts.count)[held] == drafts.tokens[held]
        going_on = bool(np.exp(last[:, 0]).mean() + 0.2 * agreed.mean() > 0.6)
        going_on &= bool(self.draw.random() < 0.9)
        self.taken["went_on" if going_on else "stopped"] += 1
        return self.most if going_on else drafts.count

    def decide(self, batch):
        rows, drafts = len(batch), batch.drafts
        way = self.draw.integers(0, 4, rows)
        most = np.where(batch.holds_neural, drafts.count, 0)
        kept = self.draw.integers(0, drafts.count + 1, rows)
        neural = np.where(way >= 2, np.minimum(most, np.maximum(kept, 1)), 0).astype(np.int32)
        behind = drafts.behind(neural)
        splice = np.where((way == 3) & (neural > 0), behind.available, 0)
        ngram = np.where(way == 1, self.draw.integers(1, 30, rows), splice).astype(np.int32)
        for row in range(rows):
            here = "none"
            if neural[row] and ngram[row]:
                here = "splice"
            elif neural[row]:
                here = "neural"
            elif ngram[row] and batch.matches.available[row]:
                here = "ngram"
            self.taken[here] += 1
            self.taken["trimmed"] += 0 < neural[row] < drafts.count
        return Proposal(neural, ngram)

    def learn(self, report):
        assert (report.accepted <= report.drafted).all()
        assert (report.neural_drafted <= report.drafted).all()
        emitted = report.emitted_tokens
        assert ((emitted == report.accepted + 1) | (emitted == 0)).all()
        self.learned += len(report.batch)


class Failing(Wanderer):
    """Fails in one method, each time or now and then."""

    name = "failing"

    def __init__(self, method, how, every=1):
        self.method, self.how, self.every, self.calls = method, how, every, 0

    def start(self, setup):
        super().start(setup)
        setattr(self, self.method, self._failing(getattr(super(), self.method)))

    def _failing(self, well):
        def method(*facts):
            self.calls += 1
            if self.calls % self.every:
                return well(*facts)
            if self.how == "raises":
                raise RuntimeError("injected")
            if self.how == "nan":
                return float("nan")
            if self.how == "nan lengths":
                rows = len(facts[0])
                return Proposal(np.full(rows, np.nan), np.full(rows, np.nan))
            if self.how == "shape":
                return Proposal(np.zeros(99, np.int32), np.zeros(99, np.int32))
            if self.how == "too many":
                return Proposal(np.full(len(facts[0]), 77), np.zeros(len(facts[0]), np.int32))
            raise AssertionError(self.how)

        return method

"""Training: rollouts, fits, rollouts of what was fitted, fits again, knobs.

Everything that a request's examples rest on (token tables, the policy that was rolled out, the
expectations that evidence corrects) comes from models that never saw that request: training
requests are dealt into folds, and each fold is rolled out under the model of the others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.evaluate.options import Progress, silent
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import LONGEST_NEURAL
from adaspec.policy.static import StaticRule
from adaspec.predict.model import FEATURE_NAMES, HEADS, Model, no_curves
from adaspec.predict.tables import Tables
from adaspec.replay.learned import run_learned
from adaspec.replay.orders import draw_passes, pools_among
from adaspec.replay.recorded import Film, film_of
from adaspec.replay.tape import Tape
from adaspec.train.compilation import compile_forest
from adaspec.train.heads import (
    Examples,
    Settings,
    constant,
    evened,
    fit_before,
    fit_evidence,
    fit_splice,
    model_of,
    pooled,
)
from adaspec.train.rollouts import rollout
from adaspec.train.token_tables import TableMaker

Members = NDArray[np.bool_]

LOADS = (1, 8, 32, 128)
FOLDS = 3
STAGES = 5
ROLLED = 300_000
"""Positions of requests that are rolled out: beyond these only the token tables learn more."""
TUNED = 100_000
"""The same for those that knobs are tuned on."""
WATCHED = (
    StaticRule(),
    StaticRule(min_match=3, ngram_len=20, neural_len=2, splice_match=1, splice_len=10),
    StaticRule(min_match=8, ngram_len=8, neural_len=2, splice_match=2, splice_len=3),
)
"""Rules whose paths training sees before there is a policy to roll out; the first, which never
drafts, comes to every position."""
KNOB_GRID = {
    "ngram_exponent": (1.3, 2.0),
    "splice_weight": (0.5, 1.0, 1.3),
    "splice_tokens": (1.5,),
    "neural_exponent": (0.9, 1.1),
}


Spread = Callable[..., list[Any]]
"""How a method is called for many arguments: `map`, whose calls may run at once."""


def in_threads(workers: int) -> Spread:
    """So many at a time: rollouts are compiled, trees grow in C++, and neither holds the lock."""

    def spread(method: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        pool = ThreadPoolExecutor(workers)
        try:
            return list(pool.map(method, *arguments))
        finally:
            # Otherwise whoever interrupts waits for those that have not begun.
            pool.shutdown(cancel_futures=True)

    return spread


@dataclass(frozen=True, slots=True)
class Trained:
    """A model, the knobs tuned for it, and the boosters that it was compiled from."""

    model: Model
    knobs: dict[str, float]
    boosters: Mapping[str, Mapping[str, lightgbm.Booster]]
    cap: int
    neural_cap: int
    seed: int
    examples: Examples
    """What its trees were grown on."""

    def policy(self, name: str) -> LearnedPolicy:
        """As a policy."""
        return LearnedPolicy(name, self.model, self.knobs, self.cap, self.neural_cap)


@dataclass(slots=True)
class Trainer:
    """Trains on a subset of a tape's requests."""

    tape: Tape
    cost: CostModel
    settings: Settings
    cap: int = 48
    loads: Sequence[int] = LOADS
    progress: Progress = silent
    spread: Spread | None = None
    """How rollouts are called; None: in this process's threads."""
    film: Film = field(init=False)
    maker: TableMaker = field(init=False)

    def __post_init__(self) -> None:
        """Lay out the tape once."""
        self.film = film_of(self.tape)
        self.maker = TableMaker(self.tape, self.settings.seed)

    def portable(self) -> Trainer:
        """The same trainer without what only this process can use, to be sent to another."""
        other = copy.copy(self)
        other.progress, other.spread = silent, None
        other.settings = replace(self.settings, fitter=None)
        return other

    @property
    def evidence(self) -> bool:
        """Whether there is evidence to learn from."""
        return self.tape.shows_tokens and self.tape.neural_cap > 0

    def train_all(self) -> Trained:
        """Train on every request of the tape."""
        return self.train(np.ones(len(self.tape), np.bool_))

    def train(self, members: Members) -> Trained:
        """Train on the marked requests."""
        self.progress("training", 0, STAGES)
        folds = self._folds(self._some(members, ROLLED))
        others = [members & ~fold for fold in folds]
        tables = [self.maker.make(other) for other in others]
        blank = [self._blank(table) for table in tables]
        seen = evened(pooled(self._spread(self._watch, blank, folds)))
        models = self._fits(seen, others, tables, evidence=False)
        self.progress("training", 1, STAGES)
        if self.evidence:
            unmoved = [self._policy(_with_constant_evidence(model)) for model in models]
            listening = pooled(self._spread(self._listen, unmoved, folds))
            seen = evened(pooled([seen, listening]))
            models = self._fits(seen, others, tables, evidence=True)
        self.progress("training", 2, STAGES)
        policies = [self._policy(model) for model in models]
        visited = pooled(self._spread(self._visit, policies, folds))
        # What was seen under a model that knew less says nothing of splices and evidence: both
        # are judged beside what the model expects.
        seen = replace(
            seen,
            splice_at=seen.splice_at[:0],
            splice_length=seen.splice_length[:0],
            splice_x=seen.splice_x[:0],
            evidence_at=seen.evidence_at[:0],
            evidence_depth=seen.evidence_depth[:0],
            evidence_x=seen.evidence_x[:0],
        )
        seen = evened(pooled([seen, visited]))
        models = self._fits(seen, others, tables, self.evidence)
        self.progress("training", 3, STAGES)
        tuned = self._some(np.logical_or.reduce(folds), TUNED)
        knobs = self._tuned(models, [fold & tuned for fold in folds])
        self.progress("training", 4, STAGES)
        examples = seen.of(members, self.maker.request)
        everything = self.maker.make(members)
        final, boosters = self._fit(examples, everything, self.evidence, final=True)
        self.progress("training", STAGES, STAGES)
        neural_cap = min(self.tape.neural_cap, LONGEST_NEURAL, self.cap)
        return Trained(final, knobs, boosters, self.cap, neural_cap, self.settings.seed, examples)

    @property
    def _spread(self) -> Spread:
        return self.spread or in_threads(self.settings.threads)

    def _some(self, members: Members, most: int) -> Members:
        """All of them, or at random as many as hold about so many positions, of every workload."""
        lengths = self.tape.columns.length
        share = most / max(int(lengths[members].sum()), 1)
        if share >= 1:
            return members
        rng = np.random.default_rng([self.settings.seed, 0x50EE])
        chosen = np.zeros_like(members)
        for w in range(len(self.tape.workloads)):
            inside = np.flatnonzero(members & (self.tape.workload == w))
            count = min(len(inside), max(FOLDS, round(share * len(inside))))
            chosen[rng.permutation(inside)[:count]] = True
        return chosen

    def _folds(self, members: Members) -> list[Members]:
        rng = np.random.default_rng([self.settings.seed, 0xF01D])
        dealt = np.full(len(members), -1)
        for w in range(len(self.tape.workloads)):
            inside = np.flatnonzero(members & (self.tape.workload == w))
            dealt[rng.permutation(inside)] = np.arange(len(inside)) % FOLDS
        return [dealt == fold for fold in range(FOLDS)]

    def _policy(self, model: Model, knobs: Mapping[str, float] | None = None) -> LearnedPolicy:
        return LearnedPolicy("training", model, knobs or {}, self.cap, self.tape.neural_cap)

    def _fits(
        self,
        seen: Examples,
        others: Sequence[Members],
        tables: Sequence[Tables],
        evidence: bool,
    ) -> list[Model]:
        """A model for every fold, of what was seen in the others."""

        def fit(other: Members, table: Tables) -> Model:
            return self._fit(seen.of(other, self.maker.request), table, evidence)[0]

        # A cluster grows one head's trees at a time, on all its workers.
        at_once = 1 if self.settings.fitter else self.settings.threads
        return in_threads(at_once)(fit, others, tables)

    def _fit(
        self, examples: Examples, tables: Tables, evidence: bool, *, final: bool = False
    ) -> tuple[Model, dict[str, dict[str, lightgbm.Booster]]]:
        settings = self.settings if final else self.settings.rough()
        examples = examples.thinned(settings.most, settings.seed)
        before, curves = fit_before(self.tape, examples, settings)
        splice, spliced = fit_splice(self.tape, examples, settings)
        boosters, factors = {"before": before, "splice": splice}, None
        if evidence:
            boosters["evidence"], factors = fit_evidence(self.tape, examples, settings)
        return model_of(boosters, {**curves, "splice": spliced}, tables, factors), boosters

    def _blank(self, tables: Tables) -> LearnedPolicy:
        """A policy that knows nothing, to observe while a rule chooses."""
        nothing = {
            group: {head: constant(0.5, FEATURE_NAMES[group]) for head in HEADS[group]}
            for group in ("before", "splice")
        }
        curves = {name: no_curves(1) for name in ("ngram", "neural", "splice")}
        return self._policy(model_of(nothing, curves, tables))

    def _watch(self, policy: LearnedPolicy, fold: Members) -> Examples:
        """Static rules' paths."""
        rng = np.random.default_rng([self.settings.seed, 1])
        parts = [
            rollout(self.tape, self.film, policy, fold, 1, self.cost, rng, rule)
            for rule in WATCHED
            if self.tape.neural_cap or rule.neural_len == 0
        ]
        return pooled(parts)

    def _listen(self, policy: LearnedPolicy, fold: Members) -> Examples:
        """Whole neural drafts along a rule's path, to learn what evidence means."""
        rng = np.random.default_rng([self.settings.seed, 2])
        most = self.tape.neural_cap
        rule = StaticRule(min_match=8, ngram_len=8, neural_len=most)
        return rollout(self.tape, self.film, policy, fold, 1, self.cost, rng, rule)

    def _visit(self, policy: LearnedPolicy, fold: Members) -> Examples:
        rng = np.random.default_rng([self.settings.seed, 3])
        return pooled(
            [
                rollout(self.tape, self.film, policy, fold, load, self.cost, rng)
                for load in self.loads
            ]
        )

    def _tuned(self, models: list[Model], folds: list[Members]) -> dict[str, float]:
        """Knobs by rollouts on training requests, each fold under the model of the others."""
        best: dict[str, float] = {}
        best_speed = self._speed(models, folds, best)
        for name, values in KNOB_GRID.items():
            for value in values:
                tried = best | {name: value}
                speed = self._speed(models, folds, tried)
                if speed > best_speed:
                    best, best_speed = tried, speed
        return best

    def _speed(
        self, models: list[Model], folds: list[Members], knobs: Mapping[str, float]
    ) -> float:
        """Summed log throughput over folds and loads."""
        pairs = list(zip(models, folds, strict=True))
        asked = [(model, fold, load, knobs) for model, fold in pairs for load in self.loads]
        return sum(self._spread(self._log_throughput, *zip(*asked, strict=True)))

    def _log_throughput(
        self, model: Model, fold: Members, load: int, knobs: Mapping[str, float]
    ) -> float:
        """Of one fold at one load."""
        rng = np.random.default_rng([self.settings.seed, 4, load])
        order = draw_passes(pools_among(self.tape, fold), load, rng)
        policy = self._policy(model, knobs)
        result = run_learned(self.tape, self.film, policy, order, load, self.cost, self.cap)
        return float(np.log(result.tokens_per_s))


def _with_constant_evidence(model: Model) -> Model:
    """The same model, whose predictions do not move with what is drafted.

    Its evidence forests are evaluated all the same, so that the replay records their features.
    """
    names = FEATURE_NAMES["evidence"]
    constants = compile_forest({head: constant(0.6, names) for head in HEADS["evidence"]}, names)
    return replace(model, forests={**model.forests, "evidence": constants})

"""Training: rollouts of static rules, fits, rollouts of the fitted policies, fits, knobs.

Training requests are dealt into folds, and each fold is rolled out under the model of the other
folds. So everything on which a request's examples depend (token tables, the policy rolled out, the
expectations that evidence corrects) comes from models that never saw that request.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import ASYNC, SYNC
from adaspec.cost.model import CostModel
from adaspec.evaluate.options import Progress, silent
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import LONGEST_NEURAL
from adaspec.policy.static import StaticRule
from adaspec.predict.evidence_factors import no_factors
from adaspec.predict.model import Model, no_curves
from adaspec.predict.tables import Tables
from adaspec.replay.learned import run_learned
from adaspec.replay.orders import draw_passes, pools_among
from adaspec.replay.recording import Recording
from adaspec.trace.dialogues import dialogue_hashes
from adaspec.train.examples import NO_EVIDENCE, NO_SPLICES, Examples, evened, pooled, rollout
from adaspec.train.heads import (
    Boosters,
    Settings,
    constant_heads,
    fit_before,
    fit_evidence,
    fit_splice,
    model_of,
    with_constant,
)
from adaspec.train.token_tables import TableMaker

Members = NDArray[np.bool_]

FOLDS = 3
STAGES = 5
ROLLOUT_POSITIONS = 300_000
"""Most positions that are rolled out; further requests only go into the token tables."""
TUNING_POSITIONS = 100_000
"""Most positions on which knobs are tuned."""
FIRST_RULES = (
    StaticRule(),
    StaticRule(min_match=3, ngram_len=20, neural_len=2),
    StaticRule(min_match=8, ngram_len=8, neural_len=2),
)
"""Rules that are rolled out before there is a policy. The first never drafts, so it visits every
position."""
KNOB_GRID = {
    "ngram_exponent": (1.3, 2.0),
    "splice_weight": (0.5, 1.0, 1.3),
    "splice_tokens": (1.5,),
    "neural_exponent": (0.9, 1.1),
}

FIRST_STEP_MORE = 3
"""How many more forwards are tried for steps in which a request takes its first."""

Forwards = Mapping[int, tuple[int, int]]
"""Load -> forwards of an async engine, and those of a step that is some request's first."""
Spread = Callable[..., list[Any]]
"""A function that calls a method for many arguments, as `map` does, several at once if it can."""


def in_threads(workers: int) -> Spread:
    """A `Spread` over threads: rollouts and tree growing are compiled and release the GIL."""

    def spread(method: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        pool = ThreadPoolExecutor(workers)
        try:
            return list(pool.map(method, *arguments))
        finally:
            # Without this, an interrupt would wait for the calls that have not begun.
            pool.shutdown(cancel_futures=True)

    return spread


@dataclass(frozen=True, slots=True)
class Trained:
    """A model, the knobs tuned for it, and the boosters it was distilled from."""

    model: Model
    knobs: dict[str, float]
    boosters: Mapping[str, Boosters]
    cap: int
    neural_cap: int
    seed: int
    examples: Examples
    """Examples on which its trees were grown."""
    late_knobs: dict[str, float]
    """Knobs tuned for an async engine."""
    late_forwards: Forwards
    memory: bool
    """Whether it was trained to copy from earlier answers as well."""

    def policy(self, name: str) -> LearnedPolicy:
        """A policy that decides by this model."""
        return LearnedPolicy(
            name,
            self.model,
            self.knobs,
            self.cap,
            self.neural_cap,
            late_knobs=self.late_knobs,
            forwards=self.late_forwards,
            memory=self.memory,
        )


@dataclass(slots=True)
class Trainer:
    """Trains on a subset of a recording's requests."""

    recording: Recording
    cost: CostModel
    settings: Settings
    cap: int
    loads: Sequence[int]
    progress: Progress = silent
    spread: Spread | None = None
    """How rollouts are run; None uses threads of this process."""
    engine: str = SYNC
    """The engine in whose order of events policies are rolled out. Knobs are tuned for both."""
    texts: Recording | None = None
    """Requests of which only the text is known. They go into the token tables alone."""
    maker: TableMaker = field(init=False)

    def __post_init__(self) -> None:
        """Prepare what all training on this recording shares."""
        self.maker = TableMaker(self.recording, self.settings.seed, self.texts)

    def portable(self) -> Trainer:
        """A copy that can be sent to another process."""
        other = copy.copy(self)
        other.progress, other.spread = silent, None
        other.texts = None
        return other

    @property
    def evidence(self) -> bool:
        """True if the recording shows drafted tokens to learn from."""
        return self.recording.shows_tokens and self.recording.neural_cap > 0

    def train_all(self) -> Trained:
        """Train on every request of the recording."""
        return self.train(np.ones(len(self.recording), np.bool_))

    def train(self, members: Members) -> Trained:
        """Train on the marked requests."""
        self.progress("training", 0, STAGES)
        folds = self._folds(self._some(members, ROLLOUT_POSITIONS))
        others = [members & ~fold for fold in folds]
        tables = [self.maker.make(other) for other in others]
        blank = [self._blank(table) for table in tables]
        seen = evened(pooled(self._spread(self._roll_rules, blank, folds)))
        models = self._fits(seen, others, tables, evidence=False)
        self.progress("training", 1, STAGES)
        if self.evidence:
            # With constant evidence heads, replays record what such heads would read.
            blank = [self._policy(with_constant(model, "evidence", 0.6)) for model in models]
            drafts = pooled(self._spread(self._roll_full_drafts, blank, folds))
            seen = evened(pooled([seen, drafts]))
            models = self._fits(seen, others, tables, evidence=True)
        self.progress("training", 2, STAGES)
        most = min(self.recording.neural_cap, LONGEST_NEURAL, self.cap)
        forwards: Forwards = {}
        if self.engine == ASYNC:
            # One more than is best, so that it is learned what lies behind those.
            tuned = self._tuned_forwards(models, folds, {}, most)
            forwards = {
                load: (min(usual + 1, most), min(first + 1, most))
                for load, (usual, first) in tuned.items()
            }
        policies = [self._policy(model, None, forwards) for model in models]
        visited = pooled(self._spread(self._roll_policy, policies, folds))
        # Features of splices and evidence include the model's expectations, so examples of the
        # earlier models are of no use any more.
        seen = replace(seen, splices=NO_SPLICES, evidence=NO_EVIDENCE)
        seen = evened(pooled([seen, visited]))
        models = self._fits(seen, others, tables, self.evidence)
        self.progress("training", 3, STAGES)
        some = self._some(np.logical_or.reduce(folds), TUNING_POSITIONS)
        whole, folds = folds, [fold & some for fold in folds]
        knobs = self._tuned(models, folds, SYNC, {})
        forwards = self._tuned_forwards(models, whole, knobs, most)
        late_knobs = self._tuned(models, folds, ASYNC, forwards)
        self.progress("training", 4, STAGES)
        examples = seen.of(members, self.maker.request)
        everything = self.maker.make(members)
        final, boosters = self._fit(examples, everything, self.evidence, self.settings)
        self.progress("training", STAGES, STAGES)
        return Trained(
            final,
            knobs,
            boosters,
            self.cap,
            most,
            self.settings.seed,
            examples,
            late_knobs,
            forwards,
            self.recording.knows_answers,
        )

    @property
    def _spread(self) -> Spread:
        return self.spread or in_threads(self.settings.threads)

    def _some(self, members: Members, most: int) -> Members:
        """The members, or a random part of each workload, of about `most` positions in total."""
        lengths = self.recording.columns.length
        share = most / max(int(lengths[members].sum()), 1)
        if share >= 1:
            return members
        rng = np.random.default_rng([self.settings.seed, 0x50EE])
        chosen = np.zeros_like(members)
        for inside in self._by_workload(members):
            count = min(len(inside), max(FOLDS, round(share * len(inside))))
            chosen[rng.permutation(inside)[:count]] = True
        return chosen

    def _by_workload(self, members: Members) -> list[NDArray[np.int64]]:
        workloads = range(len(self.recording.workloads))
        return [np.flatnonzero(members & (self.recording.workload == w)) for w in workloads]

    def _folds(self, members: Members) -> list[Members]:
        """Parts of the members, each workload spread evenly, no dialogue of it in two."""
        rng = np.random.default_rng([self.settings.seed, 0xF01D])
        fold_of = np.full(len(members), -1)
        _, dialogue = np.unique(dialogue_hashes(self.recording.requests), return_inverse=True)
        for inside in self._by_workload(members):
            _, first, turns = np.unique(dialogue[inside], return_index=True, return_inverse=True)
            dealt = np.full(len(inside), -1)
            dealt[rng.permutation(np.sort(first))] = np.arange(len(first)) % FOLDS
            fold_of[inside] = dealt[first[turns]]
        return [fold_of == fold for fold in range(FOLDS)]

    def _policy(
        self,
        model: Model,
        knobs: Mapping[str, float] | None = None,
        forwards: Forwards | None = None,
    ) -> LearnedPolicy:
        neural_cap = self.recording.neural_cap
        return LearnedPolicy(
            "training", model, knobs or {}, self.cap, neural_cap, forwards=forwards
        )

    def _fits(
        self,
        seen: Examples,
        others: Sequence[Members],
        tables: Sequence[Tables],
        evidence: bool,
    ) -> list[Model]:
        """A model for every fold, fitted on the examples of the other folds."""
        at_once = self.settings.threads
        settings = self.settings.rough()
        if at_once > 1:
            # LightGBM has one number of threads for the whole process: fits that run at once must
            # agree on it, or one of them writes beyond its buffers.
            settings = replace(settings, threads=1)

        def fit(other: Members, table: Tables) -> Model:
            return self._fit(seen.of(other, self.maker.request), table, evidence, settings)[0]

        return in_threads(at_once)(fit, others, tables)

    def _fit(
        self, examples: Examples, tables: Tables, evidence: bool, settings: Settings
    ) -> tuple[Model, dict[str, Boosters]]:
        examples = examples.thinned(settings.max_examples, settings.seed)
        before, curves = fit_before(self.recording, examples, settings)
        splice, spliced = fit_splice(self.recording, examples, settings)
        boosters, factors = {"before": before, "splice": splice}, None
        if evidence:
            boosters["evidence"], factors = fit_evidence(self.recording, examples, settings)
        curves["splice"] = spliced
        samples = examples.by_group
        return model_of(boosters, samples, curves, tables, settings, factors), boosters

    def _blank(self, tables: Tables) -> LearnedPolicy:
        """A policy without knowledge, to record examples while a static rule drives the loop."""
        networks = {group: constant_heads(group, 0.5) for group in ("before", "splice")}
        curves = {name: no_curves(1) for name in ("ngram", "neural", "splice")}
        return self._policy(Model(networks, curves, tables, no_factors()))

    def _roll_rules(self, policy: LearnedPolicy, fold: Members) -> Examples:
        """The examples that the policy records while static rules drive the loop."""
        rng = np.random.default_rng([self.settings.seed, 1])
        rules = [r for r in FIRST_RULES if self.recording.neural_cap or r.neural_len == 0]
        return pooled(
            [rollout(self.recording, policy, fold, 1, self.cost, rng, rule) for rule in rules]
        )

    def _roll_full_drafts(self, policy: LearnedPolicy, fold: Members) -> Examples:
        """The examples of full neural drafts, from which the evidence heads learn."""
        rng = np.random.default_rng([self.settings.seed, 2])
        rule = StaticRule(min_match=8, ngram_len=8, neural_len=self.recording.neural_cap)
        return rollout(self.recording, policy, fold, 1, self.cost, rng, rule)

    def _roll_policy(self, policy: LearnedPolicy, fold: Members) -> Examples:
        rng = np.random.default_rng([self.settings.seed, 3])
        return pooled(
            [
                rollout(self.recording, policy, fold, load, self.cost, rng, engine=self.engine)
                for load in self.loads
            ]
        )

    def _tuned(
        self, models: list[Model], folds: list[Members], engine: str, forwards: Forwards
    ) -> dict[str, float]:
        """Knobs tuned in rollouts of training requests, each fold under the model of the others."""

        def speed_of(knobs: dict[str, float]) -> float:
            return self._speed(models, folds, self.loads, knobs, engine, forwards)

        best: dict[str, float] = {}
        best_speed = speed_of(best)
        for name, values in KNOB_GRID.items():
            for value in values:
                tried = best | {name: value}
                speed = speed_of(tried)
                if speed > best_speed:
                    best, best_speed = tried, speed
        return best

    def _tuned_forwards(
        self,
        models: list[Model],
        folds: list[Members],
        knobs: Mapping[str, float],
        most: int,
    ) -> Forwards:
        """Forwards of an async engine by load, tuned by what comes of them in such rollouts."""
        if most == 0:
            return {}
        tuned = {}
        for load in self.loads:

            def speed_of(pair: tuple[int, int], load: int = load) -> float:
                return self._speed(models, folds, [load], knobs, ASYNC, {load: pair})

            least = 1
            best = least, least
            best_speed = speed_of(best)
            for usual in range(least + 1, most + 1):
                speed = speed_of((usual, usual))
                if speed <= best_speed:
                    break
                best, best_speed = (usual, usual), speed
            for first in range(best[0] + 1, min(best[0] + FIRST_STEP_MORE, most) + 1):
                speed = speed_of((best[0], first))
                if speed > best_speed:
                    best, best_speed = (best[0], first), speed
            tuned[load] = best
        return tuned

    def _speed(
        self,
        models: list[Model],
        folds: list[Members],
        loads: Sequence[int],
        knobs: Mapping[str, float],
        engine: str,
        forwards: Forwards,
    ) -> float:
        """The log throughput summed over folds and loads."""
        pairs = list(zip(models, folds, strict=True))
        calls = [
            (model, fold, load, knobs, engine, forwards) for model, fold in pairs for load in loads
        ]
        return sum(self._spread(self._log_throughput, *zip(*calls, strict=True)))

    def _log_throughput(
        self,
        model: Model,
        fold: Members,
        load: int,
        knobs: Mapping[str, float],
        engine: str,
        forwards: Forwards,
    ) -> float:
        rng = np.random.default_rng([self.settings.seed, 4, load])
        order = draw_passes(pools_among(self.recording, fold), load, rng)
        policy = self._policy(model, knobs, forwards)
        result = run_learned(
            self.recording, policy, order, load, self.cost, self.cap, engine=engine
        )
        return float(np.log(result.tokens_per_s))

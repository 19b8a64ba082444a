"""Training: what a recording shows at every position, fits, and forwards by load.

Training requests are dealt into folds, and each fold is surveyed under the model of the others. So
everything on which a request's examples depend (token tables, the expectations that evidence
corrects) comes from models that never saw that request.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import ASYNC
from adaspec.cost.model import CostModel
from adaspec.evaluate.options import Progress, silent
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import LONGEST_NEURAL
from adaspec.predict.model import Model, no_curves
from adaspec.predict.tables import Tables
from adaspec.replay.learned import run_learned
from adaspec.replay.orders import draw_passes, pools_among
from adaspec.replay.recording import Recording
from adaspec.trace.dialogues import dialogue_hashes
from adaspec.train.examples import Examples, pooled, surveyed
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
SURVEYED_POSITIONS = 300_000
"""Most positions that are surveyed; further requests only go into the token tables."""

Forwards = Mapping[int, int]
"""Load -> forwards of the drafter in a step."""
Spread = Callable[..., list[Any]]
"""A function that calls a method for many arguments, as `map` does, several at once if it can."""


def in_threads(workers: int) -> Spread:
    """A `Spread` over threads: replays and tree growing are compiled and release the GIL."""

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
    """A model, the forwards tuned for it, and the boosters it was distilled from."""

    model: Model
    boosters: Mapping[str, Boosters]
    cap: int
    neural_cap: int
    seed: int
    examples: Examples
    """Examples on which its trees were grown."""
    forwards: Forwards
    memory: bool
    """Whether it was trained to copy from earlier answers as well."""

    def policy(self, name: str) -> LearnedPolicy:
        """A policy that decides by this model."""
        return LearnedPolicy(
            name,
            self.model,
            self.cap,
            self.neural_cap,
            forwards=self.forwards,
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
    """How replays are run; None uses threads of this process."""
    engine: str = ASYNC
    """The engine for which forwards are tuned."""
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
        folds = self._folds(self._some(members, SURVEYED_POSITIONS))
        others = [members & ~fold for fold in folds]
        tables = [self.maker.make(other) for other in others]
        blank = [self._blank(table) for table in tables]
        seen = pooled(self._spread(self._survey, blank, folds))
        models = self._fits(seen, others, tables)
        self.progress("training", 1, STAGES)
        # Features of splices and evidence include what the model expects before.
        if self.evidence:
            models = [with_constant(model, "evidence", 0.6) for model in models]
            drafts = pooled(self._spread(self._survey_drafts, models, folds))
            models = self._fits(seen.with_drafts(drafts), others, tables)
        self.progress("training", 2, STAGES)
        seen = seen.with_drafts(pooled(self._spread(self._survey_drafts, models, folds)))
        models = self._fits(seen, others, tables)
        self.progress("training", 3, STAGES)
        most = min(self.recording.neural_cap, LONGEST_NEURAL, self.cap)
        forwards = self._tuned_forwards(models, folds, most)
        self.progress("training", 4, STAGES)
        examples = seen.of(members, self.maker.request)
        final, boosters = self._fit(examples, self.maker.make(members), self.settings)
        self.progress("training", STAGES, STAGES)
        return Trained(
            final,
            boosters,
            self.cap,
            most,
            self.settings.seed,
            examples,
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

    def _policy(self, model: Model, forwards: Forwards | None = None) -> LearnedPolicy:
        neural_cap = self.recording.neural_cap
        return LearnedPolicy("training", model, self.cap, neural_cap, forwards=forwards)

    def _fits(
        self,
        seen: Examples,
        others: Sequence[Members],
        tables: Sequence[Tables],
    ) -> list[Model]:
        """A model for every fold, fitted on the examples of the other folds."""
        at_once = self.settings.threads
        settings = self.settings.rough()
        if at_once > 1:
            # LightGBM has one number of threads for the whole process: fits that run at once must
            # agree on it, or one of them writes beyond its buffers.
            settings = replace(settings, threads=1)

        def fit(other: Members, table: Tables) -> Model:
            return self._fit(seen.of(other, self.maker.request), table, settings)[0]

        return in_threads(at_once)(fit, others, tables)

    def _fit(
        self, examples: Examples, tables: Tables, settings: Settings
    ) -> tuple[Model, dict[str, Boosters]]:
        examples = examples.thinned(settings.max_examples, settings.seed)
        before, curves = fit_before(self.recording, examples, settings)
        splice, spliced = fit_splice(self.recording, examples, settings)
        boosters = {"before": before, "splice": splice}
        if len(examples.evidence.at):
            boosters["evidence"] = fit_evidence(self.recording, examples, settings)
        curves["splice"] = spliced
        return model_of(boosters, examples.by_group, curves, tables, settings), boosters

    def _blank(self, tables: Tables) -> Model:
        """A model without knowledge."""
        networks = {group: constant_heads(group, 0.5) for group in ("before", "splice")}
        curves = {name: no_curves(1) for name in ("ngram", "neural", "splice")}
        return Model(networks, curves, tables)

    def _survey(self, model: Model, fold: Members) -> Examples:
        """What is known at every position before drafting."""
        return surveyed(self.recording, self._policy(model), fold, drafts=False)

    def _survey_drafts(self, model: Model, fold: Members) -> Examples:
        """What drafts and the matches behind them show at every position."""
        return surveyed(self.recording, self._policy(model), fold, drafts=True)

    def _tuned_forwards(self, models: list[Model], folds: list[Members], most: int) -> Forwards:
        """Forwards by load, by what comes of them in replays of each fold under the others' model.

        0 is tried last: it is taken where the drafter does not pay for its prompts and forwards.
        """
        if most == 0:
            return {}
        tuned = {}
        for load in self.loads:

            def speed_of(forwards: int, load: int = load) -> float:
                calls = [
                    (each, fold, load, forwards) for each, fold in zip(models, folds, strict=True)
                ]
                return sum(self._spread(self._log_throughput, *zip(*calls, strict=True)))

            best, best_speed = 1, speed_of(1)
            for forwards in range(2, most + 1):
                speed = speed_of(forwards)
                if speed <= best_speed:
                    break
                best, best_speed = forwards, speed
            tuned[load] = best if best_speed > speed_of(0) else 0
        return tuned

    def _log_throughput(self, model: Model, fold: Members, load: int, forwards: int) -> float:
        rng = np.random.default_rng([self.settings.seed, 4, load])
        order = draw_passes(pools_among(self.recording, fold), load, rng)
        policy = self._policy(model, {load: forwards})
        result = run_learned(
            self.recording, policy, order, load, self.cost, self.cap, engine=self.engine
        )
        return float(np.log(result.tokens_per_s))

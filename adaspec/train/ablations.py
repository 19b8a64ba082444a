"""What each part of the policy is worth: the same training and evaluation without it.

Parts are taken away at the edges, where nobody's code has to know of it: features are hidden from
the trees, the drafter shows less, knobs are held, rollouts differ. Each `Ablation` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import lightgbm
import numpy as np

from adaspec.cost.model import CostModel
from adaspec.evaluate.options import Progress
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.static import StaticRule
from adaspec.predict.model import FEATURE_NAMES, HEADS, Model
from adaspec.predict.tables import Tables
from adaspec.replay.tape import Tape
from adaspec.train.compilation import compile_forest
from adaspec.train.heads import Examples, Settings, constant
from adaspec.train.hidden_features import HISTORY_FEATURES, TABLE_FEATURES, hidden
from adaspec.train.no_batch_planning import NoBatchPlanning
from adaspec.train.no_listening import NoListeningAfterDrafting, NoListeningWhileDrafting
from adaspec.train.rollouts import rollout
from adaspec.train.training import Members, Trained, Trainer

STRANGER = np.iinfo(np.int32).max
"""A token that no text holds."""

NO_SPLICES = {"splice_weight": 0.0}


def as_recorded(tape: Tape) -> Tape:
    """The drafter shows what it showed."""
    return tape


def never_agreeing(tape: Tape) -> Tape:
    """Every drafted token shown is one that the n-gram candidate never holds.

    What is found behind it, and whether it is accepted, stay as they are.
    """
    return replace(tape, drafted=np.where(tape.drafted >= 0, STRANGER, tape.drafted))


def without_confidences(tape: Tape) -> Tape:
    """Drafted tokens are shown bare."""
    return replace(tape, confidences=tape.confidences[:0], shows_confidences=False)


@dataclass(frozen=True, slots=True)
class Ablation:
    """One part taken away, in training and in what is then judged."""

    name: str
    missing: str
    """In words, for a reader."""
    features: tuple[str, ...] = ()
    """Hidden from the trees, which then never split on them."""
    splices: bool = True
    """Otherwise the heads that judge a splice say 0, and its expected gain counts for nothing."""
    visits: bool = True
    """Otherwise trees learn on no policy's path, and so nothing of a request's earlier drafts."""
    played: type[LearnedPolicy] | None = None
    """Nothing is trained: the policy itself plays as this."""
    shown: Callable[[Tape], Tape] = as_recorded
    """What the drafter shows, to training and to the policy."""

    def applies(self, tape: Tape) -> bool:
        """Whether the tape has what would be taken away."""
        if self.shown is without_confidences:
            return tape.shows_confidences
        if self.shown is never_agreeing:
            return tape.shows_tokens
        if self.played in (NoListeningWhileDrafting, NoListeningAfterDrafting):
            return tape.shows_tokens
        return tape.neural_cap > 0 or (self.played is None and self.splices)


ABLATIONS = (
    Ablation("no splicing", "n-gram tokens behind neural ones", splices=False),
    Ablation("no token tables", "what the last tokens' tables say", features=TABLE_FEATURES),
    Ablation("no visits", "training in the states in which policies decide", visits=False),
    Ablation("no history", "what came of the request's earlier steps", features=HISTORY_FEATURES),
    Ablation(
        "no batch planning",
        "one decision for all: forwards run as soon as one request asks for them",
        played=NoBatchPlanning,
    ),
    Ablation(
        "no agreement",
        "whether drafted tokens are the n-gram candidate's",
        shown=never_agreeing,
    ),
    Ablation(
        "no listening while drafting",
        "stopping or going on by what was drafted",
        played=NoListeningWhileDrafting,
    ),
    Ablation(
        "no listening after drafting",
        "trimming and switching by what was drafted",
        played=NoListeningAfterDrafting,
    ),
    Ablation("no confidences", "how sure the drafter was", shown=without_confidences),
)


class AblatedTrainer(Trainer):
    """Trains as ever, but for what an ablation takes away."""

    def __init__(
        self,
        ablation: Ablation,
        tape: Tape,
        cost: CostModel,
        settings: Settings,
        cap: int,
        loads: Sequence[int],
        progress: Progress,
    ) -> None:
        self.ablation = ablation
        super().__init__(ablation.shown(tape), cost, settings, cap, loads, progress)

    def train(self, members: Members) -> Trained:
        """As ever; knobs that the ablation holds are held."""
        trained = super().train(members)
        return replace(trained, knobs={**trained.knobs, **self._held()})

    def _held(self) -> Mapping[str, float]:
        return {} if self.ablation.splices else NO_SPLICES

    def _policy(self, model: Model, knobs: Mapping[str, float] | None = None) -> LearnedPolicy:
        return super()._policy(model, {**(knobs or {}), **self._held()})

    def _fit(
        self, examples: Examples, tables: Tables, evidence: bool, *, final: bool = False
    ) -> tuple[Model, dict[str, dict[str, lightgbm.Booster]]]:
        seen = hidden(examples, self.ablation.features)
        model, boosters = super()._fit(seen, tables, evidence, final=final)
        if not self.ablation.splices:
            names = FEATURE_NAMES["splice"]
            mute = compile_forest({head: constant(0.0, names) for head in HEADS["splice"]}, names)
            model = replace(model, forests={**model.forests, "splice": mute})
        return model, boosters

    def _watch(self, policy: LearnedPolicy, fold: Members) -> Examples:
        if self.ablation.visits:
            return super()._watch(policy, fold)
        # Without speculation a request is at every position once.
        rng = np.random.default_rng([self.settings.seed, 1])
        rule = StaticRule()
        return rollout(self.tape, self.film, policy, fold, 1, self.cost, rng, rule)

    def _listen(self, policy: LearnedPolicy, fold: Members) -> Examples:
        return self._unvisited(super()._listen(policy, fold))

    def _visit(self, policy: LearnedPolicy, fold: Members) -> Examples:
        return self._unvisited(super()._visit(policy, fold))

    def _unvisited(self, seen: Examples) -> Examples:
        """Without visits, what a policy saw still says what splices and evidence mean."""
        if self.ablation.visits:
            return seen
        return replace(seen, at=seen.at[:0], x=seen.x[:0], weight=seen.weight[:0])


def ablated(trainer: Trainer, ablation: Ablation) -> AblatedTrainer:
    """A trainer like this one, without a part."""
    return AblatedTrainer(
        ablation,
        trainer.tape,
        trainer.cost,
        trainer.settings,
        trainer.cap,
        trainer.loads,
        trainer.progress,
    )

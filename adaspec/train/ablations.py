"""Ablations: the same training and evaluation without one part, to measure what that part gains.

Parts are taken away without changes to their code: features are hidden from the trees, the drafter
shows less, knobs are fixed, or rollouts differ. Each `Ablation` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.static import StaticRule
from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.features import BEFORE, TABLES_AT
from adaspec.predict.model import FEATURE_NAMES, HEADS, Model
from adaspec.predict.splicing import COPY_AT, SPLICE
from adaspec.predict.tables import Tables
from adaspec.replay.recording import Recording
from adaspec.train.ablated_policies import (
    NoBatchPlanning,
    NoListeningAfterDrafting,
    NoListeningWhileDrafting,
)
from adaspec.train.compilation import compile_forest
from adaspec.train.examples import Examples, Sample, rollout
from adaspec.train.heads import Boosters, Settings, constant, fit_before, model_of
from adaspec.train.training import Members, Trained, Trainer

FACTS = {
    *("match_length", "match_agree", "match_seen", "match_log_distance", "match_available"),
    *("match_in_prompt", "position", "log_context_tokens", "prompt_tokens"),
    *("behind_length", "behind_agree", "behind_seen", "behind_available", "behind_tokens"),
    "neural_survival",
}
"""Features that use neither the request's earlier steps nor the token tables."""

# A surprise is the difference between an outcome and what the tables predicted.
TABLE_FEATURES = (*BEFORE[TABLES_AT:], "neural_surprise", "ngram_surprise", *SPLICE[COPY_AT:])
HISTORY_FEATURES = tuple(
    dict.fromkeys(n for n in (*BEFORE[:TABLES_AT], *SPLICE[:COPY_AT]) if n not in FACTS)
)

UNKNOWN_TOKEN = np.iinfo(np.int32).max
"""A token that occurs in no text."""


def never_agreeing(recording: Recording) -> Recording:
    """The recording with every drafted token shown as one that no n-gram candidate has.

    The matches behind drafted tokens, and their acceptance, stay as they are.
    """
    return replace(
        recording, drafted=np.where(recording.drafted >= 0, UNKNOWN_TOKEN, recording.drafted)
    )


def without_confidences(recording: Recording) -> Recording:
    """The recording without the drafter's confidences."""
    return replace(recording, confidences=recording.confidences[:0], shows_confidences=False)


@dataclass(frozen=True, slots=True)
class Ablation:
    """One part that is taken away, in training and in the policy that is then judged."""

    name: str
    missing: str
    """The missing part in words, for the report."""
    features: tuple[str, ...] = ()
    """Features hidden from the trees, which then never split on them."""
    splices: bool = True
    """False makes the splice heads predict 0 and gives a splice's expected gain no weight."""
    visits: bool = True
    """False trains without policies' rollouts, and so without any request's earlier drafts."""
    played: type[LearnedPolicy] | None = None
    """Class under which the trained policy is replayed, without training again."""
    shown: Callable[[Recording], Recording] = lambda recording: recording
    """Function that changes what the drafter shows, to training and to the policy."""

    def applies(self, recording: Recording) -> bool:
        """True if the recording has the part that the ablation takes away."""
        if self.shown is without_confidences:
            return recording.shows_confidences
        if self.shown is never_agreeing:
            return recording.shows_tokens
        if self.played in (NoListeningWhileDrafting, NoListeningAfterDrafting):
            return recording.shows_tokens
        return recording.neural_cap > 0 or (self.played is None and self.splices)


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
    """A trainer that leaves out what an ablation takes away."""

    def __init__(self, ablation: Ablation, trainer: Trainer) -> None:
        self.ablation = ablation
        shown = ablation.shown(trainer.recording)
        super().__init__(
            shown, trainer.cost, trainer.settings, trainer.cap, trainer.loads, trainer.progress
        )

    def train(self, members: Members) -> Trained:
        """Train on the marked requests, with the knobs that the ablation fixes."""
        trained = super().train(members)
        return replace(trained, knobs={**trained.knobs, **self._fixed_knobs()})

    def _fixed_knobs(self) -> Mapping[str, float]:
        return {} if self.ablation.splices else {"splice_weight": 0.0}

    def _policy(self, model: Model, knobs: Mapping[str, float] | None = None) -> LearnedPolicy:
        return super()._policy(model, {**(knobs or {}), **self._fixed_knobs()})

    def _fit(
        self, examples: Examples, tables: Tables, evidence: bool, settings: Settings
    ) -> tuple[Model, dict[str, Boosters]]:
        examples = hidden(examples, self.ablation.features)
        model, boosters = super()._fit(examples, tables, evidence, settings)
        if not self.ablation.splices:
            names = FEATURE_NAMES["splice"]
            zeros = compile_forest({head: constant(0.0, names) for head in HEADS["splice"]}, names)
            model = replace(model, forests={**model.forests, "splice": zeros})
        return model, boosters

    def _roll_rules(self, policy: LearnedPolicy, fold: Members) -> Examples:
        if self.ablation.visits:
            return super()._roll_rules(policy, fold)
        # Without speculation every request visits each of its positions once.
        rng = np.random.default_rng([self.settings.seed, 1])
        rule = StaticRule()
        return rollout(self.recording, policy, fold, 1, self.cost, rng, rule)

    def _roll_full_drafts(self, policy: LearnedPolicy, fold: Members) -> Examples:
        return self._without_visits(super()._roll_full_drafts(policy, fold))

    def _roll_policy(self, policy: LearnedPolicy, fold: Members) -> Examples:
        return self._without_visits(super()._roll_policy(policy, fold))

    def _without_visits(self, examples: Examples) -> Examples:
        """Drop the decisions; splices and evidence stay, as their meaning must still be learned."""
        if self.ablation.visits:
            return examples
        return replace(examples, decisions=examples.decisions.rows(slice(0, 0)))


def hidden(examples: Examples, names: Collection[str]) -> Examples:
    """The examples with some features set to NaN: trees never split on those."""
    return Examples(
        *(
            _without_columns(sample, [i for i, name in enumerate(features) if name in names])
            for sample, features in zip(examples.samples, (BEFORE, SPLICE, EVIDENCE), strict=True)
        )
    )


def without_tables(recording: Recording, trained: Trained, settings: Settings) -> Model:
    """A model of the same examples without token tables, to compare calibrations with."""
    boosters, curves = fit_before(recording, hidden(trained.examples, TABLE_FEATURES), settings)
    groups = {"before": boosters, "splice": trained.boosters["splice"]}
    model = trained.model
    curves["splice"] = model.curves["splice"]
    return model_of(groups, curves, model.tables, model.factors)


def _without_columns(sample: Sample, columns: list[int]) -> Sample:
    if not columns:
        return sample
    x = sample.x.copy()
    x[:, columns] = np.nan
    return replace(sample, x=x)

"""Ablations: the same training and evaluation without one part, to measure what that part gains.

Parts are taken away without changes to their code: features are hidden from the trees, the drafter
shows less, knobs are fixed, or rollouts differ. Each `Ablation` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import SYNC
from adaspec.cost.model import forward_s, paid_forwards
from adaspec.errors import TrainingError
from adaspec.jit import compiled
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import planner_at
from adaspec.policy.planner.forwards import add_foreseen_value, add_row_value, weigh_ngram
from adaspec.policy.planner.stages import state_of
from adaspec.policy.protocol import Batch, Drafts, Proposal
from adaspec.policy.static import StaticRule
from adaspec.predict.evidence import EVIDENCE
from adaspec.predict.features import BEFORE, TABLES_AT
from adaspec.predict.model import Model
from adaspec.predict.splicing import COPY_AT, SPLICE
from adaspec.predict.tables import Tables
from adaspec.replay.recording import Recording
from adaspec.train.examples import Examples, rollout
from adaspec.train.heads import Boosters, Settings, fit_before, with_constant
from adaspec.train.teacher import distilled
from adaspec.train.training import Forwards, Members, Trained, Trainer

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


class NoListeningWhileDrafting(LearnedPolicy):
    """Decides on all forwards before the first one; reads the drafted tokens only afterwards."""

    def plan(self, batch: Batch) -> int:
        """Plan the forwards that would pay if nothing were learned from their tokens."""
        super().plan(batch)
        forwards: int = stages.forwards_unread(self.address)
        return forwards

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """Go on: all planned forwards are run."""
        return True


class NoListeningAfterDrafting(LearnedPolicy):
    """Stops forwards by what was drafted, but chooses drafts by the predictions before drafting."""

    def plan(self, batch: Batch) -> int:
        """Plan as the full policy does, and keep its predictions for both drafts."""
        planned = super().plan(batch)
        memory = self.planner.memory
        self._predicted = memory.neural.copy(), memory.ngram.copy()
        return planned

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """Choose as if no drafted token had been seen; only the matches behind them are used."""
        if self.reads_drafts:
            self._observe(batch, drafts)
            memory = self.planner.memory
            memory.neural[:], memory.ngram[:] = self._predicted
        return super().settle(batch, drafts)


class NoBatchPlanning(LearnedPolicy):
    """Each request asks for the forwards that it gains by; the batch runs the highest number.

    A request weighs its own gain against an equal share of each forward, as if all others paid
    theirs. Predictions, throughput, lengths and splices are those of the full policy.
    """

    def plan(self, batch: Batch) -> int:
        """Plan as many forwards as the request that asks for most."""
        super().plan(batch)
        values = self._values(batch, 0)
        if not len(values):
            return 0
        # Ties go to the most forwards, as in the full policy: they bring evidence and cost nothing.
        most = values.shape[1] - 1 - values[:, ::-1].argmax(axis=1).min()
        return self._neural_cap if self.reads_drafts and most > 0 else int(most)

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        """Go on as long as any request gains by more forwards."""
        if not self.reads_drafts:
            return True
        super().proceed(batch, drafts)  # reads the drafted tokens
        values = self._values(batch, drafts.count)
        now, later = values[:, drafts.count, None], values[:, drafts.count + 1 :]
        return bool((later > now).any())

    def _values(self, batch: Batch, count: int) -> NDArray[np.float64]:
        """Values of `count` forwards and more, for each request that has the drafter."""
        holds = self.planner.rows.holds_neural[: len(batch)]
        values: NDArray[np.float64] = _net_values(self.address, self.reads_drafts, count)[holds]
        return values


@compiled
def _net_values(address: int, reads_drafts: bool, count: int) -> NDArray[np.float64]:
    """The value of each row's best plan less its share of the forwards, as (rows, forwards)."""
    state = state_of(planner_at(address), reads_drafts)
    rows, most = state.rows.slots.shape[0], state.neural_cap
    weigh_ngram(state.memory, state.rows, state.price, state.cap)
    values = np.zeros((rows, most + 1))
    share = state.rate * forward_s(state.costs, rows, state.context) / rows
    for row in range(rows):
        if reads_drafts:
            add_foreseen_value(state, row, count, most, state.price, values[row])
        else:
            add_row_value(state, row, most, state.price, values[row])
        values[row] = np.cumsum(values[row])
        for forwards in range(most + 1):
            values[row, forwards] -= share * paid_forwards(state.costs, forwards, True)
    return values


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

    needs: str = ""
    """The recording's attribute that says whether it has the part; without one, all have it."""

    def applies(self, recording: Recording) -> bool:
        """True if the recording has the part that the ablation takes away."""
        return not self.needs or bool(getattr(recording, self.needs))


ABLATIONS = (
    Ablation("no splicing", "n-gram tokens behind neural ones", splices=False, needs="neural_cap"),
    Ablation("no token tables", "what the last tokens' tables say", features=TABLE_FEATURES),
    Ablation("no visits", "training in the states in which policies decide", visits=False),
    Ablation("no history", "what came of the request's earlier steps", features=HISTORY_FEATURES),
    Ablation(
        "no batch planning",
        "one decision for all: forwards run as soon as one request asks for them",
        played=NoBatchPlanning,
        needs="neural_cap",
    ),
    Ablation(
        "no agreement",
        "whether drafted tokens are the n-gram candidate's",
        shown=never_agreeing,
        needs="shows_tokens",
    ),
    Ablation(
        "no listening while drafting",
        "stopping or going on by what was drafted",
        played=NoListeningWhileDrafting,
        needs="shows_tokens",
    ),
    Ablation(
        "no listening after drafting",
        "trimming and switching by what was drafted",
        played=NoListeningAfterDrafting,
        needs="shows_tokens",
    ),
    Ablation(
        "no confidences",
        "how sure the drafter was",
        shown=without_confidences,
        needs="shows_confidences",
    ),
)


def check_ablations(memory: bool, engine: str) -> None:
    """Refuse what ablations do not know."""
    if memory:
        raise TrainingError("--ablations know no earlier answers: leave --memory out")
    if engine != SYNC:
        raise TrainingError("--ablations are those of a sync engine: leave --engine out")


class AblatedTrainer(Trainer):
    """A trainer that leaves out what an ablation takes away."""

    def __init__(self, ablation: Ablation, trainer: Trainer) -> None:
        self.ablation = ablation
        shown = ablation.shown(trainer.recording)
        super().__init__(
            shown,
            trainer.cost,
            trainer.settings,
            trainer.cap,
            trainer.loads,
            trainer.progress,
            texts=trainer.texts,
        )

    def train(self, members: Members) -> Trained:
        """Train on the marked requests, with the knobs that the ablation fixes."""
        trained = super().train(members)
        return replace(
            trained,
            knobs=trained.knobs | self._fixed_knobs,
            late_knobs=trained.late_knobs | self._fixed_knobs,
        )

    @property
    def _fixed_knobs(self) -> dict[str, float]:
        return {} if self.ablation.splices else {"splice_weight": 0.0}

    def _policy(
        self,
        model: Model,
        knobs: Mapping[str, float] | None = None,
        forwards: Forwards | None = None,
    ) -> LearnedPolicy:
        return super()._policy(model, {**(knobs or {}), **self._fixed_knobs}, forwards)

    def _fit(
        self, examples: Examples, tables: Tables, evidence: bool, settings: Settings
    ) -> tuple[Model, dict[str, Boosters]]:
        examples = hidden(examples, self.ablation.features)
        model, boosters = super()._fit(examples, tables, evidence, settings)
        if not self.ablation.splices:
            model = with_constant(model, "splice", 0.0)
        return model, boosters

    def _roll_rules(self, policy: LearnedPolicy, fold: Members) -> Examples:
        if self.ablation.visits:
            return super()._roll_rules(policy, fold)
        # Without speculation every request visits each of its positions once.
        rng = np.random.default_rng([self.settings.seed, 1])
        return rollout(self.recording, policy, fold, 1, self.cost, rng, StaticRule())

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
    if not names:
        return examples
    return Examples(
        *(
            replace(
                sample, x=np.where(np.isin(features, list(names)), np.float32(np.nan), sample.x)
            )
            for sample, features in zip(examples.samples, (BEFORE, SPLICE, EVIDENCE), strict=True)
        )
    )


def without_tables(recording: Recording, trained: Trained, settings: Settings) -> Model:
    """A model of the same examples without token tables, to compare calibrations with."""
    examples, model = hidden(trained.examples, TABLE_FEATURES), trained.model
    boosters, curves = fit_before(recording, examples, settings)
    before = distilled(
        "before", boosters, examples.decisions, settings.distilling, settings.threads
    )
    curves["splice"] = model.curves["splice"]
    return replace(model, networks={**model.networks, "before": before}, curves=curves)

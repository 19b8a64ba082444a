"""What each part of a learned policy is worth: trained and judged again without it.

python eval/ablations.py eval/traces/reference-pair -o work/ablations
python eval/ablations.py eval/traces/reference-pair --crossfit 2 -o work/ablations-crossed

Parts are taken away without changes to their code: features are hidden from the trees, the drafter
shows less, knobs are fixed, or rollouts differ. Each `Ablation` says how. The table has lifts over
`static:best` on all workloads mixed, in the orders of an `adaspec eval`, of the policy, of policies
without one part each, and of the best settings in hindsight of two simpler families. Judged is on
the requests kept back from training, or, with --crossfit, on all requests, each decided by a model
that never saw it; then nothing can be judged that plays one policy otherwise.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.cost.model import CostModel, forward_s, paid_forwards
from adaspec.errors import AdaspecError
from adaspec.evaluate.grids import GRIDS
from adaspec.evaluate.hindsight import STATIC_BEST, budgets_of, search
from adaspec.evaluate.options import ALL, CONCURRENCY, Options, silent
from adaspec.jit import compiled
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner import stages
from adaspec.policy.planner.address import planner_at
from adaspec.policy.planner.forwards import add_foreseen_value, add_row_value, weigh_ngram
from adaspec.policy.planner.memory import KNOBS
from adaspec.policy.planner.stages import state_of
from adaspec.policy.protocol import Batch, Drafts, Proposal
from adaspec.policy.static import StaticRule
from adaspec.predict.features import BEFORE, TABLES_AT
from adaspec.predict.model import Model
from adaspec.predict.splicing import COPY_AT, SPLICE
from adaspec.predict.tables import Tables
from adaspec.replay.crossfit import CrossfitPolicy
from adaspec.replay.loop import run_policy
from adaspec.replay.orders import draw_orders
from adaspec.replay.player import Contender, Player
from adaspec.replay.recording import Recording, build_recording
from adaspec.train.bare import TABLE_FEATURES, hidden
from adaspec.train.corpus import read_everything
from adaspec.train.crossfit import cross_fit, deal
from adaspec.train.examples import Examples, rollout
from adaspec.train.heads import Boosters, Settings, with_constant
from adaspec.train.metrics import rounded
from adaspec.train.recipe import texts_of, train_policy
from adaspec.train.training import Forwards, Members, Trained, Trainer

Row = dict[str, Any]
Order = NDArray[np.int32]
Orders = Mapping[int, list[Order]]
"""The orders in which requests enter, by concurrency."""
Play = Callable[[Order, int], float]
"""Tokens per second of one run in an order at a concurrency."""

FACTS = {
    *("match_length", "match_agree", "match_seen", "match_log_distance", "match_available"),
    *("match_in_prompt", "position", "log_context_tokens", "prompt_tokens"),
    *("behind_length", "behind_agree", "behind_seen", "behind_available", "behind_tokens"),
    "neural_survival",
}
"""Features that use neither the request's earlier steps nor the token tables."""

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
            values[row, forwards] -= share * paid_forwards(forwards, True)
    return values


@dataclass(frozen=True, slots=True)
class Ablation:
    """One part that is taken away, in training and in the policy that is then judged."""

    name: str
    missing: str
    """The missing part in words."""
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
        if self.ablation.features:
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


@dataclass(frozen=True, slots=True)
class Judged:
    """What is judged by, and how policies without a part are trained for it."""

    recording: Recording
    report: Mapping[str, Any]
    policy: LearnedPolicy | None
    """The policy that others play otherwise; None if each request has its own."""
    name: str
    """Of the policy's rows in the report."""
    retrained: Callable[[Ablation], Contender]


def kept_back(traces: Sequence[Path], cost: CostModel, options: Options) -> Judged:
    """One policy, judged on the requests kept back from its training."""
    with tempfile.TemporaryDirectory() as folder:
        product = train_policy(traces, Path(folder) / "policy", cost, options)
    corpus, report, policy = product.corpus, product.report, product.policy
    assert corpus is not None and report is not None
    trainer = Trainer(
        build_recording(corpus.trained.requests, corpus.trained.neural_cap),
        cost,
        Settings(seed=options.seed, threads=options.workers),
        cap=options.cap,
        loads=options.concurrency,
        progress=silent,
        texts=texts_of(corpus.trained),
    )
    recording = build_recording(corpus.held_out.requests, corpus.held_out.neural_cap)

    def retrained(ablation: Ablation) -> Contender:
        return AblatedTrainer(ablation, trainer).train_all().policy(ablation.name)

    return Judged(recording, report, policy, policy.name, retrained)


def crossed(traces: Sequence[Path], folds: int, cost: CostModel, options: Options) -> Judged:
    """Every request judged by a model that never saw it."""
    report = cross_fit(traces, folds, cost, options)
    selection, _ = read_everything(traces, (), False, ())
    member = deal(selection.requests, folds)
    workers = min(options.workers, folds)
    trainer = Trainer(
        build_recording(selection.requests, selection.neural_cap),
        cost,
        Settings(seed=options.seed, threads=max(1, options.workers // workers)),
        cap=options.cap,
        loads=options.concurrency,
        progress=silent,
        texts=texts_of(selection),
    )

    def retrained(ablation: Ablation) -> Contender:
        fitted = Parallel(n_jobs=workers, max_nbytes=None)(
            delayed(_fold)(AblatedTrainer(ablation, trainer), member != fold)
            for fold in range(folds)
        )
        return CrossfitPolicy(ablation.name, tuple(fitted), member)

    return Judged(trainer.recording, report, None, f"crossfit:{folds}", retrained)


def _fold(trainer: Trainer, members: Members) -> LearnedPolicy:
    return trainer.train(members).policy("fold")


def ablation_table(judged: Judged, cost: CostModel, options: Options) -> dict[str, Any]:
    """Lift over the report's `static:best` on all workloads mixed, in the report's own orders."""
    recording = judged.recording.with_prefill(cost)
    orders = {
        load: draw_orders(recording, None, load, options.seed, options.orders)
        for load in options.concurrency
    }
    best = _speeds(judged.report, STATIC_BEST)
    player = Player(recording, cost, options.cap)

    def row(name: str, without: str, speeds: Mapping[int, float]) -> Row:
        lifts = {
            str(load): rounded(speeds[load] / best[load] - 1) if load in speeds else None
            for load in options.concurrency
        }
        return {"name": name, "without": without, "lift": lifts}

    rows = [row("the policy", "nothing", _speeds(judged.report, judged.name))]
    for ablation in ABLATIONS:
        print(f"ablations: {ablation.name}", file=sys.stderr)
        play: Play | None = None
        if not ablation.applies(recording):
            pass
        elif ablation.played is None:
            other = Player(ablation.shown(recording), cost, options.cap)
            play = partial(_tokens_per_s, other, judged.retrained(ablation))
        elif judged.policy is not None:
            play = _played_as(ablation.played, recording, judged.policy, cost, options.cap)
        rows.append(
            row(ablation.name, ablation.missing, {} if play is None else _means(play, orders))
        )
    if recording.neural_cap:
        learning = "learning: the best in hindsight at each concurrency"
        rows.append(row("budget:K", learning, _best_budget(player, orders)))
        rows.append(row("hybrid-splice", learning, _best_splice(player, orders, options)))
    return {"concurrency": list(options.concurrency), "rows": rows}


def _speeds(report: Mapping[str, Any], name: str) -> dict[int, float]:
    return {
        row["concurrency"]: row["tokens_per_s"]
        for row in report["rows"]
        if row["workload"] == ALL and row["policy"] == name
    }


def _means(play: Play, orders: Orders) -> dict[int, float]:
    return {
        load: float(np.mean([play(order, load) for order in drawn]))
        for load, drawn in orders.items()
    }


def _tokens_per_s(player: Player, contender: Contender, order: Order, concurrency: int) -> float:
    return player.play(contender, order, concurrency).tokens_per_s


def _played_as(
    kind: type[LearnedPolicy],
    recording: Recording,
    policy: LearnedPolicy,
    cost: CostModel,
    cap: int,
) -> Play:
    """Plays a variant of the policy by the generic loop, as it is not compiled."""
    knobs = dict(zip(KNOBS, policy.knobs.tolist(), strict=True))
    other = kind(policy.name, policy.model, knobs, policy.cap, policy.neural_cap)
    return lambda order, at: run_policy(recording, other, order, at, cost, cap).tokens_per_s


def _best_budget(player: Player, orders: Orders) -> dict[int, float]:
    speeds = [_means(partial(_tokens_per_s, player, each), orders) for each in budgets_of(player)]
    return {at: max(each[at] for each in speeds) for at in orders}


def _best_splice(player: Player, orders: Orders, options: Options) -> dict[int, float]:
    cells = {(None, at): drawn for at, drawn in orders.items()}
    grids = [grid for grid in GRIDS if grid.head == "hybrid-splice"]
    best = search(player, cells, options, silent, grids)[1].max(axis=0)
    return dict(zip(orders, best.tolist(), strict=True))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--crossfit", type=int, metavar="N", help="judge all requests, in N folds")
    parser.add_argument("--cost", default=DEFAULT, help="a builtin cost model or a cost file")
    parser.add_argument("--concurrency", default=",".join(map(str, CONCURRENCY)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=0, help="workers; 0: one per core")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder of the report")
    arguments = parser.parse_args()
    loads = tuple(map(int, arguments.concurrency.split(",")))
    try:
        cost = load_cost(arguments.cost)
        options = Options(concurrency=loads, seed=arguments.seed, jobs=arguments.jobs, resamples=0)
        if arguments.crossfit is None:
            judged = kept_back(arguments.traces, cost, options)
        else:
            judged = crossed(arguments.traces, arguments.crossfit, cost, options)
        table = ablation_table(judged, cost, options)
    except AdaspecError as error:
        print(f"ablations: {error}", file=sys.stderr)
        return 2
    command = shlex.join(["python", "eval/ablations.py", *sys.argv[1:]])
    document = {"command": command, "cost": cost.name, "ablations": table}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "report.json").write_text(
        json.dumps(document, indent=1) + "\n", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

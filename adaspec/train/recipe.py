"""From traces to a policy's folder: split, train, tune the opponent, judge, write."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaspec.cost.model import CostModel
from adaspec.errors import TrainingError
from adaspec.evaluate.evaluation import evaluate
from adaspec.evaluate.hindsight import STATIC_BEST, grid_of, grid_speeds, static_winners
from adaspec.evaluate.options import Cell, Options, Progress, silent
from adaspec.policy.artifact import check_destination, write_artifact
from adaspec.policy.desk import KNOBS
from adaspec.policy.learned import LearnedPolicy, policy_of
from adaspec.policy.manifest import PolicyManifest
from adaspec.predict.model import feature_fingerprint
from adaspec.replay.contender import Player
from adaspec.replay.orders import draw_orders
from adaspec.replay.tape import Tape, build_tape
from adaspec.train.card import card_of
from adaspec.train.cluster import Cluster
from adaspec.train.corpus import Corpus, content_hashes, gather
from adaspec.train.heads import Settings
from adaspec.train.model_text import model_text
from adaspec.train.training import Trained, Trainer, in_turn

LARGEST_SEED = 2**31 - 1
"""LightGBM's seeds are 32 bits."""
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Product:
    """A policy that was written, and how it did on what it never saw."""

    folder: Path
    policy: LearnedPolicy
    manifest: PolicyManifest
    corpus: Corpus
    report: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """The result in JSON's own types."""
        return {
            "schema": 1,
            "policy": str(self.folder),
            "synthetic": self.corpus.trained.synthetic,
            "sources": list(self.manifest.sources),
            "evidence": list(self.manifest.evidence),
            "requests": {
                "trained": self.corpus.trained.counts,
                "held_out": self.corpus.held_out.counts,
                "left_out": self.corpus.trained.left_out,
            },
            "static_tuned": {str(at): spec for at, spec in self.manifest.static_tuned.items()},
            "knobs": dict(self.manifest.knobs),
            "metrics": dict(self.manifest.metrics),
        }


def train_policy(
    traces: Sequence[Path],
    folder: Path,
    cost: CostModel,
    options: Options,
    exclude_workloads: Sequence[str] = (),
    allow_mixed: bool = False,
    force: bool = False,
    progress: Progress = silent,
    cluster: Cluster | None = None,
) -> Product:
    """Train on 70% of the requests, judge that very model on the rest, write the folder or nothing.

    `options` are those of the evaluation; its concurrencies are also the loads trained for. A
    `cluster` takes rollouts and large fits.
    """
    check_destination(folder, force)
    progress("reading", 0, 1)
    corpus = gather(traces, exclude_workloads, allow_mixed)
    tape = build_tape(corpus.trained.requests, corpus.trained.neural_cap)
    progress("reading", 1, 1)
    _check_learnable(tape)
    settings = Settings(seed=options.seed, threads=options.workers, fitter=cluster)
    trainer = Trainer(
        tape,
        cost,
        settings,
        cap=options.cap,
        loads=options.concurrency,
        progress=progress,
        spread=in_turn if cluster is None else cluster.spread,
    )
    trained = trainer.train_all()
    forest, tables = trained.model.forest_arrays(), trained.model.table_arrays()
    manifest = _manifest(corpus, tape, trained, cost, _tuned(tape, cost, options, progress))
    # What is judged is what a server will load: the arrays, not the objects they came from.
    policy = policy_of(folder.resolve().name, manifest, forest, tables)
    report = evaluate(corpus.held_out, [policy], cost, options, progress=progress)
    manifest = dataclasses.replace(manifest, metrics=_metrics(report, corpus))
    text = model_text(trained.boosters)
    card = card_of(manifest, corpus, options, {k: len(v) for k, v in tables.items()})
    write_artifact(folder, manifest, forest, tables, text, card, force)
    return Product(folder, policy, manifest, corpus, report)


def _check_learnable(tape: Tape) -> None:
    columns = tape.columns
    if not ((columns.run >= 1).any() or (columns.neural >= 1).any()):
        raise TrainingError(
            f"nothing to learn from: no draft was ever right at any of {len(columns.run):,} "
            "positions: speculation does not pay on this traffic, serve it without"
        )


def _tuned(tape: Tape, cost: CostModel, options: Options, progress: Progress) -> dict[int, str]:
    """What the grids choose at each concurrency on the training requests."""

    def tuning(stage: str, done: float, total: float) -> None:
        progress(f"{stage}, training requests", done, total)

    player = Player(tape, cost, options.cap)
    wanted: list[Cell] = [(None, concurrency) for concurrency in options.concurrency]
    orders = {
        cell: draw_orders(tape, cell[0], cell[1], options.seed, options.orders) for cell in wanted
    }
    grid = grid_of(player)
    winners = static_winners(grid, grid_speeds(player, grid, orders, options, tuning), wanted)
    return {cell[1]: winners[cell][STATIC_BEST].spec for cell in wanted}


def _manifest(
    corpus: Corpus, tape: Tape, trained: Trained, cost: CostModel, tuned: Mapping[int, str]
) -> PolicyManifest:
    neural = tape.neural_cap > 0
    evidence = []
    if trained.model.reads_evidence:
        evidence = ["tokens"] + ["confidences"] * tape.shows_confidences
    return PolicyManifest(
        fingerprint=feature_fingerprint(),
        sources=("ngram", "neural", "splice") if neural else ("ngram",),
        cap=trained.cap,
        neural_cap=trained.neural_cap if neural else None,
        cost=cost.name,
        static_tuned=tuned,
        training_requests=content_hashes(corpus.trained.requests),
        seed=trained.seed,
        evidence=tuple(evidence),
        target=corpus.trained.target,
        tokenizer=corpus.tokenizer,
        drafter=corpus.trained.drafter,
        knobs=KNOBS | trained.knobs,
    )


def _metrics(report: Mapping[str, Any], corpus: Corpus) -> dict[str, Any]:
    """Of the held-out evaluation, by workload and concurrency; nothing that names the folder."""
    cells: dict[str, dict[str, Any]] = {}
    kept = (
        "lift_over_static_best",
        "lift_ci95",
        "lift_over_static_tuned",
        "lift_over_static_tuned_ci95",
        "lift_over_static_one",
        "lift_over_adaptive_best",
        "lift_over_fixed_best",
        "gap_closed",
        "worst_workload_lift",
    )
    speeds = {
        (row["workload"], row["concurrency"], row["policy"]): row["tokens_per_s"]
        for row in report["rows"]
    }
    for entry in report["headline"]:
        at = (entry["workload"], entry["concurrency"])
        none = speeds[(*at, "none")]
        cells.setdefault(at[0], {})[str(at[1])] = {
            "speedup": _rounded(speeds[(*at, entry["policy"])] / none),
            "speedup_static_best": _rounded(speeds[(*at, STATIC_BEST)] / none),
            **{name: _rounded(entry[name]) for name in kept},
        }
    return {"held_out": cells, "held_out_requests": corpus.held_out.counts}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), _DIGITS)

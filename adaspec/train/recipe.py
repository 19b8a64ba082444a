"""From traces to a policy's folder: split, train, tune the static rule, judge, write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.engine import ENGINES
from adaspec.cost.load import cost_document
from adaspec.cost.model import CostModel
from adaspec.errors import TrainingError
from adaspec.evaluate.calibration import Judged, calibration_of
from adaspec.evaluate.evaluation import evaluate
from adaspec.evaluate.hindsight import STATIC_BEST, search, static_winners
from adaspec.evaluate.options import Cell, Options, Progress, silent
from adaspec.evaluate.selection import Selection
from adaspec.policy.artifact import check_destination, write_artifact
from adaspec.policy.learned import LearnedPolicy, policy_of
from adaspec.policy.manifest import PolicyManifest
from adaspec.predict.model import feature_fingerprint
from adaspec.replay.history import History
from adaspec.replay.orders import draw_order, pools_among
from adaspec.replay.player import Player
from adaspec.replay.recording import Recording, build_recording
from adaspec.trace.schema import Request
from adaspec.train.bare import without_tables
from adaspec.train.card import card_of
from adaspec.train.cluster import Cluster
from adaspec.train.corpus import Corpus, content_hashes, contents_of, gather
from adaspec.train.heads import Settings, model_text
from adaspec.train.metrics import cells_of, crossfit_metrics, read_crossfit_report
from adaspec.train.training import Trainer

FRESH = 1 / 3
"""The share of training requests that know no earlier answers: a server also starts with none."""


@dataclass(frozen=True, slots=True)
class Product:
    """A policy that was written, with its results on the requests kept back."""

    folder: Path
    policy: LearnedPolicy
    manifest: PolicyManifest
    requests: dict[str, Any]
    """Requests per workload, under `trained`, `held_out` and `left_out`."""
    corpus: Corpus | None = None
    """Requests that it was trained and judged on; None for logged traces."""
    report: dict[str, Any] | None = None
    """Evaluation on the requests kept back; None for logged traces, which cannot be replayed."""

    def document(self) -> dict[str, Any]:
        """The result in JSON's own types."""
        synthetic = {} if self.corpus is None else {"synthetic": self.corpus.trained.synthetic}
        return {
            "schema": 1,
            "policy": str(self.folder),
            **synthetic,
            "sources": list(self.manifest.sources),
            "evidence": list(self.manifest.evidence),
            "requests": self.requests,
            "static_tuned": {
                str(concurrency): spec for concurrency, spec in self.manifest.static_tuned.items()
            },
            "forwards": {str(load): count for load, count in self.manifest.forwards.items()},
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
    crossfit_report: Path | None = None,
    memory: bool = False,
    exclude_requests: tuple[str, ...] = (),
) -> Product:
    """Train on 70% of the requests, judge the model on the rest, and write the folder or nothing.

    `options` are those of the evaluation; their concurrencies are also the loads trained for. A
    `cluster` takes rollouts. The card shows `crossfit_report`, a folder, before the results on
    held-out requests. With `memory`, the policy copies from the answers of earlier
    requests as well, and is judged where it knows those that it was trained on.
    """
    check_destination(folder, force)
    metrics: dict[str, Any] = {}
    earlier = None if crossfit_report is None else read_crossfit_report(crossfit_report)
    progress("reading", 0, 1)
    corpus = gather(traces, exclude_workloads, allow_mixed, exclude_requests)
    if earlier is not None and crossfit_report is not None:
        contents = contents_of(corpus.trained, corpus.held_out)
        metrics["cross_fitted"] = crossfit_metrics(
            earlier, crossfit_report, cost, options, contents, memory
        )
    plain = build_recording(corpus.trained.requests, corpus.trained.neural_cap)
    recording = plain
    if memory:
        recording = remembering(corpus.trained, options.seed, fresh=FRESH)
    progress("reading", 1, 1)
    check_learnable(recording)
    settings = Settings(seed=options.seed, threads=options.workers)
    trainer = Trainer(
        recording,
        cost,
        settings,
        cap=options.cap,
        loads=options.concurrency,
        progress=progress,
        spread=None if cluster is None else cluster.spread,
        engine=options.engine,
        texts=texts_of(corpus.trained),
    )
    trained = trainer.train_all()
    networks, tables = trained.model.network_arrays(), trained.model.table_arrays()
    everyone = np.ones(len(recording), np.bool_)
    tuned, async_tuned = (
        tuned_rules(plain, [everyone], cost, options, progress, engine)[0] for engine in ENGINES
    )
    evidence = []
    if trained.model.reads_evidence:
        evidence = ["tokens"] + ["confidences"] * recording.shows_confidences
    manifest = manifest_of(
        (*corpus.trained.requests, *corpus.trained.unpaired),
        cost,
        trained.neural_cap,
        memory,
        cap=trained.cap,
        static_tuned=tuned,
        seed=trained.seed,
        evidence=tuple(evidence),
        target=corpus.trained.target,
        tokenizer=corpus.tokenizer,
        vocabulary_hash=corpus.vocabulary_hash,
        drafter=corpus.trained.drafter,
        engine=options.engine,
        forwards=trained.forwards,
        async_static_tuned=async_tuned,
    )
    # The policy is made of the arrays that a server will load, so that these are judged.
    policy = policy_of(folder.resolve().name, manifest, networks, tables)
    known = corpus.trained.requests if memory else ()
    report = evaluate(corpus.held_out, [policy], cost, options, progress=progress, warm=known)
    metrics["held_out"] = cells_of(report)
    metrics["held_out_requests"] = corpus.held_out.counts
    judged_recording = build_recording(corpus.held_out.requests, corpus.held_out.neural_cap)
    if memory:
        judged_recording = remembering(corpus.held_out, options.seed, known)
    progress("calibration", 0, 1)
    bare = without_tables(recording, trained, settings)
    judged = Judged(policy, np.ones(len(judged_recording), np.bool_), bare)
    metrics["calibration"] = calibration_of(
        judged_recording, [judged], cost, options.concurrency, options.seed, options.engine
    )
    progress("calibration", 1, 1)
    manifest = dataclasses.replace(manifest, metrics=metrics)
    text = model_text(trained.boosters)
    card = card_of(manifest, corpus, options, len(tables["keys"]))
    write_artifact(folder, manifest, networks, tables, text, card, force)
    requests = {
        "trained": corpus.trained.counts,
        "held_out": corpus.held_out.counts,
        "left_out": corpus.trained.left_out,
    }
    return Product(folder, policy, manifest, requests, corpus, report)


def texts_of(selection: Selection) -> Recording | None:
    """The unpaired requests as texts alone."""
    return build_recording(selection.unpaired, 0) if selection.unpaired else None


def remembering(
    selection: Selection, seed: int, warm: Sequence[Request] = (), fresh: float = 0.0
) -> Recording:
    """The requests with the answers of those before them in one order, and of `warm`.

    A share of them, `fresh`, knows none.
    """
    history = History(tuple(warm), seed, fresh=fresh)
    return build_recording(selection.requests, selection.neural_cap, history)


def tuned_rules(
    recording: Recording,
    groups: Sequence[NDArray[np.bool_]],
    cost: CostModel,
    options: Options,
    progress: Progress,
    engine: str,
) -> list[dict[int, str]]:
    """The best static rules on each group of requests, which a careful operator would run."""

    def tuning(stage: str, done: float, total: float) -> None:
        progress(f"{stage}, training requests", done, total)

    player = Player(recording, cost, options.cap, engine=engine)
    # For a group of all requests these are the orders that a report draws for the mix.
    orders: dict[Cell, list[NDArray[np.int32]]] = {
        (str(number), concurrency): [
            draw_order(
                pools_among(recording, group),
                concurrency,
                np.random.default_rng([options.seed, order, 0, concurrency]),
            )
            for order in range(options.orders)
        ]
        for number, group in enumerate(groups)
        for concurrency in options.concurrency
    }
    grid, speeds = search(player, orders, options, tuning)
    winners = static_winners(grid, speeds, list(orders), player.cap)
    return [
        {
            concurrency: winners[str(number), concurrency][STATIC_BEST].contender.name
            for concurrency in options.concurrency
        }
        for number in range(len(groups))
    ]


def check_learnable(recording: Recording) -> None:
    """Refuse traces in which no draft was ever right."""
    columns = recording.columns
    if not ((columns.run >= 1).any() or (columns.neural >= 1).any()):
        raise TrainingError(
            f"nothing to learn from: no draft was ever right at any of {len(columns.run):,} "
            "positions: speculation does not pay on this traffic, serve it without"
        )


def manifest_of(
    requests: Iterable[Request], cost: CostModel, neural_cap: int, memory: bool = False, **more: Any
) -> PolicyManifest:
    """The manifest of a policy that was trained on these requests."""
    sources = ("ngram", "neural", "splice") if neural_cap else ("ngram",)
    return PolicyManifest(
        fingerprint=feature_fingerprint(),
        sources=(*sources, "memory") if memory else sources,
        neural_cap=neural_cap or None,
        cost=cost.name,
        step_costs=cost_document(cost),
        training_requests=content_hashes(requests),
        **more,
    )

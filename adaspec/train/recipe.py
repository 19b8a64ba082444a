"""From traces to a policy's folder: split, train, judge, write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from adaspec.cost.load import cost_document
from adaspec.cost.model import CostModel
from adaspec.evaluate.evaluation import evaluate
from adaspec.evaluate.options import Options, Progress, silent
from adaspec.evaluate.selection import Wanted, content_hash
from adaspec.files import check_folder
from adaspec.policy.artifact import KIND, Artifact, write_artifact
from adaspec.policy.learned import LearnedPolicy, policy_from
from adaspec.policy.manifest import Evidence, PolicyManifest, Source
from adaspec.predict.features import FEATURES_VERSION
from adaspec.replay.recording import build_recording
from adaspec.train.calibration import calibration_of
from adaspec.train.card import card_of
from adaspec.train.corpus import EVERYTHING, Corpus, gather
from adaspec.train.heads import model_text
from adaspec.train.metrics import metrics_of
from adaspec.train.outcomes import Recorded
from adaspec.train.trainer import Forwards, Spread, Trainer


@dataclass(frozen=True, slots=True)
class Product:
    """A policy that was written, with its results on the requests kept back."""

    folder: Path
    policy: LearnedPolicy
    manifest: PolicyManifest
    corpus: Corpus
    report: dict[str, Any]


def train_policy(
    traces: Sequence[Path],
    folder: Path,
    cost: CostModel,
    options: Options,
    wanted: Wanted = EVERYTHING,
    general: bool = False,
    spread: Spread | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Product:
    """Train on 70% of the requests, judge the model on the rest, and write the folder or nothing.

    `options` are those of the evaluation, and have the loads trained for; `spread` is as in
    `Trainer`.
    """
    check_folder(folder, KIND, force)
    progress("reading", 0, 1)
    corpus = gather(traces, wanted, general)
    trainer = Trainer(corpus.trained, cost, options, general, progress, spread)
    progress("reading", 1, 1)
    trained, forwards, boosters = trainer.train(np.ones(len(trainer.recording), np.bool_))
    manifest = manifest_of(corpus, trainer, trained, forwards)
    networks, tables = trained.model.network_arrays(), trained.model.table_arrays()
    # The policy is made of the arrays that a server will load, so that these are judged.
    policy = policy_from(Artifact(manifest, networks, tables, folder))
    report = evaluate(corpus.held_out, [policy], cost, options, progress=progress)
    judging = Recorded(build_recording(corpus.held_out.requests, corpus.held_out.neural_cap))
    everyone = np.ones(len(judging.recording), np.bool_)
    report["calibration"] = calibration_of(judging, [(policy, everyone)], progress)
    manifest = structs.replace(manifest, metrics={"held_out": metrics_of(report)})
    card = card_of(manifest, corpus, report, len(tables["keys"]))
    write_artifact(folder, manifest, networks, tables, model_text(boosters), card, force)
    return Product(folder, policy, manifest, corpus, report)


def manifest_of(
    corpus: Corpus, trainer: Trainer, policy: LearnedPolicy, forwards: Forwards
) -> PolicyManifest:
    """The manifest of a policy."""
    sources: tuple[Source, ...] = ("ngram", "neural", "splice")
    evidence: tuple[Evidence, ...] = ()
    if policy.model.reads_evidence:
        evidence = ("tokens", "confidences") if trainer.shown.shows_confidences else ("tokens",)
    seen = (*corpus.trained.requests, *corpus.trained.unpaired)
    return PolicyManifest(
        features=FEATURES_VERSION,
        sources=sources if policy.neural_cap else ("ngram",),
        neural_cap=policy.neural_cap or None,
        cost=trainer.cost.name,
        step_costs=cost_document(trainer.cost),
        training_requests=tuple(sorted(set(map(content_hash, seen)))),
        cap=policy.cap,
        seed=trainer.options.seed,
        evidence=evidence,
        target=corpus.trained.target,
        tokenizer=corpus.tokenizer,
        vocabulary_hash=corpus.vocabulary_hash,
        drafter=corpus.trained.drafter if policy.neural_cap else None,
        engine=trainer.options.engine,
        forwards=dict(forwards),
    )

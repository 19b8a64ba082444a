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
from adaspec.errors import TrainingError
from adaspec.evaluate.evaluation import evaluate
from adaspec.evaluate.options import Options, Progress, silent
from adaspec.evaluate.selection import Selection
from adaspec.policy.artifact import check_destination, write_artifact
from adaspec.policy.learned import LearnedPolicy, policy_of
from adaspec.policy.manifest import Evidence, PolicyManifest, Source
from adaspec.predict.features import FEATURES_VERSION
from adaspec.replay.recording import Recording, build_recording
from adaspec.train.calibration import calibration_of
from adaspec.train.card import card_of
from adaspec.train.corpus import Corpus, content_hashes, contents_of, gather
from adaspec.train.heads import Settings, model_text
from adaspec.train.metrics import metrics_of, read_crossfit_report, verdict
from adaspec.train.outcomes import Recorded
from adaspec.train.trainer import Forwards, Spread, Trainer


@dataclass(frozen=True, slots=True)
class Product:
    """A policy that was written, with its results on the requests kept back."""

    folder: Path
    policy: LearnedPolicy
    manifest: PolicyManifest
    corpus: Corpus
    """Requests that it was trained and judged on."""
    report: dict[str, Any]
    """Evaluation on the requests kept back."""

    @property
    def verdict(self) -> list[str]:
        """What it gains, in a few lines."""
        return verdict(self.report)

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
            "forwards": {str(load): count for load, count in self.manifest.forwards.items()},
            "metrics": dict(self.manifest.metrics),
        }


def train_policy(
    traces: Sequence[Path],
    folder: Path,
    cost: CostModel,
    options: Options,
    *,
    exclude_workloads: Sequence[str] = (),
    exclude_requests: tuple[str, ...] = (),
    general: bool = False,
    crossfit_report: Path | None = None,
    spread: Spread | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Product:
    """Train on 70% of the requests, judge the model on the rest, and write the folder or nothing.

    `options` are those of the evaluation; their concurrencies are also the loads trained for.
    `spread` calls what takes long for many arguments, on other machines for instance.
    """
    check_destination(folder, force)
    progress("reading", 0, 1)
    corpus = gather(traces, exclude_workloads, general, exclude_requests)
    metrics: dict[str, Any] = {}
    judged: dict[str, dict[str, Any]] = {}
    if crossfit_report is not None:
        contents = contents_of(corpus.trained, corpus.held_out)
        crossed = read_crossfit_report(crossfit_report, cost, options, contents)
        metrics["cross_fitted"] = metrics_of(crossed)
        count = sum(metrics["cross_fitted"]["requests"].values())
        judged[f"Cross-fitted, all {count:,} requests"] = crossed
    recording = build_recording(corpus.trained.requests, corpus.trained.neural_cap)
    progress("reading", 1, 1)
    check_learnable(recording)
    everyone = np.ones(len(recording), np.bool_)
    shown = shown_of(corpus.trained)
    trained, forwards, boosters = Trainer(
        Recorded(recording),
        cost,
        Settings(seed=options.seed, threads=options.workers),
        cap=options.cap,
        loads=options.concurrency,
        progress=progress,
        spread=spread,
        engine=options.engine,
        texts=texts_of(corpus.trained),
        general=general,
        shown=shown,
    ).train(everyone)
    manifest = manifest_of(corpus, shown or recording, trained, forwards, cost, options)
    networks, tables = trained.model.network_arrays(), trained.model.table_arrays()
    # The policy is made of the arrays that a server will load, so that these are judged.
    policy = policy_of(folder.resolve().name, manifest, networks, tables)
    report = evaluate(corpus.held_out, [policy], cost, options, progress=progress)
    progress("calibration", 0, 1)
    judging = build_recording(corpus.held_out.requests, corpus.held_out.neural_cap)
    everything = np.ones(len(judging), np.bool_)
    report["calibration"] = calibration_of(Recorded(judging), [(policy, everything)])
    progress("calibration", 1, 1)
    metrics["held_out"] = metrics_of(report)
    count = sum(corpus.held_out.counts.values())
    judged[f"This very model, on the {count:,} requests kept back"] = report
    manifest = structs.replace(manifest, metrics=metrics)
    card = card_of(manifest, corpus, options, len(tables["keys"]), judged)
    write_artifact(folder, manifest, networks, tables, model_text(boosters), card, force)
    return Product(folder, policy, manifest, corpus, report)


def texts_of(selection: Selection) -> Recording | None:
    """The unpaired requests as texts alone."""
    return build_recording(selection.unpaired, 0) if selection.unpaired else None


def shown_of(selection: Selection) -> Recording | None:
    """The requests that show drafted tokens, where others do not; they are the first."""
    shown = [each for each in selection.requests if each.drafted_tokens is not None]
    if not 0 < len(shown) < len(selection.requests):
        return None
    return build_recording(shown, selection.neural_cap)


def check_learnable(recording: Recording) -> None:
    """Refuse traces in which no draft was ever right."""
    columns = recording.columns
    if not ((columns.run >= 1).any() or (columns.neural >= 1).any()):
        raise TrainingError(
            f"nothing to learn from: no draft was ever right at any of {len(columns.run):,} "
            "positions: speculation does not pay on this traffic, serve it without"
        )


def manifest_of(
    corpus: Corpus,
    recording: Recording,
    policy: LearnedPolicy,
    forwards: Forwards,
    cost: CostModel,
    options: Options,
) -> PolicyManifest:
    """The manifest of a policy."""
    sources: tuple[Source, ...] = ("ngram",)
    if policy.neural_cap:
        sources = ("ngram", "neural", "splice")
    evidence: tuple[Evidence, ...] = ()
    if policy.model.reads_evidence:
        evidence = ("tokens", "confidences") if recording.shows_confidences else ("tokens",)
    return PolicyManifest(
        features=FEATURES_VERSION,
        sources=sources,
        neural_cap=policy.neural_cap or None,
        cost=cost.name,
        step_costs=cost_document(cost),
        training_requests=content_hashes((*corpus.trained.requests, *corpus.trained.unpaired)),
        cap=policy.cap,
        seed=options.seed,
        evidence=evidence,
        target=corpus.trained.target,
        tokenizer=corpus.tokenizer,
        vocabulary_hash=corpus.vocabulary_hash,
        drafter=corpus.trained.drafter if policy.neural_cap else None,
        engine=options.engine,
        forwards=dict(forwards),
    )

"""From traces to a policy's folder: split, train, judge, write; or to a cross-fit's report.

In a cross-fit a model decides only for requests that it never saw. Judging says also how well the
curves are calibrated, as they predict before drafting. The card has no dates, as the same training
gives the same bytes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from msgspec import structs
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

from adaspec.cost.load import cost_document
from adaspec.cost.model import CostModel
from adaspec.errors import TrainingError
from adaspec.evaluate import tables
from adaspec.evaluate.evaluation import evaluate, evaluate_folds
from adaspec.evaluate.hindsight import STATIC_BEST
from adaspec.evaluate.options import ALL, Options, Progress, silent
from adaspec.evaluate.plain_table import Table
from adaspec.evaluate.selection import Selection, Wanted, content_hash
from adaspec.files import check_folder
from adaspec.policy.artifact import KIND, Artifact, Evidence, PolicyManifest, Source, write_artifact
from adaspec.policy.protocol import LearnedPolicy, policy_from
from adaspec.predict.features import FEATURES_VERSION
from adaspec.predict.model import BEFORE_HEADS, Model
from adaspec.predict.network import predict, survivals
from adaspec.records import json_types
from adaspec.replay.recording import build_recording
from adaspec.trace.identity import dialogue_hashes
from adaspec.trace.reader import open_traces
from adaspec.trace.schema import Request
from adaspec.train.corpus import (
    EVERYTHING,
    HELD_OUT,
    MIN_TRAINED,
    TURNS,
    Corpus,
    dialogues_of,
    gather,
    part_of,
    read_all,
)
from adaspec.train.heads import model_text
from adaspec.train.rows import MIN_REQUESTS, Array, Floats, Members, Recorded, survey
from adaspec.train.trainer import Forwards, Spread, Trainer

DEPTHS = 4
"""The survival probabilities S(1) to S(4) are judged."""
BINS = 15
_CERTAIN = 1e-6
"""Probabilities are kept this far from 0 and 1: one certain miss would outweigh all the rest."""


def calibration_of(
    recorded: Recorded, judged: Sequence[tuple[LearnedPolicy, Members]], progress: Progress
) -> list[dict[str, Any]]:
    """A row per source and depth, about all requests, for each of which its own policy predicts."""
    seen: dict[tuple[str, int], list[tuple[Array, Array]]] = {}
    for done, (policy, members) in enumerate(judged):
        progress("calibration", done, len(judged))
        rows = survey(recorded.recording, policy.model, members, 0)["before"]
        for source, outcomes, usable in recorded.sources(rows.at):
            predicted = _predicted(policy.model, rows.x, source)
            for depth in range(1, DEPTHS + 1):
                known = (outcomes.known >= depth) & usable
                came = (outcomes.right[known] >= depth).astype(np.float64)
                seen.setdefault((source, depth), []).append((came, predicted[known, depth - 1]))
    progress("calibration", len(judged), len(judged))
    joined = {key: [*map(np.concatenate, zip(*pairs, strict=True))] for key, pairs in seen.items()}
    return [
        {"source": source, "survival": depth, **judge(came, predicted)}
        for (source, depth), (came, predicted) in joined.items()
        if len(came)
    ]


def _predicted(model: Model, x: Floats, source: str) -> Array:
    """S(1) .. S(DEPTHS) of a source by networks and curves, one row per row of features."""
    said = predict(model.networks["before"], x)
    first, more = (
        said[:, BEFORE_HEADS.index(f"{source}_{head}")].astype(np.float64)
        for head in ("first", "more")
    )
    return np.clip(survivals(model.curves[source], first, more, DEPTHS), 0.0, 1.0)


def judge(came: Array, predicted: Array) -> dict[str, Any]:
    """How good probabilities were; the AUC is None where all outcomes are equal."""
    # scikit-learn's quantile bins differ in size where predictions are equal.
    bins = np.array_split(np.argsort(predicted, kind="stable"), min(BINS, len(came)))
    errors = [len(each) * abs(predicted[each].mean() - came[each].mean()) for each in bins]
    bounded = np.clip(predicted, _CERTAIN, 1 - _CERTAIN)
    varied = 0 < came.sum() < len(came)
    return {
        "positions": len(came),
        "came": _rounded(came.mean()),
        "ece": _rounded(sum(errors) / len(came)),
        "auc": _rounded(roc_auc_score(came, predicted)) if varied else None,
        "log_loss": _rounded(log_loss(came, bounded, labels=[0, 1])),
    }


def _rounded(value: float) -> float:
    return round(float(value), 6)


FEW = 30
"""A policy that was judged on fewer requests may be anything."""
_OPPONENTS = (
    ("lift_over_vllm_best", "lift_over_vllm_best_ci95", "the best of vLLM's own methods"),
    ("lift_over_static_best", "lift_ci95", "the best static rule"),
)


def metrics_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest keeps of a report, but for the policy's name, which is its folder's."""
    kept = ("orders", "resamples", "headline", "calibration")
    metrics = {key: json_types(document[key]) for key in kept if key in document}
    for entry in metrics.get("headline", ()):
        del entry["policy"]
    return {"requests": document["traces"]["requests"], **metrics}


def verdict(report: Mapping[str, Any]) -> list[str]:
    """What a policy gains on the requests kept back, a line for each load; and what is in doubt."""
    rows = {(row["workload"], row["concurrency"], row["policy"]): row for row in report["rows"]}
    lines = []
    for entry in report["headline"]:
        load = entry["concurrency"]
        if entry["workload"] != ALL:
            continue
        mine, rule = (rows.get((ALL, load, name)) for name in (entry["policy"], STATIC_BEST))
        leads = [
            f"{_lead(entry[key], entry.get(ends))} over {opponent}"
            for key, ends, opponent in _OPPONENTS
            if entry.get(key) is not None
        ]
        speedup = "" if mine is None else f"{mine['speedup']:.2f}x no speculation, "
        lines.append(f"{load} at once: {speedup}{', '.join(leads)}")
        lead = entry.get("lift_over_static_best")
        if lead is not None and lead < 0 and rule is not None:
            spec = rule["detail"].get("spec")
            lines.append(f"  that rule, '{spec}', is ahead: if you serve at this load, serve it")
    judged = sum(report["traces"]["requests"].values())
    if lines and judged < FEW:
        lines.append(f"judged on {judged} requests alone: record {4 * FEW} or more to be sure")
    return lines


def _lead(lead: float, ends: Sequence[float] | None) -> str:
    between = "" if ends is None else f" ({ends[0]:+.1%} .. {ends[1]:+.1%})"
    return f"{lead:+.1%}{between}"


MINE = "this policy"

_EVIDENCE = (
    "It never sees drafted tokens or confidences: the traces held none.",
    "It reads drafted tokens as they come; the traces held no confidences.",
    "It reads drafted tokens and the drafter's confidences as they come.",
)
_FILES = (
    "`network.npz`: the networks that predict, and survival curves. `model.txt`: the decision "
    "trees that the networks were fitted to, in LightGBM's own words. `tables.npz`: {entries:,} "
    "entries of token tables: how often drafts were accepted after one, two or three tokens. Their "
    "keys are salted hashes of token ids of the training text; entries that fewer than "
    f"{MIN_REQUESTS} training requests share are dropped. The salt lies beside them: whoever "
    "guesses a short run of tokens can look up whether it was common."
)
_LIMITS = (
    "- Step times come from a cost model: measure on your engine before you believe a percent.\n"
    "- A policy knows the traffic it was trained on. On other traffic it goes by what its "
    "features say, and corrects what it expects of each drafter as it runs."
)


def card_of(
    manifest: PolicyManifest, corpus: Corpus, report: Mapping[str, Any], entries: int
) -> str:
    """The text of `CARD.md`; the token tables have so many entries."""
    made_for = "any model" if corpus.general else manifest.target or "an unnamed target"
    parts = [
        f"# A policy for {made_for}",
        _drafts(manifest),
        "It maximises tokens per second of the whole batch: a single request may be served slower "
        "than another policy would.",
        "## Trained on",
        *_data(manifest, corpus),
        "## On the requests kept back",
        tables.how_to_read(report),
        *(table.markdown(3) for table in _results(report)),
        "## What the files hold",
        _FILES.format(entries=entries),
        "## Limits",
        _LIMITS,
    ]
    return "\n\n".join(parts) + "\n"


def _drafts(manifest: PolicyManifest) -> str:
    if "neural" not in manifest.sources:
        return "**n-gram only:** the traces held no neural drafts, so it never asks for one."
    return (
        f"Chooses between n-gram drafts, drafts of `{manifest.drafter or 'a neural drafter'}` (up "
        f"to {manifest.neural_cap}), both spliced, and none. {_EVIDENCE[len(manifest.evidence)]}"
    )


def _data(manifest: PolicyManifest, corpus: Corpus) -> Iterator[str]:
    rows = []
    for workload in corpus.trained.counts:
        row = [workload]
        for side in (corpus.trained, corpus.held_out):
            of_it = [len(r.output_tokens) for r in side.requests if r.workload == workload]
            row += [f"{len(of_it):,}", f"{sum(of_it):,}"]
        rows.append(row)
    heads = ["workload", "trained on", "output tokens", "kept back", "output tokens"]
    yield Table("", heads, rows).markdown()
    reasons: Counter[str] = sum(map(Counter, corpus.trained.left_out.values()), Counter())
    if reasons:
        listing = "; ".join(f"{count:,} {why}" for why, count in sorted(reasons.items()))
        yield f"Neither replayed nor judged: {listing}."
    if (count := len(corpus.trained.unpaired)) and not corpus.general:
        yield f"The text of {count:,} unpaired requests went into the token tables."
    yield (
        f"A hash of each request's tokens decides whether it is kept back (about {HELD_OUT:.0%}). "
        "The manifest lists the hashes of those trained on, and the tokenizer. Cost model "
        f"`{manifest.cost}`, {manifest.engine} engine, seed {manifest.seed}, concurrency "
        f"{', '.join(map(str, manifest.forwards)) or 'any'}, drafts of at most {manifest.cap} "
        "tokens."
    )


def _results(document: Mapping[str, Any]) -> Iterator[Table]:
    """What the policy gains on the mix and on each workload, and how well it predicts."""
    (policy,) = document["policies"]
    mine = {
        key: [row | {"policy": MINE} for row in document[key] if row["policy"] == policy]
        for key in ("rows", "headline")
    }
    report = tables.Figures({**document, **mine, "policies": [MINE]})
    yield tables.headline(report, report.workloads[0], MINE)
    if len(report.workloads) > 2:
        yield tables.lifts_alone(report, MINE)
    yield tables.calibration(document["calibration"])


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


def cross_fit(
    traces: Sequence[Path],
    folds: int,
    cost: CostModel,
    options: Options,
    wanted: Wanted = EVERYTHING,
    general: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Train a model for every fold on the other folds, and let it decide for its own fold.

    The report is an evaluation's, with calibration.
    """
    progress("reading", 0, 1)
    selection = read_all(open_traces(traces), wanted, general)
    check_folds(selection, folds)
    workers = min(options.workers, folds)
    alone = replace(options, jobs=max(1, options.workers // workers))
    trainer = Trainer(selection, cost, alone, general, progress if workers == 1 else silent)
    member = deal(selection.requests, folds)
    others = [member != fold for fold in range(folds)]
    progress("reading", 1, 1)
    progress("folds", 0, folds)
    # `max_nbytes=None` shares no arrays between processes: shared ones are read-only, and all
    # compiled code would have to be compiled again for those.
    pool = Parallel(n_jobs=workers, prefer="processes", max_nbytes=None, return_as="generator")
    policies: list[LearnedPolicy] = []
    for policy, *_ in pool(delayed(trainer.train)(members) for members in others):
        policy.name = f"crossfit:{folds}"
        policies.append(policy)
        progress("folds", len(policies), folds)
    parts = [part_of(selection, member == fold) for fold in range(folds)]
    judged_by = [*zip(parts, policies, strict=True)]
    report = evaluate_folds(selection, judged_by, cost, options, progress)
    judged = [(policy, member == fold) for fold, policy in enumerate(policies)]
    report["calibration"] = calibration_of(trainer.recorded, judged, progress)
    report["notes"].append(
        f"cross-fitted in {folds} folds: every request is decided by a model that never saw it; "
        "each fold is replayed by itself, with hindsight of its own; figures are means over folds"
    )
    return report


def deal(requests: Sequence[Request], folds: int) -> NDArray[np.int32]:
    """The fold of each request: a workload's dialogues are dealt out in turn, by their hashes."""
    fold_of: dict[str, int] = {}
    for dialogues in dialogues_of(requests).values():
        fresh = sorted(dialogues - fold_of.keys(), key=_shuffled)
        fold_of |= {dialogue: index % folds for index, dialogue in enumerate(fresh)}
    return np.array([fold_of[dialogue] for dialogue in dialogue_hashes(requests)], np.int32)


def check_folds(selection: Selection, folds: int) -> None:
    """Refuse a number of folds that leaves a fold empty or too few requests to train on."""
    if folds < 2:
        raise TrainingError(f"--crossfit {folds}: 2 folds or more are needed, one to judge by")
    for workload, dialogues in dialogues_of(selection.requests).items():
        count = len(dialogues)
        left = count - -(-count // folds)
        if folds > count or left < MIN_TRAINED:
            raise TrainingError(
                f"--crossfit {folds}: workload '{workload}' has {count} different requests "
                f"({TURNS}), which leaves {left} of it to train on, and a fold needs one, training "
                f"{MIN_TRAINED}: give more of it, or leave it out with --exclude-workload"
            )


def _shuffled(dialogue: str) -> str:
    return hashlib.sha256(f"fold: {dialogue}".encode()).hexdigest()

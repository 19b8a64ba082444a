"""A report in which every request is decided by a model that never saw it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.errors import TrainingError
from adaspec.evaluate.calibration import Judged, calibration_of
from adaspec.evaluate.evaluation import evaluate
from adaspec.evaluate.options import Options, Progress, silent
from adaspec.evaluate.selection import Selection, content_hash
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import KNOBS
from adaspec.predict.model import Model, feature_fingerprint
from adaspec.replay.crossfit import CrossfitPolicy
from adaspec.replay.recording import build_recording
from adaspec.trace.schema import Request
from adaspec.train.ablation_table import ablation_table
from adaspec.train.ablations import AblatedTrainer, Ablation, without_tables
from adaspec.train.corpus import MIN_TRAINED, contents_of, read_everything
from adaspec.train.heads import Settings
from adaspec.train.recipe import check_learnable, tuned_rules
from adaspec.train.training import Members, Trainer

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class CrossFit:
    """A cross-fitted report and the requests that it is about."""

    report: dict[str, Any]
    selection: Selection


def cross_fit(
    traces: Sequence[Path],
    folds: int,
    cost: CostModel,
    options: Options,
    exclude_workloads: Sequence[str] = (),
    allow_mixed: bool = False,
    progress: Progress = silent,
    ablate: bool = False,
) -> CrossFit:
    """Train on each N - 1 of N folds, let each model decide for the fold that it never saw.

    All models share every batch, as one policy would serve it. The report is an evaluation's,
    with what was cross-fitted under `cross_fitted`, and the models' calibration; `ablate` trains
    as many models again for each ablation.
    """
    progress("reading", 0, 1)
    selection, _ = read_everything(traces, exclude_workloads, allow_mixed)
    check_folds(selection, folds)
    recording = build_recording(selection.requests, selection.neural_cap)
    check_learnable(recording)
    member = deal(selection.requests, folds)
    progress("reading", 1, 1)
    others = [member != fold for fold in range(folds)]
    workers = min(options.workers, folds)
    trainer = Trainer(
        recording,
        cost,
        Settings(seed=options.seed, threads=max(1, options.workers // workers)),
        cap=options.cap,
        loads=options.concurrency,
        progress=progress if workers == 1 else silent,
    )
    progress("folds", 0, folds)
    found = []
    for each in _each(_train_both, trainer, others, workers):
        found.append(each)
        progress("folds", len(found), folds)
    policies = tuple(policy for policy, _ in found)
    tuned = tuned_rules(recording, others, cost, options, progress)
    panel = CrossfitPolicy(
        f"crossfit:{folds}",
        policies,
        member,
        {at: tuple(rules[at] for rules in tuned) for at in options.concurrency},
    )
    report = evaluate(selection, [panel], cost, options, progress=progress)
    progress("calibration", 0, 1)
    judged = [Judged(policy, member == fold, bare) for fold, (policy, bare) in enumerate(found)]
    report["calibration"] = calibration_of(
        recording, judged, cost, options.concurrency, options.seed
    )
    progress("calibration", 1, 1)
    if ablate:

        def retrained(ablation: Ablation) -> CrossfitPolicy:
            found = _each(_train, AblatedTrainer(ablation, trainer), others, workers)
            return CrossfitPolicy(ablation.name, tuple(found), member)

        report["ablations"] = ablation_table(
            recording, report, panel, retrained, cost, options, progress
        )
    report["cross_fitted"] = {
        "folds": folds,
        "contents": contents_of(selection),
        "fingerprint": feature_fingerprint(),
        "knobs": [dict(zip(KNOBS, policy.knobs.tolist(), strict=True)) for policy in policies],
    }
    report["notes"].append(
        f"cross-fitted in {folds} folds: every request is decided by a model, and knobs, that "
        "never saw it; static:tuned runs each under the rule tuned on the other folds"
    )
    return CrossFit(report, selection)


def _each(
    task: Callable[[Trainer, Members], Made],
    trainer: Trainer,
    groups: Sequence[Members],
    workers: int,
) -> Iterator[Made]:
    """What a task makes of each group of requests, in order."""
    if workers == 1:
        return (task(trainer, members) for members in groups)
    # Arrays that processes share are read-only, for which all compiled code would be compiled anew.
    pool = Parallel(n_jobs=workers, prefer="processes", max_nbytes=None, return_as="generator")
    made: Iterator[Made] = pool(delayed(task)(trainer, members) for members in groups)
    return made


def _train(trainer: Trainer, members: Members) -> LearnedPolicy:
    return trainer.train(members).policy("fold")


def _train_both(trainer: Trainer, members: Members) -> tuple[LearnedPolicy, Model]:
    """The policy, and its model without token tables."""
    trained = trainer.train(members)
    return trained.policy("fold"), without_tables(trainer.recording, trained, trainer.settings)


def deal(requests: Sequence[Request], folds: int) -> NDArray[np.int32]:
    """Each request's fold: as many of each workload in every fold as can be.

    Within a workload the distinct contents are dealt round in the order of a hash of theirs.
    The same content is always in the same fold, in whichever workloads it occurs.
    """
    hashes = [content_hash(request) for request in requests]
    workloads: dict[str, set[str]] = {}
    for request, content in zip(requests, hashes, strict=True):
        workloads.setdefault(request.workload, set()).add(content)
    fold_of: dict[str, int] = {}
    for _, contents in sorted(workloads.items()):
        fresh = sorted(contents - fold_of.keys(), key=_shuffled)
        fold_of |= {content: at % folds for at, content in enumerate(fresh)}
    return np.array([fold_of[content] for content in hashes], np.int32)


def check_folds(selection: Selection, folds: int) -> None:
    """Refuse a number of folds that leaves one empty, or a model too little to learn from."""
    if folds < 2:
        raise TrainingError(
            f"--crossfit {folds}: cross-fitting takes 2 folds or more: one to judge by, the "
            "others to train on"
        )
    for workload, count in _distinct(selection).items():
        if folds > count:
            raise TrainingError(
                f"--crossfit {folds}: workload '{workload}' has {count} different requests, fewer "
                f"than folds: ask for at most {count}, or leave it out with --exclude-workload "
                f"{workload}"
            )
        left = count - -(-count // folds)
        if left < MIN_TRAINED:
            raise TrainingError(
                f"--crossfit {folds}: workload '{workload}' has {count} different requests, which "
                f"leaves {left} of it to train on, {MIN_TRAINED} are needed: give more of it, "
                f"or leave it out with --exclude-workload {workload}"
            )


def _distinct(selection: Selection) -> dict[str, int]:
    found: dict[str, set[str]] = {}
    for request in selection.requests:
        found.setdefault(request.workload, set()).add(content_hash(request))
    return {workload: len(contents) for workload, contents in sorted(found.items())}


def _shuffled(content: str) -> str:
    return hashlib.sha256(f"fold: {content}".encode()).hexdigest()

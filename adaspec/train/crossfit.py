"""Cross-fitting: a report in which a model decides only for requests that it never saw."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.errors import TrainingError
from adaspec.evaluate.evaluation import evaluate_folds
from adaspec.evaluate.options import Options, Progress, silent
from adaspec.evaluate.selection import Selection, Wanted
from adaspec.policy.learned import LearnedPolicy
from adaspec.trace.dialogues import dialogue_hashes
from adaspec.trace.reader import open_traces
from adaspec.trace.schema import Request
from adaspec.train.calibration import calibration_of
from adaspec.train.corpus import EVERYTHING, MIN_TRAINED, TURNS, dialogues_of, part_of, read_all
from adaspec.train.trainer import Trainer


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

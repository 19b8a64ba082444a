"""Dealing requests into folds by what they say, so that nothing is on both sides of a fold."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import TrainingError
from adaspec.evaluate.selection import Selection, content_hash
from adaspec.trace.schema import Request
from adaspec.train.corpus import FEWEST_TRAINED


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
        if left < FEWEST_TRAINED:
            raise TrainingError(
                f"--crossfit {folds}: workload '{workload}' has {count} different requests, which "
                f"leaves {left} of it to train on, {FEWEST_TRAINED} are needed: give more of it, "
                f"or leave it out with --exclude-workload {workload}"
            )


def _distinct(selection: Selection) -> dict[str, int]:
    found: dict[str, set[str]] = {}
    for request in selection.requests:
        found.setdefault(request.workload, set()).add(content_hash(request))
    return {workload: len(contents) for workload, contents in sorted(found.items())}


def _shuffled(content: str) -> str:
    return hashlib.sha256(f"fold: {content}".encode()).hexdigest()

"""Dealing requests into folds by content."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tiny_training import TINY

from adaspec.errors import TrainingError
from adaspec.evaluate.selection import Wanted, select
from adaspec.trace.synthetic import synthesize
from adaspec.train.crossfit import check_folds, deal


def requests_of(count=12, workloads=TINY):
    return list(synthesize(0, workloads, requests_per_workload=count))


def test_every_fold_has_its_share_of_every_workload():
    requests = requests_of(13)
    dealt = deal(requests, 4)
    for workload in ("edits", "talk"):
        mine = [fold for fold, r in zip(dealt, requests, strict=True) if r.workload == workload]
        counts = np.bincount(mine, minlength=4)
        assert counts.max() - counts.min() == 1


def test_names_and_order_do_not_matter_only_what_a_request_says():
    requests = requests_of()
    renamed = [dataclasses.replace(r, id=f"other {r.id}") for r in reversed(requests)]
    assert list(deal(renamed, 3)) == list(deal(requests, 3))[::-1]
    alone = [r for r in requests if r.workload == "talk"]
    together = deal(requests, 3)[[r.workload == "talk" for r in requests]]
    assert list(deal(alone, 3)) == list(together)


def test_the_same_content_is_never_on_both_sides_of_a_fold():
    requests = requests_of()
    again = [dataclasses.replace(r, id=f"again {r.id}") for r in requests]
    moved = [dataclasses.replace(r, workload="copied") for r in requests[:5]]
    dealt = deal([*requests, *again, *moved], 5)
    count = len(requests)
    assert list(dealt[:count]) == list(dealt[count : 2 * count])
    assert list(dealt[:5]) == list(dealt[2 * count :])


@pytest.fixture
def selection(trace):
    return select([trace], Wanted())


def test_folds_that_leave_nothing_to_judge_or_to_learn_are_refused(selection):
    few = tuple(r for r in selection.requests if r.workload == "talk")[:7]
    edits = tuple(r for r in selection.requests if r.workload == "edits")
    small = dataclasses.replace(selection, requests=(*edits, *few))
    check_folds(selection, 5)
    with pytest.raises(TrainingError, match="--crossfit 1: cross-fitting takes 2 folds or more"):
        check_folds(selection, 1)
    with pytest.raises(TrainingError, match=r"'talk' has 7 different requests.*at most 7"):
        check_folds(small, 8)
    with pytest.raises(TrainingError, match=r"'talk' has 7 .*leaves 3 .*6 are needed"):
        check_folds(small, 2)
    check_folds(small, 7)

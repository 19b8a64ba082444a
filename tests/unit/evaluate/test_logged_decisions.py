"""A trained policy is judged by the plans that it would have made where a log stands."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.errors import EvaluationError
from adaspec.evaluate.logged.decisions import plans_of_learned
from adaspec.evaluate.logged.targets import plans_of
from adaspec.replay.logged import MAX_REACH, Log
from adaspec.replay.loop import run_policy
from adaspec.train.token_tables import TableMaker

sys.path.insert(0, str(Path(__file__).parents[1] / "replay"))
sys.path.insert(0, str(Path(__file__).parents[1] / "policy"))
from learned_recordings import random_recording
from random_models import random_policy

COST = H100_LLAMA_3_1_8B.without_deciding()


def learned(recording, seed, evidence=False):
    tables = TableMaker(recording, 0).make(np.ones(len(recording), np.bool_))
    rng = np.random.default_rng(seed)
    return random_policy(rng, tables, evidence=evidence, cap=48, neural_cap=5)


def log_of_rows(recording, rows):
    """The log of a run with one request at once: what a server would have written of it."""
    request, position, neural, drafted, accepted = np.array(rows, np.int32).T
    counts = np.bincount(request, minlength=len(recording))
    return Log(
        recording=recording,
        first=np.concatenate([[0], np.cumsum(counts)]),
        position=position.copy(),
        neural_len=neural.copy(),
        drafted=drafted.copy(),
        accepted=accepted.copy(),
        weight=np.ones(len(rows)),
        propensity=np.ones(len(rows)),
        reach=np.zeros((len(rows), MAX_REACH)),
        running=np.ones(len(rows), np.int32),
    )


@pytest.mark.parametrize("seed", range(8))
def test_in_its_own_log_a_policy_decides_as_it_did(seed):
    recording, bare = random_recording(seed, "bare", 8), random_recording(seed, "no drafter", 8)
    policy = learned(recording, seed)
    rows = []

    def keep(seen):
        neural, ngram = int(seen.step.cut.neural_len[0]), int(seen.step.cut.ngram_len[0])
        accepted = min(int(seen.verified.accepted[0]), int(seen.verified.left[0]))
        where = int(seen.request[0]), int(seen.position[0])
        rows.append((*where, neural, neural + ngram, accepted))

    order = np.arange(len(recording), dtype=np.int32)
    run_policy(recording, policy, order, 1, COST, 48, observer=keep)
    log = log_of_rows(bare, rows)
    plans = plans_of_learned(log, policy, COST, 48)
    wide = plans.neural > 0
    assert plans.neural.tolist() == log.neural_len.tolist()
    drafted = np.where(wide, plans.neural + plans.spliced, plans.copied)
    assert drafted.tolist() == log.drafted.tolist()
    copies = ~wide & (drafted > 0)
    assert (np.minimum(plans.right, log.left)[copies] == log.accepted[copies]).all()
    assert drafted.any()


def test_a_policy_that_reads_drafts_is_refused():
    recording = random_recording(1, "bare", 4)
    with pytest.raises(EvaluationError, match="reads drafted tokens and confidences"):
        plans_of(None, learned(recording, 1, evidence=True), COST, 48)

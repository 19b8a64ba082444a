"""Ablations: what is taken away is gone, and nothing else is."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
from synthetic import synthesize
from tiny_training import OPTIONS, TINY

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.policy.planner.memory import KNOBS, SPLICE_WEIGHT
from adaspec.predict.features import BEFORE
from adaspec.replay.learned import run_learned
from adaspec.replay.loop import run_policy
from adaspec.replay.recording import build_recording
from adaspec.train.bare import TABLE_FEATURES
from adaspec.train.heads import Settings
from adaspec.train.training import Trainer

sys.path.append(str(Path(__file__).parents[3] / "eval"))

from ablations import (
    ABLATIONS,
    HISTORY_FEATURES,
    AblatedTrainer,
    NoBatchPlanning,
    NoListeningAfterDrafting,
    NoListeningWhileDrafting,
)

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

BY_NAME = {ablation.name: ablation for ablation in ABLATIONS}


@pytest.fixture(scope="module")
def trainer():
    recording = build_recording(list(synthesize(0, TINY, requests_per_workload=8)), 8)
    settings = Settings(rounds=12, threads=1)
    return Trainer(recording, H100_LLAMA_3_1_8B, settings, OPTIONS.cap, (2,))


@pytest.fixture(scope="module")
def trained_whole(trainer):
    return trainer.train_all()


@pytest.mark.parametrize(
    ("name", "hidden"), [("no token tables", TABLE_FEATURES), ("no history", HISTORY_FEATURES)]
)
def test_no_network_sees_a_hidden_feature(trainer, name, hidden):
    network = AblatedTrainer(BY_NAME[name], trainer).train_all().model.networks["before"]
    used = {BEFORE[at] for at in (*network.source, *network.flagged)}
    assert used
    assert hidden
    assert not used & set(hidden)


def test_without_splicing_nothing_is_spliced(trainer, trained_whole):
    found = AblatedTrainer(BY_NAME["no splicing"], trainer).train_all().policy("part")
    assert found.knobs[SPLICE_WEIGHT] == 0 < trained_whole.policy("whole").knobs[SPLICE_WEIGHT]


def test_a_position_counts_once_however_often_it_is_decided_at(trainer, trained_whole):
    decisions = trained_whole.examples.decisions
    assert len(np.unique(decisions.at)) < len(decisions.at)
    total = np.bincount(decisions.at, decisions.weight)
    assert total[total > 0] == pytest.approx(1.0)
    examples = AblatedTrainer(BY_NAME["no visits"], trainer).train_all().examples
    count = (trainer.recording.columns.length - 1).sum()
    assert len(examples.decisions.at) == len(np.unique(examples.decisions.at)) == count
    assert len(examples.splices.at) > 0
    assert len(examples.evidence.at) > 0


def test_a_row_alone_in_its_batch_decides_as_the_policy_does(trainer, trained_whole):
    policy = trained_whole.policy("whole")
    knobs = dict(zip(KNOBS, policy.knobs.tolist(), strict=True))
    alone = NoBatchPlanning("alone", policy.model, knobs, policy.cap, policy.neural_cap)
    recording, order = trainer.recording, np.arange(len(trainer.recording), dtype=np.int32)
    mine = run_policy(recording, alone, order, 1, H100_LLAMA_3_1_8B, 48)
    whole = run_learned(recording, policy, order, 1, H100_LLAMA_3_1_8B, 48)
    assert mine.time_s == pytest.approx(whole.time_s, rel=1e-12)
    assert mine.neural_steps == whole.neural_steps
    crowded = run_policy(recording, alone, order, 6, H100_LLAMA_3_1_8B, 48)
    planned = run_learned(recording, policy, order, 6, H100_LLAMA_3_1_8B, 48)
    assert crowded.neural_steps / crowded.steps >= planned.neural_steps / planned.steps


@pytest.mark.parametrize("kind", [NoListeningWhileDrafting, NoListeningAfterDrafting])
def test_who_hears_nothing_anyway_loses_nothing_by_not_listening(trainer, trained_whole, kind):
    policy = trained_whole.policy("whole")
    knobs = dict(zip(KNOBS, policy.knobs.tolist(), strict=True))
    other = kind("other", policy.model, knobs, policy.cap, policy.neural_cap)
    order = np.arange(len(trainer.recording), dtype=np.int32)

    def time_s(recording, each):
        return run_policy(recording, each, order, 3, H100_LLAMA_3_1_8B, 48).time_s

    mute = dataclasses.replace(trainer.recording, shows_tokens=False, shows_confidences=False)
    assert time_s(mute, other) == pytest.approx(time_s(mute, policy), rel=1e-12)
    assert time_s(trainer.recording, other) != time_s(trainer.recording, policy)

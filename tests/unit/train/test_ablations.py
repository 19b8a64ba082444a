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
from adaspec.predict.splicing import SPLICE
from adaspec.replay.learned import run_learned
from adaspec.replay.loop import run_policy
from adaspec.replay.recording import build_recording
from adaspec.train.bare import TABLE_FEATURES
from adaspec.train.heads import Settings
from adaspec.train.training import Trainer

sys.path.append(str(Path(__file__).parents[3] / "eval"))

from ablations import (
    ABLATIONS,
    FACTS,
    HISTORY_FEATURES,
    AblatedTrainer,
    NoBatchPlanning,
    NoListeningAfterDrafting,
    NoListeningWhileDrafting,
    never_agreeing,
    without_confidences,
)

pytestmark = pytest.mark.slow

BY_NAME = {ablation.name: ablation for ablation in ABLATIONS}


@pytest.fixture(scope="module")
def trainer():
    recording = build_recording(list(synthesize(0, TINY, requests_per_workload=8)), 8)
    settings = Settings(rounds=12, threads=1)
    return Trainer(recording, H100_LLAMA_3_1_8B, settings, OPTIONS.cap, (2,))


@pytest.fixture(scope="module")
def trained_whole(trainer):
    return trainer.train_all()


def test_every_feature_is_a_fact_of_the_past_or_of_the_tables():
    known = {*FACTS, *HISTORY_FEATURES, *TABLE_FEATURES}
    assert known == {*BEFORE, *SPLICE}
    assert not FACTS & {*HISTORY_FEATURES, *TABLE_FEATURES}
    assert {*HISTORY_FEATURES} & {*TABLE_FEATURES} == {"neural_surprise", "ngram_surprise"}
    assert {"match_goes_on", "ngram_hit_rate", "emitted_last"} <= set(HISTORY_FEATURES)
    assert {"neural_after_1", "ngram_first_two_count"} <= set(TABLE_FEATURES)


def features_used(model):
    network = model.networks["before"]
    return {BEFORE[at] for at in (*network.source, *network.flagged)}


@pytest.mark.parametrize(
    ("name", "hidden"), [("no token tables", TABLE_FEATURES), ("no history", HISTORY_FEATURES)]
)
def test_no_network_sees_a_hidden_feature(trainer, name, hidden):
    assert hidden
    used = features_used(AblatedTrainer(BY_NAME[name], trainer).train_all().model)
    assert used
    assert not used & set(hidden)


class Watched:
    """Counts the splices that a policy proposes."""

    def __init__(self, policy):
        self.policy, self.splices = policy, 0

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def settle(self, batch, drafts):
        proposal = self.policy.settle(batch, drafts)
        self.splices += int(((proposal.neural_len > 0) & (proposal.ngram_len > 0)).sum())
        return proposal


def splices_of(policy, recording):
    watched = Watched(policy)
    run_policy(
        recording, watched, np.arange(len(recording), dtype=np.int32), 2, H100_LLAMA_3_1_8B, 48
    )
    return watched.splices


def test_without_splicing_nothing_is_spliced(trainer, trained_whole):
    assert splices_of(trained_whole.policy("whole"), trainer.recording) > 0
    found = AblatedTrainer(BY_NAME["no splicing"], trainer).train_all().policy("part")
    assert found.knobs[SPLICE_WEIGHT] == 0
    assert splices_of(found, trainer.recording) == 0


def test_every_position_counts_alike_however_often_it_is_decided_at(trained_whole):
    examples = trained_whole.examples
    assert len(np.unique(examples.decisions.at)) < len(examples.decisions.at)
    total = np.bincount(examples.decisions.at, examples.decisions.weight)
    assert total[total > 0] == pytest.approx(1.0)


def test_without_visits_every_position_teaches_once(trainer):
    examples = AblatedTrainer(BY_NAME["no visits"], trainer).train_all().examples
    lengths = trainer.recording.columns.length
    assert (
        len(examples.decisions.at) == len(np.unique(examples.decisions.at)) == (lengths - 1).sum()
    )
    assert len(examples.splices.at) > 0
    assert len(examples.evidence.at) > 0


def test_a_drafter_that_shows_less_is_accepted_as_before(trainer):
    recording = trainer.recording
    for shown in (never_agreeing(recording), without_confidences(recording)):
        assert shown.columns is recording.columns
        assert shown.shows_tokens
        assert len(shown) == len(recording)
    assert not without_confidences(recording).shows_confidences
    strange = never_agreeing(recording).drafted
    assert ((strange >= 0) == (recording.drafted >= 0)).all()
    texts = [r.output_tokens for r in recording.requests] + [
        r.prompt_tokens for r in recording.requests
    ]
    assert not np.isin(strange[strange >= 0], np.concatenate(texts)).any()


def test_an_ablation_without_its_part_does_not_apply(trainer):
    recording = trainer.recording
    assert all(ablation.applies(recording) for ablation in ABLATIONS)
    bare = dataclasses.replace(recording, shows_tokens=False, shows_confidences=False, neural_cap=0)
    assert [a.name for a in ABLATIONS if a.applies(bare)] == [
        "no token tables",
        "no visits",
        "no history",
    ]


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

"""What a training does with more requests than it rolls out."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import synthesize
from tiny_training import TINY

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.replay.recording import Recording, build_recording
from adaspec.train import training
from adaspec.train.heads import Settings
from adaspec.train.training import Trainer


@pytest.fixture(scope="module")
def recording() -> Recording:
    return build_recording(list(synthesize(1, TINY, requests_per_workload=30)), 8)


def test_what_is_not_surveyed_still_fills_the_token_tables(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = int(recording.columns.length.sum())
    monkeypatch.setattr(training, "SURVEYED_POSITIONS", positions // 3)
    trainer = Trainer(recording, H100_LLAMA_3_1_8B, Settings(threads=1), 48, (1, 4))
    trained = trainer.train_all()
    seen = np.unique(trainer.maker.request[trained.examples.decisions.at])
    assert 0.2 < len(seen) / len(recording) < 0.5
    assert set(recording.workload[seen]) == set(range(len(recording.workloads)))
    whole = trainer.maker.make(np.ones(len(recording), np.bool_))
    np.testing.assert_array_equal(trained.model.tables.counts, whole.counts)

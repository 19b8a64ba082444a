"""What a training does with more requests than it rolls out."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_training import TINY

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.replay.tape import Tape, build_tape
from adaspec.trace.synthetic import synthesize
from adaspec.train import training
from adaspec.train.heads import Settings
from adaspec.train.training import Trainer


@pytest.fixture(scope="module")
def tape() -> Tape:
    return build_tape(list(synthesize(1, TINY, requests_per_workload=30)), 8)


def test_what_is_not_rolled_out_still_fills_the_token_tables(
    tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = int(tape.columns.length.sum())
    monkeypatch.setattr(training, "ROLLOUT_POSITIONS", positions // 3)
    monkeypatch.setattr(training, "TUNING_POSITIONS", positions // 6)
    trainer = Trainer(tape, H100_LLAMA_3_1_8B, Settings(threads=1), loads=(1, 4))
    trained = trainer.train_all()
    seen = np.unique(trainer.maker.request[trained.examples.decisions.at])
    assert 0.2 < len(seen) / len(tape) < 0.5
    assert set(tape.workload[seen]) == set(range(len(tape.workloads)))
    whole = trainer.maker.make(np.ones(len(tape), np.bool_))
    np.testing.assert_array_equal(trained.model.tables.counts, whole.counts)

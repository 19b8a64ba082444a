"""The table at the end of design section 7, which two other implementations agreed on."""

from __future__ import annotations

import numpy as np
import pytest
from shared_traces import selected

from adaspec.cost.builtin import H100_LLAMA_3_1_8B_PAPER
from adaspec.replay.contender import parse_contender
from adaspec.replay.orders import draw_orders
from adaspec.replay.player import Player
from adaspec.replay.recording import Recording, build_recording

CONCURRENCY = (1, 8, 32, 128)
NONE = (139.9, 1063, 3627, 9284)
OVER_NONE = {
    "fixed:ngram:8:3": (1.468, 1.425, 1.337, 1.166),
    "fixed:neural:1": (1.521, 1.499, 1.436, 1.328),
    "fixed:neural:3": (1.799, 1.738, 1.576, 1.334),
    "fixed:neural:5": (1.743, 1.659, 1.453, 1.164),
    "hybrid:4:16:3": (2.091, 1.916, 1.641, 1.258),
    "hybrid-splice:4:20:2:2:5": (2.261, 2.063, 1.699, 1.239),
    "oracle:combine": (2.833, 2.170, 1.783, 1.555),
    "oracle:plan": (2.858, 2.393, 2.197, 1.926),
    "oracle:plan-splice": (3.122, 2.622, 2.368, 2.039),
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    selection = selected(tmp_path_factory.mktemp("cross-check"), filtered=True)
    assert selection.counts == {"cnn": 67, "gsm8k": 118, "instructcoder": 282, "sharegpt": 47}
    return build_recording(selection.requests, selection.neural_cap)


@pytest.fixture(scope="module")
def none(recording: Recording) -> dict[int, float]:
    found = {concurrency: speed(recording, "none", concurrency) for concurrency in CONCURRENCY}
    assert list(found.values()) == pytest.approx(NONE, rel=0.02)
    return found


def speed(recording: Recording, spec: str, concurrency: int) -> float:
    player = Player(recording, H100_LLAMA_3_1_8B_PAPER, 48)
    orders = draw_orders(recording, None, concurrency, seed=0, orders=3)
    contender = parse_contender(spec)
    return float(
        np.mean([player.play(contender, order, concurrency).tokens_per_s for order in orders])
    )


@pytest.mark.parametrize("spec", OVER_NONE)
def test_speedups_are_those_of_the_table(
    spec: str, recording: Recording, none: dict[int, float]
) -> None:
    for concurrency, expected in zip(CONCURRENCY, OVER_NONE[spec], strict=True):
        found = speed(recording, spec, concurrency) / none[concurrency]
        assert found == pytest.approx(expected, rel=0.02), concurrency

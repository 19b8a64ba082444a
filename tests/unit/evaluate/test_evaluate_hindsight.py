"""Winners in hindsight, from throughputs that are given."""

from __future__ import annotations

import numpy as np
import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.evaluate.hindsight import (
    FIXED,
    HYBRID,
    NONE,
    Setting,
    best_table,
    grid_of,
    grid_speeds,
    static_winners,
)
from adaspec.evaluate.options import Options, silent
from adaspec.policy.spec import parse_policy
from adaspec.replay.orders import draw_orders
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording

CELLS = [(None, 1), (None, 8), ("chat", 1), ("chat", 8)]


def setting(spec, family):
    return Setting(spec, family, parse_policy(spec).rule, (spec,))


GRID = [
    setting("none", NONE),
    setting("fixed:neural:1", FIXED),
    setting("fixed:neural:5", FIXED),
    setting("hybrid:4:16:3", HYBRID),
]


def specs(winners, cell):
    return {name: winner.spec for name, winner in winners[cell].items()}


def test_each_family_and_cell_has_its_own_winner():
    speeds = np.array(
        [[1.0, 9.0, 5.0, 5.0], [2.0, 4.0, 4.0, 4.0], [3.0, 1.0, 3.0, 3.0], [2.5, 5.0, 6.0, 7.0]]
    )
    winners = static_winners(GRID, speeds, CELLS)
    assert specs(winners, (None, 1)) == {
        "fixed:best": "fixed:neural:5",
        "hybrid:best": "hybrid:4:16:3",
        "static:best": "fixed:neural:5",
        "static:one": "hybrid:4:16:3",
    }
    # Where speculation never pays, none is the best fixed and the best static setting.
    assert specs(winners, (None, 8))["fixed:best"] == "none"
    assert specs(winners, (None, 8))["static:best"] == "none"
    assert specs(winners, ("chat", 1))["static:best"] == "hybrid:4:16:3"
    assert winners["chat", 1]["static:best"].edge == ("hybrid:4:16:3",)


def test_static_one_wins_by_the_geometric_mean_over_loads_not_by_the_sum():
    speeds = np.array([[10.0, 10.0], [1.0, 40.0], [2.0, 2.0], [3.0, 3.0]])
    winners = static_winners(GRID, speeds, CELLS[:2])
    assert {winners[cell]["static:one"].spec for cell in CELLS[:2]} == {"none"}


def test_static_one_is_chosen_for_each_workload_by_itself():
    speeds = np.array([[9.0, 9.0, 1.0, 1.0], [1.0, 1.0, 9.0, 9.0], [2.0] * 4, [2.0] * 4])
    winners = static_winners(GRID, speeds, CELLS)
    assert winners[None, 8]["static:one"].spec == "none"
    assert winners["chat", 8]["static:one"].spec == "fixed:neural:1"


def test_the_best_table_takes_the_best_length_from_each_load_on():
    speeds = np.array([[1.0, 9.0], [2.0, 4.0], [3.0, 1.0], [99.0, 99.0]])
    assert best_table(GRID, speeds, CELLS[:2], None) == "batch-table:1-7=5,8-=0"
    assert best_table(GRID, speeds, [(None, 8), (None, 32)], None) == "batch-table:1-31=5,32-=0"
    assert best_table(GRID, speeds[:, :1], CELLS[:1], None) == "batch-table:1-=5"


@pytest.mark.parametrize("jobs", [1, 2])
def test_grid_speeds_are_what_the_player_says_of_each_setting(requests_of, jobs):
    player = Player(build_recording(requests_of(count=3), 8), H100_LLAMA_3_1_8B, 48)
    grid = grid_of(player.recording)[::97]
    orders = {cell: draw_orders(player.recording, None, cell[1], 0, 2) for cell in CELLS[:2]}
    speeds = grid_speeds(player, grid, orders, Options(jobs=jobs), silent)
    for at, each in enumerate(grid):
        for column, (cell, drawn) in enumerate(orders.items()):
            runs = [player.play(each.policy(), order, cell[1]).tokens_per_s for order in drawn]
            assert speeds[at, column] == pytest.approx(np.mean(runs))


def test_an_interrupt_cancels_what_is_left_of_the_grid(requests_of):
    player = Player(build_recording(requests_of(count=2), 8), H100_LLAMA_3_1_8B, 48)
    orders = {(None, 1): draw_orders(player.recording, None, 1, 0, 1)}
    seen = []

    def interrupt(stage, done, total):
        seen.append(done)
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grid_speeds(player, grid_of(player.recording), orders, Options(jobs=1), interrupt)
    assert len(seen) == 2

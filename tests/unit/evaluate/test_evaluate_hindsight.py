"""Winners in hindsight, from throughputs that are given."""

import numpy as np
import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.evaluate.grids import GRIDS, Grid, Setting
from adaspec.evaluate.hindsight import search, static_winners
from adaspec.evaluate.options import Options, silent
from adaspec.replay.orders import draw_orders
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording

CELLS = [(None, 1), (None, 8), ("chat", 1), ("chat", 8)]


GRID = [
    Setting(Grid("none", ()), ()),
    Setting(Grid("fixed:neural", ((1, 5),)), (1,)),
    Setting(Grid("fixed:neural", ((1, 5),)), (5,)),
    Setting(Grid("hybrid", ((4,), (16,), (3,))), (4, 16, 3)),
]


def specs(winners, cell):
    return {name: winner.contender.name for name, winner in winners[cell].items()}


def test_each_family_and_cell_has_its_own_winner():
    speeds = np.array(
        [[1.0, 9.0, 5.0, 5.0], [2.0, 4.0, 4.0, 4.0], [3.0, 1.0, 3.0, 3.0], [2.5, 5.0, 6.0, 7.0]]
    )
    winners = static_winners(GRID, speeds, CELLS, 48)
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
    assert winners["chat", 1]["static:best"].edge == ("M=4", "KN=16", "KE=3")
    assert winners[None, 1]["static:best"].edge == ("K=5",)


@pytest.mark.parametrize("engine", ["sync", "async"])
def test_grids_grow_until_no_winner_could_do_better_one_step_beyond_an_edge(requests_of, engine):
    player = Player(build_recording(requests_of(count=3), 8), H100_LLAMA_3_1_8B, 20, engine=engine)
    cells = {cell: draw_orders(player.recording, None, cell[1], 0, 1) for cell in CELLS[:2]}
    small = [Grid(grid.head, tuple(v[1:2] for v in grid.values)) for grid in GRIDS]
    grid, speeds = search(player, cells, Options(jobs=1), silent, small)
    assert len({each.spec for each in grid}) == len(grid) > len(small) + 10
    for best in static_winners(grid, speeds, list(cells), 20).values():
        for name, winner in best.items():
            # The trace's drafts end at 8 tokens.
            assert set(winner.edge) <= {"K=8", "KE=8"}, (name, winner)
    for at, each in enumerate(grid):
        runs = [player.play(each.policy(), drawn[0], n) for (_, n), drawn in cells.items()]
        assert speeds[at] == pytest.approx([run.tokens_per_s for run in runs])


def test_an_interrupt_cancels_what_is_left_of_the_grid(requests_of):
    player = Player(build_recording(requests_of(count=2), 8), H100_LLAMA_3_1_8B, 48)
    orders = {(None, 1): draw_orders(player.recording, None, 1, 0, 1)}
    seen = []

    def interrupt(stage, done, total):
        seen.append(done)
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(player, orders, Options(jobs=1), interrupt)
    assert len(seen) == 2

"""The grids of static settings, grown and flagged where more values would matter, and winners."""

from dataclasses import replace

import numpy as np
import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.evaluate import grids
from adaspec.evaluate.grids import GRIDS, Grid, Lines, Setting, grid_of, grow
from adaspec.evaluate.hindsight import search, static_winners
from adaspec.evaluate.options import Options, silent
from adaspec.policy.spec import parse_policy
from adaspec.replay.orders import draw_orders
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording


@pytest.fixture(scope="module")
def recording(requests_of):
    return build_recording(requests_of(count=1), 8)


READING = {"hybrid-agree", "fixed:neural-until", "hybrid-until"}


def test_rules_that_read_drafts_are_tried_where_the_trace_holds_them(requests_of, recording):
    bare = [replace(r, drafted_tokens=None, confidences=None) for r in requests_of(count=1)]
    without, found = (
        {each.grid.head for each in grid_of(held)} for held in (build_recording(bare, 8), recording)
    )
    assert without == {"none", "fixed:ngram", "fixed:neural", "hybrid", "hybrid-splice"}
    assert found == without | READING


def test_no_setting_comes_twice_and_each_spec_names_its_own_rule(recording):
    found = grid_of(recording)
    assert len({each.spec for each in found}) == len(found)
    for each in found:
        assert parse_policy(each.spec).rule == each.rule
        assert each.policy().name == each.spec


@pytest.mark.parametrize(
    ("spec", "edge"),
    [
        ("none", ()),
        ("fixed:neural:4", ()),
        ("fixed:neural:8", ("K=8",)),
        ("fixed:ngram:3:1", ("K=3",)),
        ("hybrid:4:16:0", ()),
        ("hybrid:10:32:4", ("M=10", "KN=32", "KE=4")),
        ("hybrid-splice:2:20:1:1:1", ("M=2",)),
        # Drafts end at 48 tokens, so a longer one would be the same.
        ("hybrid-splice:32:48:4:10:15", ("M=32", "KE=4", "MX=10", "KX=15")),
    ],
)
def test_an_edge_is_an_end_of_the_grid_beyond_which_values_would_matter(recording, spec, edge):
    tried = grid_of(recording)
    (found,) = [each for each in tried if each.spec == spec]
    assert Lines(tried).edge(found, 48) == edge


def peak(*top):
    """Speeds that fall with the distance from one setting."""

    def run(settings):
        distance = [np.abs(np.log(np.divide(each.values, top) + 0.01)).sum() for each in settings]
        return 1 - np.array(distance)[:, None]

    return run


def best(settings, speeds):
    return [int(np.argmax(speeds[:, 0]))]


def grown(recording, run):
    start = Grid("hybrid", ((4, 6), (8, 12), (2, 3)))
    return grow(grid_of(recording, [start]), run, best, recording, 48)


@pytest.mark.parametrize("top", [(1, 1, 1), (33, 48, 8), (1, 40, 7), (5, 10, 3)])
def test_a_grid_grows_towards_a_winner_beyond_its_edge(recording, top):
    grid, speeds = grown(recording, peak(*top))
    winner = grid[best(grid, speeds)[0]]
    distance = np.abs(np.log(np.divide(winner.values, top)))
    assert distance.max() < np.log(1.5)
    assert not set(Lines(grid).edge(winner, 48)) - {"KE=8"}
    assert max(each.rule.neural_len for each in grid) <= 8, "the trace's drafts end there"
    assert len({each.spec for each in grid}) == len(grid) == len(speeds)
    assert len(grid) < 120


def test_a_winner_that_the_last_round_leaves_on_an_edge_is_flagged(recording, monkeypatch):
    monkeypatch.setattr(grids, "ROUNDS", 2)
    grid, speeds = grown(recording, peak(5, 48, 2))
    winner = grid[best(grid, speeds)[0]]
    assert Lines(grid).edge(winner, 48) == ("M=6", "KN=18", "KE=2")


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

"""What a careful operator would run: the static rules that win on training requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.evaluate.hindsight import STATIC_BEST, grid_of, grid_speeds, static_winners
from adaspec.evaluate.options import Cell, Options, Progress
from adaspec.replay.contender import Player
from adaspec.replay.orders import draw_order, pools_among
from adaspec.replay.tape import Tape


def tuned_rules(
    tape: Tape,
    groups: Sequence[NDArray[np.bool_]],
    cost: CostModel,
    options: Options,
    progress: Progress,
) -> list[dict[int, str]]:
    """For each group of marked requests, what the grids choose on it at each concurrency."""

    def tuning(stage: str, done: float, total: float) -> None:
        progress(f"{stage}, training requests", done, total)

    player = Player(tape, cost, options.cap)
    cells: list[Cell] = [
        (str(number), concurrency)
        for number in range(len(groups))
        for concurrency in options.concurrency
    ]
    # For a group of everyone these are a report's own orders of the mix.
    orders = {
        (name, concurrency): [
            draw_order(
                pools_among(tape, groups[int(str(name))]),
                concurrency,
                np.random.default_rng([options.seed, order, 0, concurrency]),
            )
            for order in range(options.orders)
        ]
        for name, concurrency in cells
    }
    grid = grid_of(player)
    winners = static_winners(grid, grid_speeds(player, grid, orders, options, tuning), cells)
    return [
        {
            concurrency: winners[str(number), concurrency][STATIC_BEST].spec
            for concurrency in options.concurrency
        }
        for number in range(len(groups))
    ]

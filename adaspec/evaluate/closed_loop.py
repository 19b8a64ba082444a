"""The closed-loop evaluation: a fixed number of requests runs at once, in shuffled orders.

All static settings run in the orders of every cell. Their winners, the named policies and the
oracles then run once more for their rows, and over resampled requests for the intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adaspec.evaluate.cell_result import CellResult, measure, new_results, report_parts
from adaspec.evaluate.hindsight import (
    ADAPTIVE_BEST,
    adaptive_winners,
    grid_of,
    grid_speeds,
    static_winners,
)
from adaspec.evaluate.intervals import replicate_speeds, variance_ratio
from adaspec.evaluate.options import Cell, Options, Progress, cells
from adaspec.replay.contender import Contender, Player
from adaspec.replay.orders import draw_orders, pools_of


def evaluate_closed_loop(
    player: Player, named: Sequence[Contender], options: Options, progress: Progress
) -> dict[str, Any]:
    """The report's `rows` and `headline`, and the number of settings tried."""
    recording = player.recording
    orders = {
        cell: draw_orders(recording, cell[0], cell[1], options.seed, options.orders)
        for cell in cells(recording.workloads, options)
    }
    grid = grid_of(player)
    speeds = grid_speeds(player, grid, orders, options, progress)
    winners = static_winners(grid, speeds, list(orders))
    if recording.neural_cap:
        adaptive = adaptive_winners(player, grid, speeds, orders, progress)
        for cell, winner in adaptive.items():
            winners[cell][ADAPTIVE_BEST] = winner
    results = new_results(player, named, winners)
    for done, (cell, result) in enumerate(results.items()):
        progress("policies and bounds", done, len(results))
        for name, contender in result.contenders.items():
            runs = [player.play(contender, order, cell[1]) for order in orders[cell]]
            result.measures[name] = measure(runs)
    progress("policies and bounds", len(results), len(results))
    if options.resamples >= 2:
        _add_replicates(player, results, options, progress)
    return report_parts(results, named, recording.workloads) | {"settings": len(grid)}


def _add_replicates(
    player: Player, results: dict[Cell, CellResult], options: Options, progress: Progress
) -> None:
    def key(contender: Contender) -> tuple[str, bool]:
        return contender.name, player.charges(contender)

    # Each spec runs once per cell, although a named policy may also be a winner, or win twice.
    distinct = {
        cell: {key(contender): contender for contender in result.contenders.values()}
        for cell, result in results.items()
    }
    replicates = replicate_speeds(
        player, {cell: list(by.values()) for cell, by in distinct.items()}, options, progress
    )
    for cell, result in results.items():
        sizes = [len(pool) for pool in pools_of(player.recording, cell[0])]
        result.variance_ratio = variance_ratio(sizes, cell[1], options.orders)
        column = {contender_key: index for index, contender_key in enumerate(distinct[cell])}
        result.replicates = {
            name: replicates[cell][:, column[key(contender)]]
            for name, contender in result.contenders.items()
        }

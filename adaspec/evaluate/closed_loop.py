"""The closed loop of an evaluation: a fixed number of requests runs at once, in shuffled orders.

All static settings run in the orders of every cell; their winners, the named policies and the
oracles then run once more for their rows, and over resampled requests for the intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adaspec.evaluate.cell_result import CellResult, measure, new_results, report_parts
from adaspec.evaluate.hindsight import (
    FIXED_BEST,
    STATIC_MEMORY,
    memory_winners,
    rival_winners,
    search,
    static_winners,
)
from adaspec.evaluate.intervals import replicate_speeds, variance_ratio
from adaspec.evaluate.options import Cell, Options, Progress, cells
from adaspec.replay.orders import draw_orders, pools_of
from adaspec.replay.player import Contender, Player
from adaspec.replay.result import Result


def evaluate_closed_loop(
    player: Player, named: Sequence[Contender], options: Options, progress: Progress
) -> dict[str, Any]:
    """The report's `rows` and `headline`, and the number of settings tried."""
    recording = player.recording
    orders = {
        cell: draw_orders(recording, cell[0], cell[1], options.seed, options.orders)
        for cell in cells(recording.workloads, options)
    }
    grid, speeds = search(player, orders, options, progress)
    winners = static_winners(grid, speeds, list(orders), player.cap)
    fixed = {cell: best[FIXED_BEST] for cell, best in winners.items()}
    for cell, best in rival_winners(player, orders, fixed, progress).items():
        winners[cell] |= best
    tried = len(grid)
    if player.remembered is not None:
        with_memory, count = memory_winners(player, orders, options, progress)
        tried += count
        for cell, winner in with_memory.items():
            winners[cell][STATIC_MEMORY] = winner
    results = new_results(player, named, winners)
    for done, (cell, result) in enumerate(results.items()):
        progress("policies and bounds", done, len(results))
        runs: dict[str, list[Result]] = {name: [] for name in result.contenders}
        for order in orders[cell]:
            known = player.remember(order, cell[1])
            for name, contender in result.contenders.items():
                runs[name].append(player.play(contender, order, cell[1], known=known))
        result.measures = {name: measure(each) for name, each in runs.items()}
    progress("policies and bounds", len(results), len(results))
    if options.resamples >= 2:
        _add_replicates(player, results, options, progress)
    return report_parts(results, named, recording.workloads) | {"settings": tried}


def _add_replicates(
    player: Player, results: dict[Cell, CellResult], options: Options, progress: Progress
) -> None:
    def key(contender: Contender) -> tuple[type, str]:
        return type(contender), contender.name

    # Each spec runs once per cell, although a named policy may also be a winner, or win twice.
    distinct = {
        cell: {key(contender): contender for contender in result.resampled().values()}
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
            for name, contender in result.resampled().items()
        }

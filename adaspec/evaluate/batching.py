"""The two ways in which requests run together in an evaluation, and what each makes of a report.

In the closed loop a fixed number of requests runs at once, in shuffled orders: all static settings
run in the orders of every cell; their winners, the named policies and the oracles then run once
more for their rows, and over resampled requests for the intervals.

In lockstep B copies of one request advance together, one request after another. A request's
throughput is B times its decoded tokens over the mean latency of its copies. A cell's throughput is
the mean over requests, and "all" gives the workloads equal weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.evaluate.cell_result import CellResult, measure, new_results, report_parts
from adaspec.evaluate.grids import GRIDS, Setting, Speeds
from adaspec.evaluate.hindsight import (
    ADAPTIVE_BEST,
    STATIC_MEMORY,
    adaptive_winners,
    grown,
    memory_winners,
    search,
    static_winners,
    walk_grid,
)
from adaspec.evaluate.intervals import (
    BOOTSTRAP,
    bootstrap_ratio,
    replicate_speeds,
    variance_ratio,
)
from adaspec.evaluate.options import Cell, Options, Progress, cells
from adaspec.replay.orders import draw_orders, pools_of
from adaspec.replay.paths import lockstep_speeds, rule_costs
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
    if recording.neural_cap:
        adaptive = adaptive_winners(player, grid, speeds, orders, progress)
        for cell, winner in adaptive.items():
            winners[cell][ADAPTIVE_BEST] = winner
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


def evaluate_lockstep(
    player: Player, named: Sequence[Contender], options: Options, progress: Progress
) -> dict[str, Any]:
    """The report's `rows` and `headline`, and the number of settings tried."""
    recording = player.recording
    columns, costs, loads = recording.columns, rule_costs(player.cost), options.concurrency
    order = cells(recording.workloads, options)

    def walk(rules: NDArray[np.int64]) -> Speeds:
        return lockstep_speeds(columns, rules, player.cap, loads, costs, player.is_late)

    def run(settings: Sequence[Setting]) -> Speeds:
        by_request = walk_grid(settings, walk, options, progress)
        speeds = [
            weighted(
                by_request[..., loads.index(load)], recording.workload, recording.members(workload)
            )
            for workload, load in order
        ]
        return np.stack(speeds, axis=1)

    grid, speeds = grown(player, GRIDS, run, order)
    winners = static_winners(grid, speeds, order, player.cap)
    results = new_results(player, named, winners, lockstep=True)
    runs: dict[tuple[type, str, int], list[Result]] = {}
    for done, (cell, result) in enumerate(results.items()):
        progress("policies and bounds", done, len(results))
        members = recording.members(cell[0])
        workload = recording.workload[members]
        for name, contender in result.contenders.items():
            key = (type(contender), contender.name, cell[1])
            if key not in runs:
                # The mix comes first, and so all requests run that a workload's cell needs.
                runs[key] = _play_all(player, contender, cell[1])
            chosen = [runs[key][request] for request in members]
            per_request = np.array([_throughput(run) for run in chosen])
            speed = float(weighted(per_request, workload, np.arange(len(members))))
            result.measures[name] = replace(measure(chosen), tokens_per_s=speed)
            result.replicates[name] = _replicates(per_request, workload, options)
        _, sizes = np.unique(workload, return_counts=True)
        result.variance_ratio = max(bootstrap_ratio(int(size)) for size in sizes)
    progress("policies and bounds", len(results), len(results))
    return report_parts(results, named, recording.workloads) | {"settings": len(grid)}


def weighted(speeds: Speeds, workload: NDArray[np.int32], members: NDArray[np.integer]) -> Speeds:
    """The mean over `members` along the last axis, with equal weight for every workload."""
    of_members = workload[members]
    means = [speeds[..., members[of_members == w]].mean(axis=-1) for w in np.unique(of_members)]
    return np.mean(means, axis=0)


def _play_all(player: Player, contender: Contender, copies: int) -> list[Result]:
    return [
        player.play(contender, np.full(copies, request, dtype=np.int32), copies, refills=False)
        for request in range(len(player.recording))
    ]


def _throughput(run: Result) -> float:
    """Tokens per second of one request's copies, computed with their mean latency."""
    if len(run.token_s) <= 1:
        return run.tokens_per_s
    return len(run.token_s) / float(run.token_s.mean())


def _replicates(per_request: Speeds, workload: NDArray[np.int32], options: Options) -> Speeds:
    """Throughputs resampled within each workload; the seed makes contenders' replicates pairs."""
    rng = np.random.default_rng([options.seed, BOOTSTRAP])
    groups = [np.flatnonzero(workload == w) for w in np.unique(workload)]
    return np.array(
        [
            np.mean([per_request[rng.choice(group, len(group))].mean() for group in groups])
            for _ in range(options.resamples)
        ]
    )

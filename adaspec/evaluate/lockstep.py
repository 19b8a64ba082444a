"""The lockstep evaluation: B copies of one request advance together, requests one after another.

A request's throughput is B times its decoded tokens over the mean latency of its copies; a cell's
is the mean over requests, and "all" weighs the workloads alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.evaluate.closed_loop import CellResult, contenders_of, report_parts
from adaspec.evaluate.hindsight import Speeds, grid_of, static_winners
from adaspec.evaluate.intervals import bootstrap_ratio
from adaspec.evaluate.measures import Measure, measure
from adaspec.evaluate.options import Cell, Options, Progress, cells
from adaspec.evaluate.tuned import tuned_rows, tuned_winners
from adaspec.replay.contender import Contender, Player
from adaspec.replay.paths import lockstep_speeds
from adaspec.replay.result import Result

_CHUNK = 64
_BOOTSTRAP = 7919


def evaluate_lockstep(
    player: Player, named: Sequence[Contender], options: Options, progress: Progress
) -> dict[str, Any]:
    """`rows` and `headline` of a report, and the number of settings tried."""
    tape = player.tape
    for contender in named:
        player.check(contender)
    wanted = cells(tape.workloads, options)
    grid = grid_of(player)
    by_request = _grid(player, options, progress)
    speeds = np.stack(
        [
            weighted(by_request[..., options.concurrency.index(cell[1])], tape.workload, members)
            for cell in wanted
            for members in [tape.members(cell[0])]
        ],
        axis=1,
    )
    winners = static_winners(grid, speeds, wanted)
    results: dict[Cell, CellResult] = {}
    runs: dict[tuple[str, bool, int], list[Result]] = {}
    for done, cell in enumerate(wanted):
        progress("policies and bounds", done, len(wanted))
        winners[cell] |= tuned_winners(player, named, cell[1])
        found = CellResult(
            winners[cell],
            contenders_of(player, named, winners[cell], cell, True),
            tuned=tuned_rows(named),
        )
        members = tape.members(cell[0])
        for name, contender in found.contenders.items():
            key = (contender.name, player.charges(contender), cell[1])
            if key not in runs:
                # The mix comes first: it holds every request that a workload's own cell needs.
                runs[key] = _play_all(player, contender, cell[1])
            chosen = [runs[key][r] for r in members]
            per_request = np.array([_throughput(run) for run in chosen])
            found.measures[name] = _measured(chosen, per_request, tape.workload[members])
            found.replicates[name] = _replicates(per_request, tape.workload[members], options)
        _, sizes = np.unique(tape.workload[members], return_counts=True)
        found.variance_ratio = max(bootstrap_ratio(int(size)) for size in sizes)
        results[cell] = found
    progress("policies and bounds", len(wanted), len(wanted))
    return report_parts(results, named, tape.workloads) | {"settings": len(grid)}


def weighted(speeds: Speeds, workload: NDArray[np.int32], members: NDArray[np.int32]) -> Speeds:
    """Mean over `members` along the last axis, every workload weighing alike."""
    inside = workload[members]
    means = [speeds[..., members[inside == w]].mean(axis=-1) for w in np.unique(inside)]
    return np.mean(means, axis=0)


def _grid(player: Player, options: Options, progress: Progress) -> Speeds:
    grid = grid_of(player)
    rules = np.stack([setting.rule.row() for setting in grid])
    parts = [rules[at : at + _CHUNK] for at in range(0, len(rules), _CHUNK)]

    def walk(part: NDArray[np.int64]) -> Speeds:
        return lockstep_speeds(
            player.tape.columns, part, player.cap, options.concurrency, player.cost.constants()
        )

    found = []
    pool = ThreadPoolExecutor(options.workers)
    try:
        for part in pool.map(walk, parts):
            found.append(part)
            progress("static grids", len(found), len(parts))
    finally:
        # Otherwise whoever interrupts waits for the whole grid.
        pool.shutdown(cancel_futures=True)
    return np.concatenate(found)


def _play_all(player: Player, contender: Contender, copies: int) -> list[Result]:
    return [
        player.play(contender, np.full(copies, r, dtype=np.int32), copies, refills=False)
        for r in range(len(player.tape))
    ]


def _throughput(run: Result) -> float:
    """Tokens per second of one request's copies, over their mean latency."""
    if len(run.token_s) <= 1:
        return run.tokens_per_s
    return len(run.token_s) / float(run.token_s.mean())


def _measured(runs: Sequence[Result], per_request: Speeds, workload: NDArray[np.int32]) -> Measure:
    found = measure(runs)
    everyone = np.arange(len(per_request), dtype=np.int32)
    speed = float(weighted(per_request, workload, everyone))
    return found.with_speed(speed)


def _replicates(per_request: Speeds, workload: NDArray[np.int32], options: Options) -> Speeds:
    """Resampled within each workload; the seed makes replicates of all contenders pairs."""
    rng = np.random.default_rng([options.seed, _BOOTSTRAP])
    groups = [np.flatnonzero(workload == w) for w in np.unique(workload)]
    return np.array(
        [
            np.mean([per_request[rng.choice(group, len(group))].mean() for group in groups])
            for _ in range(options.resamples)
        ]
    )

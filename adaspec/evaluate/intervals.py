"""Paired bootstrap intervals: resample requests within each workload, run the loop again.

Every contender of a replicate sees the same requests in the same order. An interval is the point
plus or minus Student's t times the replicates' standard deviation, so that a few dozen replicates
suffice; a contender against itself has replicates that do not vary, hence exactly [0, 0].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.special import stdtrit

from adaspec.evaluate.options import Cell, Options, Progress
from adaspec.replay.contender import Contender, Player, is_compiled
from adaspec.replay.orders import draw_order, resampled

Interval = tuple[float, float]
Speeds = NDArray[np.float64]

_BOOTSTRAP = 7919
"""Keeps replicates' seeds apart from those of the orders."""


def replicate_speeds(
    player: Player,
    contenders: Mapping[Cell, Sequence[Contender]],
    options: Options,
    progress: Progress,
) -> dict[Cell, Speeds]:
    """Tokens per second (replicate, contender) per cell."""
    compiled = all(is_compiled(c) for several in contenders.values() for c in several)
    count = options.resamples
    progress("intervals", 0, count)
    if options.workers == 1:
        runs = (_replicate(player, contenders, options, number) for number in range(count))
    else:
        workers = Parallel(
            n_jobs=options.workers,
            prefer="threads" if compiled else "processes",
            return_as="generator",
        )
        runs = workers(
            delayed(_replicate)(player, contenders, options, number) for number in range(count)
        )
    found = []
    for replicate in runs:
        found.append(replicate)
        progress("intervals", len(found), count)
    return {cell: np.stack([run[cell] for run in found]) for cell in contenders}


def _replicate(
    player: Player,
    contenders: Mapping[Cell, Sequence[Contender]],
    options: Options,
    number: int,
) -> dict[Cell, Speeds]:
    tape = player.tape
    rng = np.random.default_rng([options.seed, _BOOTSTRAP, number])
    members = [tape.members(workload) for workload in tape.workloads]
    pools = dict(zip(tape.workloads, resampled(members, rng), strict=True))
    speeds = {}
    for cell, several in contenders.items():
        workload, concurrency = cell
        chosen = list(pools.values()) if workload is None else [pools[workload]]
        order = draw_order(chosen, concurrency, rng)
        speeds[cell] = np.array(
            [player.play(each, order, concurrency).tokens_per_s for each in several]
        )
    return speeds


def interval(point: float, replicates: NDArray[np.float64]) -> Interval:
    """95% interval around a point from the replicates of the same figure."""
    count = len(replicates)
    half = float(stdtrit(count - 1, 0.975) * np.std(replicates, ddof=1)) if count > 1 else 0.0
    return point - half, point + half

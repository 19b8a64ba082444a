"""Paired bootstrap intervals: resample requests within each workload and run the loop again.

All contenders of a replicate see the same requests in the same order. An interval is the point
plus or minus Student's t times the replicates' standard deviation, so that a few dozen replicates
suffice.

A replicate runs one order, but the point is a mean over several, and scatters less. The deviation
is rescaled to the point's sampling scheme (as Rao and Wu, 1988, do for bootstraps of other
schemes), which is exact for a mean over entries. Which requests run side by side is not rescaled,
so intervals are rather too wide than too narrow.

At concurrency 1 a request takes as long in whatever order it stands, but for what a policy that
adapts has learned by then. So every request is replayed once, and a replicate adds up what those of
its order took. Suffix decoding, which learns from a run's answers, is replayed all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.special import stdtrit

from adaspec.evaluate.options import Cell, Options, Progress
from adaspec.evaluate.traffic import Arrivals, draw_order, entries, traffic_of
from adaspec.replay.player import Compiled, Contender, Player
from adaspec.replay.suffix import SuffixDecoding

Speeds = NDArray[np.float64]

BOOTSTRAP = 7919
"""A part of the replicates' seeds that makes them differ from the orders' seeds."""


def replicate_speeds(
    player: Player,
    contenders: Mapping[Cell, Sequence[Contender]],
    options: Options,
    progress: Progress,
    arrivals: Arrivals | None = None,
) -> dict[Cell, Speeds]:
    """The score per cell, as (replicate, contender): tokens per second, or goodput."""
    compiled = all(isinstance(each, Compiled) for some in contenders.values() for each in some)
    count = options.resamples
    progress("intervals", 0, count)
    alone = {
        cell: seconds_alone(player, cell, some, options)
        for cell, some in contenders.items()
        if cell[1] == 1 and arrivals is None and not options.has_goal
    }
    # With one job joblib runs all replicates in this process, one after another.
    workers = Parallel(
        n_jobs=options.workers,
        prefer="threads" if compiled else "processes",
        return_as="generator",
    )
    replicates = []
    for speeds in workers(
        delayed(_replicate)(player, contenders, alone, options, number, arrivals)
        for number in range(count)
    ):
        replicates.append(speeds)
        progress("intervals", len(replicates), count)
    return {cell: np.stack([speeds[cell] for speeds in replicates]) for cell in contenders}


def _replicate(
    player: Player,
    contenders: Mapping[Cell, Sequence[Contender]],
    alone: Mapping[Cell, Sequence[Speeds | None]],
    options: Options,
    number: int,
    arrivals: Arrivals | None,
) -> dict[Cell, Speeds]:
    recording = player.recording
    rng = np.random.default_rng([options.seed, BOOTSTRAP, number])
    members = {name: recording.members(name) for name in recording.workloads}
    pools = {name: rng.choice(each, len(each)) for name, each in members.items()}
    speeds = {}
    for cell, some in contenders.items():
        workload, concurrency = cell
        chosen = list(pools.values()) if workload is None else [pools[workload]]
        order = draw_order(chosen, concurrency, rng)
        run = traffic_of(order, concurrency, arrivals, rng)
        tokens = float((recording.columns.length[order] - 1).sum())
        speeds[cell] = np.array(
            [
                options.score(player.play(contender, *run))
                if seconds is None
                else tokens / float(seconds[order].sum())
                for contender, seconds in zip(
                    some, alone.get(cell, [None] * len(some)), strict=True
                )
            ]
        )
    return speeds


def seconds_alone(
    player: Player, cell: Cell, contenders: Sequence[Contender], options: Options
) -> list[Speeds | None]:
    """What each request of a cell takes each contender, one at a time; None for suffix decoding."""
    rng = np.random.default_rng([options.seed, BOOTSTRAP])
    order = rng.permutation(player.recording.members(cell[0])).astype(np.int32)

    def seconds(contender: Contender) -> Speeds:
        taken = np.full(len(player.recording), np.nan)
        taken[order] = player.play(contender, order, 1).request_s
        return taken

    return [None if isinstance(each, SuffixDecoding) else seconds(each) for each in contenders]


def interval(
    point: float, replicates: NDArray[np.float64], ratio: float = 1.0
) -> list[float] | None:
    """The 95% interval around a point, from replicates of the same figure; None if it has none.

    `ratio` is the point's variance divided by the replicates'.
    """
    count = len(replicates)
    if count < 2 or not math.isfinite(ratio):
        return None
    deviation = math.sqrt(ratio) * float(np.std(replicates, ddof=1))
    half = float(stdtrit(count - 1, 0.975)) * deviation
    return [point - half, point + half]


def variance_ratio(sizes: Sequence[int], concurrency: int, orders: int) -> float:
    """The variance of the mean of `orders` runs over that of a replicate, for workloads by size.

    An order has n entries: q full passes over the m requests of a workload, and r requests more.
    In units of the variance between requests, drawing the requests contributes 1/m, and the choice
    of the r that enter once more, which each order makes anew, a = (r/n)^2 (1/r - 1/m). The ratio
    is (1/m + a/orders) / (1/m + a), times m / (m - 1) because replicates estimate the requests'
    variance from those m alone; of a mix, the largest. One request says nothing about others.
    """
    n = entries(concurrency)
    ratios = []
    for m in sizes:
        if m == 1:
            return math.inf
        r = n % m
        a = (r / n) ** 2 * (1 / r - 1 / m) if r else 0.0
        ratios.append((1 / m + a / orders) / (1 / m + a) * (m / (m - 1)))
    return max(ratios)

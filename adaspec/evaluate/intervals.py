"""Paired bootstrap intervals: resample requests within each workload, run the loop again.

Every contender of a replicate sees the same requests in the same order. An interval is the point
plus or minus Student's t times the replicates' standard deviation, so that a few dozen replicates
suffice; a contender against itself has replicates that do not vary, hence exactly [0, 0].

A replicate runs one order, the point is a mean over several, so replicates scatter more than the
point does wherever an order holds only some of a workload's requests, or some more often than
others: thousands of requests, of which 160 enter, would get intervals 1.7 times too wide. The
deviation is therefore rescaled (as Rao and Wu, 1988, rescale bootstraps of other sampling schemes)
to the point's own scheme, exactly for a mean over entries; `variance_ratio` has the formula. What
else an order changes (who runs beside whom) stays as it is in the replicates, which errs wide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.special import stdtrit

from adaspec.evaluate.options import Cell, Options, Progress
from adaspec.replay.contender import Contender, Player, is_compiled
from adaspec.replay.orders import draw_order, entries, resampled

Interval = tuple[float, float]
Speeds = NDArray[np.float64]

BOOTSTRAP = 7919
"""Keeps replicates' seeds apart from those of the orders."""


def replicate_speeds(
    player: Player,
    contenders: Mapping[Cell, Sequence[Contender]],
    options: Options,
    progress: Progress,
) -> dict[Cell, Speeds]:
    """Tokens per second (replicate, contender) per cell."""
    compiled = all(
        is_compiled(each) and not player.charges(each)
        for several in contenders.values()
        for each in several
    )
    count = options.resamples
    progress("intervals", 0, count)
    # With one job joblib runs everything here, in turn.
    workers = Parallel(
        n_jobs=options.workers,
        prefer="threads" if compiled else "processes",
        return_as="generator",
    )
    replicates = []
    for speeds in workers(
        delayed(_replicate)(player, contenders, options, number) for number in range(count)
    ):
        replicates.append(speeds)
        progress("intervals", len(replicates), count)
    return {cell: np.stack([speeds[cell] for speeds in replicates]) for cell in contenders}


def _replicate(
    player: Player,
    contenders: Mapping[Cell, Sequence[Contender]],
    options: Options,
    number: int,
) -> dict[Cell, Speeds]:
    recording = player.recording
    rng = np.random.default_rng([options.seed, BOOTSTRAP, number])
    members = [recording.members(workload) for workload in recording.workloads]
    pools = dict(zip(recording.workloads, resampled(members, rng), strict=True))
    speeds = {}
    for cell, several in contenders.items():
        workload, concurrency = cell
        chosen = list(pools.values()) if workload is None else [pools[workload]]
        order = draw_order(chosen, concurrency, rng)
        speeds[cell] = np.array(
            [player.play(each, order, concurrency).tokens_per_s for each in several]
        )
    return speeds


def interval(point: float, replicates: NDArray[np.float64], ratio: float = 1.0) -> Interval | None:
    """95% interval around a point from replicates of the same figure.

    `ratio` is the point's variance over the replicates'. None where that is unknown, or there are
    fewer than two replicates.
    """
    count = len(replicates)
    if count < 2 or not math.isfinite(ratio):
        return None
    deviation = math.sqrt(ratio) * float(np.std(replicates, ddof=1))
    half = float(stdtrit(count - 1, 0.975)) * deviation
    return point - half, point + half


def variance_ratio(sizes: Sequence[int], concurrency: int, orders: int) -> float:
    """Variance of the mean of `orders` runs over that of a replicate, workloads of these sizes.

    In units of the variance between requests, with n entries = q whole passes over the m requests
    of a workload and r more: drawing the requests contributes 1/m; which of them enter once more,
    a = (r/n)^2 (1/r - 1/m), anew in each order. So (1/m + a/orders) / (1/m + a), times m / (m - 1)
    because replicates know the requests' variance from those m alone. A mix takes its widest
    workload's. Infinite where a workload has one request: that says nothing of others.
    """
    n = entries(concurrency)
    ratios = []
    for m in sizes:
        r = n % m
        a = (r / n) ** 2 * (1 / r - 1 / m) if r else 0.0
        ratios.append((1 / m + a / orders) / (1 / m + a) * bootstrap_ratio(m))
    return max(ratios)


def bootstrap_ratio(m: int) -> float:
    """By how much resampling m requests understates the variance between them; infinite for one."""
    return m / (m - 1) if m > 1 else math.inf

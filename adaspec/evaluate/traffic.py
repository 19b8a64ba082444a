"""Who comes when: shuffled orders in which requests enter, and the times at which they come.

In an open loop requests come at a rate, in bursts, or at the times that a file has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.matches import Ints
from adaspec.errors import EvaluationError, nearest, shown
from adaspec.evaluate.options import Cell, Options
from adaspec.replay.player import Traffic
from adaspec.replay.recording import Recording

Seconds = NDArray[np.float64]
KINDS = {"poisson": "poisson:RATE", "bursts": "bursts:LOW:HIGH:SECONDS"}


def entries(concurrency: int) -> int:
    """How many requests of each workload enter."""
    return max(160, 3 * concurrency)


def draw_order(pools: list[Ints], concurrency: int, rng: np.random.Generator) -> Ints:
    """Whole shuffled passes over each pool, cut at `entries`, all pools shuffled together."""
    count = entries(concurrency)
    drawn = []
    for pool in pools:
        passes = -(-count // len(pool))
        shuffled = [rng.permutation(pool) for _ in range(passes)]
        drawn.append(np.concatenate(shuffled)[:count])
    return rng.permutation(np.concatenate(drawn)).astype(np.int32)


def pools_of(recording: Recording, workload: str | None) -> list[Ints]:
    """One pool per workload: all of them for the mix, or the named one."""
    names = recording.workloads if workload is None else (workload,)
    return [recording.members(name) for name in names]


def draw_orders(
    recording: Recording, workload: str | None, concurrency: int, seed: int, orders: int
) -> list[Ints]:
    """The orders of one cell of a report; each draws afresh from its own seed."""
    pools = pools_of(recording, workload)
    cell = 0 if workload is None else 1 + recording.workloads.index(workload)
    return [
        draw_order(pools, concurrency, np.random.default_rng([seed, order, cell, concurrency]))
        for order in range(orders)
    ]


def draw_passes(
    recording: Recording, marked: NDArray[np.bool_], concurrency: int, rng: np.random.Generator
) -> Ints:
    """Whole shuffled passes over the marked requests: enough to fill the loop three times."""
    everything = np.concatenate([pool[marked[pool]] for pool in pools_of(recording, None)])
    passes = max(1, -(-3 * concurrency // len(everything)))
    return np.concatenate([rng.permutation(everything) for _ in range(passes)]).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests come."""

    spec: str
    draw: Callable[[int, np.random.Generator], Seconds]
    """(requests, generator) -> when each comes, at most so many."""


def parse_arrivals(spec: str, scale: float = 1.0) -> Arrivals:
    """The arrivals of a spec: `poisson:RATE`, `bursts:LOW:HIGH:SECONDS`, or a file of seconds.

    In bursts the rate is LOW for so many seconds, then HIGH for as many, and so on. `scale`
    multiplies all rates. An `EvaluationError` says what is wrong.
    """
    kind, _, rest = spec.partition(":")
    if kind not in KINDS:
        return Arrivals(spec, _from_file(spec, scale))
    try:
        numbers = [float(each) for each in rest.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) != KINDS[kind].count(":") or not all(0 < each < np.inf for each in numbers):
        raise EvaluationError(f"--arrivals {shown(spec)}: write {KINDS[kind]}, each above 0")
    low, high, seconds = numbers if kind == "bursts" else (numbers[0], numbers[0], 1.0)

    def draw(count: int, rng: np.random.Generator) -> Seconds:
        # A Poisson process of rate 1, stretched: so many requests come in a calm and its burst.
        passed = rng.exponential(size=count).cumsum() / scale
        calm = low * seconds
        whole, left = np.divmod(passed, calm + high * seconds)
        within = np.where(left < calm, left / low, seconds + (left - calm) / high)
        return np.asarray(2 * seconds * whole + within)

    return Arrivals(spec, draw)


def _from_file(spec: str, scale: float) -> Callable[[int, np.random.Generator], Seconds]:
    """What draws the times that a file has, one a line, counted from the first."""
    path = Path(spec)
    if not path.is_file():
        known = nearest(spec.partition(":")[0], KINDS) or f": write {' or '.join(KINDS.values())}"
        raise EvaluationError(f"--arrivals {shown(spec)} is neither a file nor a kind{known}")
    times: list[float] = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        try:
            times.append(float(line))
        except ValueError:
            times.append(np.nan)
        if not np.isfinite(times[-1]) or times[-1] < times[max(len(times) - 2, 0)]:
            raise EvaluationError(
                f"{path}, line {number}: {shown(line)} is no time in seconds at or behind the last"
            )
    if not times:
        raise EvaluationError(f"{path}: holds no times: give one a line, in seconds")
    seconds = (np.array(times) - times[0]) / scale
    return lambda count, rng: seconds[:count]


def traffic_of(
    order: Ints, concurrency: int, arrivals: Arrivals | None, rng: np.random.Generator
) -> Traffic:
    """A run of requests in this order, which come by themselves where it is said how."""
    if arrivals is None:
        return Traffic(order, concurrency)
    comes_s = arrivals.draw(len(order), rng)
    return Traffic(order[: len(comes_s)], concurrency, comes_s)


def runs_of(
    recording: Recording, cell: Cell, options: Options, arrivals: Arrivals | None = None
) -> list[Traffic]:
    """The runs of a cell: each has an order, and arrivals, of its own."""
    orders = draw_orders(recording, *cell, options.seed, options.orders)
    return [
        traffic_of(order, cell[1], arrivals, np.random.default_rng([options.seed, at, cell[1], 1]))
        for at, order in enumerate(orders)
    ]

"""In which order requests enter the loop."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaspec.draft.chains import Ints
from adaspec.replay.recording import Recording


class Traffic(NamedTuple):
    """Who comes in a run: requests in this order, of which so many run at once."""

    order: Ints
    concurrency: int
    comes_s: NDArray[np.float64] | None = None
    """When each comes, in an open loop."""


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

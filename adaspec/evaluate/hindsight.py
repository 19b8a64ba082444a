"""The best settings in hindsight: of the static grids, and of what adapts without learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.evaluate.grids import FIXED, HYBRID, NONE, Setting, settings
from adaspec.evaluate.options import Cell, Options, Progress
from adaspec.policy.adaptive import BUDGET_DEPTH, BatchRange
from adaspec.policy.spec import parse_policy, table_spec
from adaspec.replay.contender import Contender, Player
from adaspec.replay.paths import rule_speeds

Ints = NDArray[np.int32]
Speeds = NDArray[np.float64]

FIXED_BEST, HYBRID_BEST, STATIC_BEST = "fixed:best", "hybrid:best", "static:best"
STATIC_ONE, ADAPTIVE_BEST = "static:one", "adaptive:best"
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Winner:
    """The setting that won under a name, in one cell."""

    contender: Contender
    edge: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """As it would be named on the command line."""
        return self.contender.name


def grid_speeds(
    player: Player,
    grid: Sequence[Setting],
    orders: Mapping[Cell, Sequence[Ints]],
    options: Options,
    progress: Progress,
) -> Speeds:
    """Mean tokens per second (setting, cell) of every setting over the cell's orders."""
    flat = [(order, cell[1]) for cell, drawn in orders.items() for order in drawn]
    rules = np.stack([setting.rule.row() for setting in grid])
    costs = player.cost.constants()
    speeds = np.empty((len(grid), len(flat)))

    def walk(start: int) -> int:
        part = slice(start, start + _CHUNK)
        speeds[part] = rule_speeds(
            player.tape.columns,
            rules[part],
            player.cap,
            [order for order, _ in flat],
            [concurrency for _, concurrency in flat],
            costs,
        )
        return len(rules[part])

    done = 0
    progress("static grids", 0, len(grid))
    pool = ThreadPoolExecutor(options.workers)
    try:
        walks = [pool.submit(walk, start) for start in range(0, len(grid), _CHUNK)]
        for finished in as_completed(walks):
            done += finished.result()
            progress("static grids", done, len(grid))
    finally:
        # Otherwise whoever interrupts waits for the whole grid.
        pool.shutdown(cancel_futures=True)
    sizes = [len(drawn) for drawn in orders.values()]
    ends = np.cumsum(sizes)
    return np.stack(
        [speeds[:, end - size : end].mean(axis=1) for size, end in zip(sizes, ends, strict=True)],
        axis=1,
    )


def static_winners(
    grid: Sequence[Setting], speeds: Speeds, order: Sequence[Cell]
) -> dict[Cell, dict[str, Winner]]:
    """Per cell the winners of each family, of all, and of all loads together."""
    families = {
        FIXED_BEST: [i for i, s in enumerate(grid) if s.family in (FIXED, NONE)],
        HYBRID_BEST: [i for i, s in enumerate(grid) if s.family == HYBRID],
        STATIC_BEST: list(range(len(grid))),
    }
    found: dict[Cell, dict[str, Winner]] = {cell: {} for cell in order}
    for at, cell in enumerate(order):
        for name, members in families.items():
            best = members[int(np.argmax(speeds[members, at]))]
            found[cell][name] = Winner(grid[best].policy(), grid[best].edge)
    for workload in {name for name, _ in order}:
        same = [at for at, cell in enumerate(order) if cell[0] == workload]
        one = grid[int(np.argmax(np.log(speeds[:, same]).mean(axis=1)))]
        for at in same:
            found[order[at]][STATIC_ONE] = Winner(one.policy(), one.edge)
    return found


def adaptive_winners(
    player: Player,
    grid: Sequence[Setting],
    speeds: Speeds,
    orders: Mapping[Cell, Sequence[Ints]],
    progress: Progress,
) -> dict[Cell, Winner]:
    """Per cell the best of budget:K, of the best batch table, and of the usual ema setting."""
    cap = player.tape.neural_cap
    budgets = [parse_policy(f"budget:{k}") for k in range(2, min(cap, BUDGET_DEPTH) + 1)]
    ema = parse_policy("ema")
    found: dict[Cell, Winner] = {}
    cells = list(orders)
    for done, cell in enumerate(cells):
        progress("adaptive baselines", done, len(cells))
        table = parse_policy(best_table(grid, speeds, cells, cell[0]))
        best, best_speed = table, _speed(player, table, orders[cell], cell)
        for policy in (*budgets, ema):
            if _replays(player, policy):
                speed = _speed(player, policy, orders[cell], cell)
                if speed > best_speed:
                    best, best_speed = policy, speed
        edge: tuple[str, ...] = ()
        if best in (budgets[:1] + budgets[-1:]):
            edge = (f"K={best.name.partition(':')[2]}",)
        found[cell] = Winner(best, edge)
    progress("adaptive baselines", len(cells), len(cells))
    return found


def best_table(
    grid: Sequence[Setting], speeds: Speeds, cells: Sequence[Cell], workload: str | None
) -> str:
    """The batch table that takes, from each concurrency on, the neural length best there."""
    lengths = {
        setting.rule.neural_len: at
        for at, setting in enumerate(grid)
        if setting.spec.startswith("fixed:neural:") or setting.spec == "none"
    }
    best = {
        concurrency: max(lengths, key=lambda k: speeds[lengths[k], at])
        for at, (name, concurrency) in enumerate(cells)
        if name == workload
    }
    sizes = sorted(best)
    ranges = []
    for at, size in enumerate(sizes):
        low = 1 if at == 0 else size
        high = sizes[at + 1] - 1 if at + 1 < len(sizes) else None
        ranges.append(BatchRange(low, high, best[size]))
    return table_spec(tuple(ranges))


def grid_of(player: Player) -> list[Setting]:
    """Every static setting that the player's tape can replay."""
    return settings(player.tape)


def _replays(player: Player, policy: Contender) -> bool:
    return player.refusal(policy) is None


def _speed(player: Player, policy: Contender, orders: Sequence[Ints], cell: Cell) -> float:
    return float(np.mean([player.play(policy, order, cell[1]).tokens_per_s for order in orders]))

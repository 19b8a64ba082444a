"""The best settings in hindsight, of static grids and of policies that adapt without learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.evaluate.grids import (
    GRIDS,
    MEMORY_GRIDS,
    Grid,
    Lines,
    Setting,
    Speeds,
    grid_of,
    grow,
)
from adaspec.evaluate.options import Cell, Options, Progress, silent
from adaspec.policy.spec import BUDGET, parse_policy
from adaspec.policy.static import StaticRule
from adaspec.replay.paths import rule_speeds
from adaspec.replay.player import Contender, Player
from adaspec.replay.recording import Recording

Ints = NDArray[np.int32]

FIXED_BEST, HYBRID_BEST, STATIC_BEST = "fixed:best", "hybrid:best", "static:best"
STATIC_ONE, ADAPTIVE_BEST, STATIC_MEMORY = "static:one", "adaptive:best", "static:memory"
VLLM_BEST = "vllm:best"
_FAMILIES = {
    FIXED_BEST: ("none", "fixed:ngram", "fixed:neural"),
    HYBRID_BEST: ("hybrid",),
    STATIC_BEST: None,
}
"""Of which kinds of rules the best are shown; None: of all."""
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Winner:
    """The setting that won under a name, in one cell."""

    contender: Contender
    """It is named as on the command line."""
    edge: tuple[str, ...] = ()
    """The parameters whose value is on the edge of the grid."""


def search(
    player: Player,
    orders: Mapping[Cell, Sequence[Ints]],
    options: Options,
    progress: Progress,
    grids: Sequence[Grid] = GRIDS,
    known: Sequence[Recording] = (),
) -> tuple[list[Setting], Speeds]:
    """All static settings tried, grown around the winners, and mean tokens per second by cell.

    Each grid also grows around its own best, so that none is a worse rival beside others. `known`
    has a recording of every order with the earlier answers that its requests know.
    """
    entering = [order for drawn in orders.values() for order in drawn]
    concurrency = [cell[1] for cell, drawn in orders.items() for _ in drawn]
    ends = np.cumsum([len(drawn) for drawn in orders.values()])[:-1]
    plays = [(player.recording.columns, entering, concurrency)]
    if known:
        loads = zip(known, concurrency, strict=True)
        plays = [(each.columns, [np.arange(len(each), dtype=np.int32)], [n]) for each, n in loads]

    def walk(rules: Sequence[StaticRule]) -> Speeds:
        cap, cost, is_async = player.cap, player.cost, player.is_async
        parts = [
            rule_speeds(columns, rules, cap, entries, loads, cost, is_async)
            for columns, entries, loads in plays
        ]
        return np.concatenate(parts, axis=1)

    def run(settings: Sequence[Setting]) -> Speeds:
        speeds = _in_parallel(walk, settings, options, progress)
        return np.stack([part.mean(axis=1) for part in np.split(speeds, ends, axis=1)], axis=1)

    def winners(grid: Sequence[Setting], speeds: Speeds) -> list[int]:
        best_of_cells = _winning(grid, speeds, list(orders)).values()
        found = [at for best in best_of_cells for at in best.values()]
        for head in {setting.grid.head for setting in grid}:
            members = np.array([at for at, each in enumerate(grid) if each.grid.head == head])
            found += members[speeds[members].argmax(axis=0)].tolist()
        return found

    return grow(grid_of(player.recording, grids), run, winners, player.recording, player.cap)


def _in_parallel(
    walk: Callable[[Sequence[StaticRule]], Speeds],
    grid: Sequence[Setting],
    options: Options,
    progress: Progress,
) -> Speeds:
    """The speeds that `walk` computes for every setting, by chunks of settings."""
    rules = [setting.rule for setting in grid]
    chunks = [rules[start : start + _CHUNK] for start in range(0, len(rules), _CHUNK)]
    walked: list[Speeds] = []
    progress("static grids", 0, len(grid))
    pool = ThreadPoolExecutor(options.workers)
    try:
        for speeds in pool.map(walk, chunks):
            walked.append(speeds)
            progress("static grids", sum(map(len, walked)), len(grid))
    finally:
        # Without this, a user who interrupts would wait for the rest of the grid.
        pool.shutdown(cancel_futures=True)
    return np.concatenate(walked)


def static_winners(
    grid: Sequence[Setting], speeds: Speeds, order: Sequence[Cell], cap: int
) -> dict[Cell, dict[str, Winner]]:
    """Per cell, the winner of each family, of all settings, and over all loads together."""
    lines = Lines(grid)
    return {
        cell: {
            name: Winner(grid[at].policy(), lines.edge(grid[at], cap)) for name, at in best.items()
        }
        for cell, best in _winning(grid, speeds, order).items()
    }


def _winning(
    grid: Sequence[Setting], speeds: Speeds, order: Sequence[Cell]
) -> dict[Cell, dict[str, int]]:
    """Per cell, the place in the grid of every winner."""
    families = {
        name: [at for at, each in enumerate(grid) if heads is None or each.grid.head in heads]
        for name, heads in _FAMILIES.items()
    }
    winning: dict[Cell, dict[str, int]] = {
        cell: {
            name: members[int(np.argmax(speeds[members, column]))]
            for name, members in families.items()
            if members
        }
        for column, cell in enumerate(order)
    }
    for workload in {name for name, _ in order}:
        same = [column for column, cell in enumerate(order) if cell[0] == workload]
        one = int(np.argmax(np.log(speeds[:, same]).mean(axis=1)))
        for column in same:
            winning[order[column]][STATIC_ONE] = one
    return winning


def memory_winners(
    player: Player,
    orders: Mapping[Cell, Sequence[Ints]],
    options: Options,
    progress: Progress,
) -> tuple[dict[Cell, Winner], int]:
    """Per cell, the best setting that also copies from earlier answers; how many were tried."""
    tried: set[str] = set()
    winners: dict[Cell, Winner] = {}
    for done, (cell, drawn) in enumerate(orders.items()):
        progress("static grids with memory", done, len(orders))
        recordings = [player.remember(order, cell[1]) for order in drawn]
        known = [recording for recording in recordings if recording is not None]
        grid, speeds = search(player, {cell: drawn}, options, silent, MEMORY_GRIDS, known)
        winners[cell] = static_winners(grid, speeds, [cell], player.cap)[cell][STATIC_BEST]
        tried |= {setting.spec for setting in grid}
    progress("static grids with memory", len(orders), len(orders))
    return winners, len(tried)


def _replayable(player: Player, specs: Sequence[str]) -> list[Contender]:
    """The policies of these specs for which the recording holds what they draft."""
    return [policy for policy in map(parse_policy, specs) if player.refusal(policy) is None]


def rival_winners(
    player: Player,
    orders: Mapping[Cell, Sequence[Ints]],
    fixed: Mapping[Cell, Winner],
    progress: Progress,
) -> dict[Cell, dict[str, Winner]]:
    """Per cell, the best that adapts (every budget:K, and ema), and the best that vLLM offers.

    vLLM offers budgets, and fixed drafts: `fixed` has the best of those in each cell.
    """
    deepest = min(player.recording.neural_cap, BUDGET.high)
    specs = [f"budget:{k}" for k in range(1, deepest + 1)]
    budgets = [Winner(each) for each in _replayable(player, specs)]
    if budgets and len(budgets) < BUDGET.high:
        budgets[-1] = Winner(budgets[-1].contender, (f"K={len(budgets)}",))
    adaptive = [*budgets, *map(Winner, _replayable(player, ["ema"]))]
    winners: dict[Cell, dict[str, Winner]] = {}
    for done, (cell, drawn) in enumerate(orders.items()):
        progress("adaptive baselines", done, len(orders))
        tried = [fixed[cell], *adaptive]
        speeds = [_speed(player, drawn, cell[1], each.contender) for each in tried]
        offered = speeds[: 1 + len(budgets)]
        winners[cell] = {VLLM_BEST: tried[int(np.argmax(offered))]}
        if adaptive:
            winners[cell][ADAPTIVE_BEST] = adaptive[int(np.argmax(speeds[1:]))]
    progress("adaptive baselines", len(orders), len(orders))
    return winners


def _speed(player: Player, orders: Sequence[Ints], concurrency: int, policy: Contender) -> float:
    runs = [player.play(policy, order, concurrency) for order in orders]
    return float(np.mean([run.tokens_per_s for run in runs]))

"""The best setting of every method at every load, and what speed-up the evaluator expects of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adaspec.bench.engine import entrants
from adaspec.cost.model import CostModel
from adaspec.errors import AdaspecError
from adaspec.evaluate.closed_loop import ALL
from adaspec.evaluate.hindsight import best_table, grid_of, grid_speeds
from adaspec.evaluate.options import Cell, Options, Progress
from adaspec.evaluate.selection import Wanted, select
from adaspec.replay.contender import Player, parse_contender
from adaspec.replay.orders import draw_orders
from adaspec.replay.tape import build_tape

VLLM_LENGTHS = (3, 5, 8, 12, 16)
VLLM_MATCHES = ((1, 3), (2, 5), (3, 7), (5, 10))
"""vLLM's own look-up: draft lengths, and the shortest and longest match."""


class Settings:
    """What to run where no trace was given: usual settings, and no expectation."""

    def ranked(self, method: str, concurrency: int) -> list[str]:
        """Specs of a method, best first, at most two."""
        return list(entrants.WITHOUT_TRACES[method])

    def expected(self, spec: str | None, workload: str, concurrency: int) -> float | None:
        """Throughput over no speculation; None where it is not known."""
        return None


@dataclass(slots=True)
class BestInHindsight(Settings):
    """Settings ranked over a trace, closed loop, prefill charged, on the mix of its workloads."""

    player: Player
    options: Options
    ranks: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    _speeds: dict[tuple[str, str, int], float | None] = field(default_factory=dict)

    def ranked(self, method: str, concurrency: int) -> list[str]:
        """Best first."""
        return self.ranks[method, concurrency][:2]

    def expected(self, spec: str | None, workload: str, concurrency: int) -> float | None:
        """By replay; None for what a trace cannot replay, or a workload that it does not hold."""
        if spec is None or (workload != ALL and workload not in self.player.tape.workloads):
            return None
        mine = self._speed(spec, workload, concurrency)
        none = self._speed(entrants.NONE, workload, concurrency)
        return None if mine is None or none is None else mine / none

    def _speed(self, spec: str, workload: str, concurrency: int) -> float | None:
        key = (spec, workload, concurrency)
        if key not in self._speeds:
            self._speeds[key] = self._play(*key)
        return self._speeds[key]

    def _play(self, spec: str, workload: str, concurrency: int) -> float | None:
        try:
            contender = parse_contender(spec)
        except AdaspecError:
            return None
        if self.player.refusal(contender) is not None:
            return None
        name = None if workload == ALL else workload
        drawn = draw_orders(
            self.player.tape, name, concurrency, self.options.seed, self.options.orders
        )
        runs = [self.player.play(contender, order, concurrency) for order in drawn]
        return float(np.mean([run.tokens_per_s for run in runs]))


def rank_settings(
    traces: Sequence[Path],
    trained: frozenset[str],
    cost: CostModel,
    concurrency: Sequence[int],
    seed: int,
    report: Progress,
) -> BestInHindsight:
    """Every method's settings, ranked at each load over what no policy was trained on."""
    selection = select(traces, Wanted(seen=trained))
    options = Options(concurrency=tuple(concurrency), seed=seed, prefill=True)
    tape = build_tape(selection.requests, selection.neural_cap).with_prefill(cost)
    found = BestInHindsight(Player(tape, cost, options.cap), options)
    grid = grid_of(found.player)
    cells: list[Cell] = [(None, each) for each in concurrency]
    orders = {cell: draw_orders(tape, None, cell[1], seed, options.orders) for cell in cells}
    speeds = grid_speeds(found.player, grid, orders, options, report)
    heads = {entrants.NEURAL: "fixed:neural:", entrants.STATIC: "hybrid-splice:"}
    for at, (_, load) in enumerate(cells):
        found.ranks[entrants.NONE, load] = [entrants.NONE]
        for method, head in heads.items():
            members = [i for i, setting in enumerate(grid) if setting.spec.startswith(head)]
            members.sort(key=lambda i: -speeds[i, at])
            found.ranks[method, load] = [grid[i].spec for i in members[:2]]
        looked = [
            f"fixed:ngram-vllm:{k}:{low}:{high}" for k in VLLM_LENGTHS for low, high in VLLM_MATCHES
        ]
        looked.sort(key=lambda spec: -(found._speed(spec, ALL, load) or 0.0))
        found.ranks[entrants.NGRAM, load] = looked[:2]
        found.ranks[entrants.TABLE, load] = (
            [best_table(grid, speeds, cells, None)] if tape.neural_cap else []
        )
        report("settings by load", at + 1, len(cells))
    return found

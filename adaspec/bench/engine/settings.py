"""The best setting of every method at every load, and what speed-up the evaluator expects of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.bench.engine import entrants
from adaspec.bench.engine.traffic import Call
from adaspec.cost.model import CostModel
from adaspec.errors import AdaspecError
from adaspec.evaluate.closed_loop import ALL
from adaspec.evaluate.hindsight import best_table, grid_of, grid_speeds
from adaspec.evaluate.options import Cell, Options, Progress
from adaspec.evaluate.selection import Wanted, select
from adaspec.replay.contender import Player, parse_contender
from adaspec.replay.orders import draw_orders
from adaspec.replay.result import Result
from adaspec.replay.tape import build_tape
from adaspec.trace.schema import Request

Rounds = Sequence[Sequence[Call]]

VLLM_LENGTHS = (3, 5, 8, 12, 16)
VLLM_MATCHES = ((1, 3), (2, 5), (3, 7), (5, 10))
"""vLLM's own look-up: draft lengths, and the shortest and longest match."""

_COLUMNS = ("output_tokens", "neural_accepted", "drafted_tokens", "confidences", "ngram_accepted")
"""What a request's trace holds per position."""


class Settings:
    """What to run where no trace was given: usual settings, and no expectation."""

    def ranked(self, method: str, concurrency: int) -> list[str]:
        """Specs of a method, best first, at most two."""
        return list(entrants.WITHOUT_TRACES[method])

    def expected(
        self, spec: str | None, workload: str, concurrency: int, rounds: Rounds = ()
    ) -> float | None:
        """Throughput over no speculation in these rounds; None where it is not known."""
        return None


@dataclass(slots=True)
class BestInHindsight(Settings):
    """Settings ranked over a trace, closed loop, prefill charged, on the mix of its workloads.

    Answers are as long as in the benchmark, and where the trace holds its prompts, what is
    expected of a round is what its very requests would do.
    """

    player: Player
    options: Options
    prompts: Mapping[tuple[int, ...], int]
    """Where on the tape a prompt's request is."""
    ranks: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def ranked(self, method: str, concurrency: int) -> list[str]:
        """Best first."""
        return self.ranks[method, concurrency][:2]

    def expected(
        self, spec: str | None, workload: str, concurrency: int, rounds: Rounds = ()
    ) -> float | None:
        """By replay; None for what a trace cannot replay, or a workload that it does not hold.

        Tokens and seconds are summed over rounds, as they are where they were measured.
        """
        if spec is None or (workload != ALL and workload not in self.player.tape.workloads):
            return None
        orders = self._very_orders(rounds) or self._drawn_orders(workload, concurrency)
        mine = self._play(spec, concurrency, orders)
        none = self._play(entrants.NONE, concurrency, orders)
        return _pooled(mine) / _pooled(none) if mine else None

    def speed(self, spec: str, concurrency: int) -> float:
        """Tokens per second on the mix; 0 where the trace cannot replay it."""
        found = self._play(spec, concurrency, self._drawn_orders(ALL, concurrency))
        return _pooled(found) if found else 0.0

    def _very_orders(self, rounds: Rounds) -> list[NDArray[np.int32]]:
        """The requests of every round; none where the trace lacks any of them."""
        found = [[self.prompts.get(call.prompt, -1) for call in calls] for calls in rounds]
        if any(at < 0 for each in found for at in each):
            return []
        return [np.array(each, np.int32) for each in found]

    def _drawn_orders(self, workload: str, concurrency: int) -> list[NDArray[np.int32]]:
        name = None if workload == ALL else workload
        options = self.options
        return draw_orders(self.player.tape, name, concurrency, options.seed, options.orders)

    def _play(
        self, spec: str, concurrency: int, orders: Sequence[NDArray[np.int32]]
    ) -> list[Result]:
        """A run of each order; nothing where the trace cannot replay the policy."""
        try:
            contender = parse_contender(spec)
        except AdaspecError:
            return []
        if self.player.refusal(contender) is not None:
            return []
        return self.player.play_rounds(contender, orders, concurrency)


def _pooled(runs: Sequence[Result]) -> float:
    """Tokens per second of all runs together."""
    return sum(run.tokens for run in runs) / sum(run.time_s for run in runs)


def rank_settings(
    traces: Sequence[Path],
    trained: frozenset[str],
    cost: CostModel,
    concurrency: Sequence[int],
    max_tokens: int,
    seed: int,
    report: Progress,
) -> BestInHindsight:
    """Every method's settings, ranked at each load over what no policy was trained on."""
    selection = select(traces, Wanted(seen=trained))
    requests = [shortened(request, max(max_tokens, 2)) for request in selection.requests]
    options = Options(concurrency=tuple(concurrency), seed=seed, prefill=True)
    tape = build_tape(requests, selection.neural_cap).with_prefill(cost)
    places = {tuple(request.prompt_tokens.tolist()): at for at, request in enumerate(requests)}
    found = BestInHindsight(Player(tape, cost, options.cap), options, places)
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
        looked.sort(key=lambda spec: -found.speed(spec, load))
        found.ranks[entrants.NGRAM, load] = looked[:2]
        found.ranks[entrants.TABLE, load] = (
            [best_table(grid, speeds, cells, None)] if tape.neural_cap else []
        )
        report("settings by load", at + 1, len(cells))
    return found


def shortened(request: Request, tokens: int) -> Request:
    """A request whose answer was cut off after so many tokens."""
    columns: dict[str, Any] = {
        name: None if column is None else column[:tokens]
        for name in _COLUMNS
        for column in (getattr(request, name),)
    }
    return replace(request, **columns)

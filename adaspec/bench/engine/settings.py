"""At which setting each method runs at each load, and what speed-up the evaluator expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.bench.engine.client import Call
from adaspec.bench.engine.methods import (
    ADASPEC,
    NEURAL,
    NGRAM,
    NONE,
    STATIC,
    SUFFIX,
    TABLE,
    BenchmarkOptions,
    Candidate,
    Drafter,
    adaspec_candidate,
    candidate_of,
    suffix_candidates,
)
from adaspec.cost.model import CostModel
from adaspec.errors import AdaspecError
from adaspec.evaluate.hindsight import best_table, grid_of, grid_speeds
from adaspec.evaluate.options import ALL, Cell, Options, Progress
from adaspec.evaluate.selection import Wanted, select
from adaspec.replay.contender import Player, parse_contender
from adaspec.replay.orders import draw_orders
from adaspec.replay.result import Result
from adaspec.replay.tape import build_tape
from adaspec.trace.schema import Request

Rounds = Sequence[Sequence[Call]]
Orders = Sequence[NDArray[np.int32]]

USUAL = {
    NONE: ("none",),
    NGRAM: ("fixed:ngram-vllm:5:2:5",),
    NEURAL: ("fixed:neural:3",),
    TABLE: ("batch-table:1-8=3,9-=1",),
    STATIC: ("hybrid-splice:4:20:2:2:5",),
}
"""What is run where no trace tells what would be best."""
VLLM_LENGTHS = (3, 5, 8, 12, 16)
VLLM_MATCHES = ((1, 3), (2, 5), (3, 7), (5, 10))
"""vLLM's own look-up: draft lengths, and the shortest and longest match."""

_COLUMNS = ("output_tokens", "neural_accepted", "drafted_tokens", "confidences", "ngram_accepted")
"""What a request's trace holds per position."""


class UsualSettings:
    """Usual settings without an expectation, for a benchmark without a trace."""

    def ranked(self, method: str, concurrency: int) -> list[str]:
        """Specs of a method, best first, at most two."""
        return list(USUAL[method])

    def expected(
        self, spec: str | None, workload: str, concurrency: int, rounds: Rounds = ()
    ) -> float | None:
        """Throughput over no speculation in these rounds; None where it is not known."""
        return None


@dataclass(slots=True)
class RankedSettings(UsualSettings):
    """Settings ranked over a trace: closed loop, prefill charged, on the mix of its workloads.

    Answers are as long as in the benchmark. Where the trace holds all prompts of a round, its
    expected speed-up is that of exactly these requests.
    """

    player: Player
    options: Options
    prompts: Mapping[tuple[int, ...], int]
    """The index on the tape of each prompt's request."""
    ranks: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def ranked(self, method: str, concurrency: int) -> list[str]:
        """Best first."""
        return self.ranks[method, concurrency][:2]

    def expected(
        self, spec: str | None, workload: str, concurrency: int, rounds: Rounds = ()
    ) -> float | None:
        """By replay; None for what a trace cannot replay, or a workload that it does not hold.

        Tokens and seconds are summed over rounds, as they are where they are measured.
        """
        if spec is None or (workload != ALL and workload not in self.player.tape.workloads):
            return None
        orders = self._orders_of(rounds) or self._drawn_orders(workload, concurrency)
        runs = self._play(spec, concurrency, orders)
        plain = self._play(NONE, concurrency, orders)
        return _tokens_per_s(runs) / _tokens_per_s(plain) if runs else None

    def speed(self, spec: str, concurrency: int) -> float:
        """Tokens per second on the mix; 0 where the trace cannot replay it."""
        runs = self._play(spec, concurrency, self._drawn_orders(ALL, concurrency))
        return _tokens_per_s(runs) if runs else 0.0

    def _orders_of(self, rounds: Rounds) -> Orders:
        """The requests of every round; none where the trace lacks any of them."""
        found = [[self.prompts.get(call.prompt, -1) for call in calls] for calls in rounds]
        if any(index < 0 for each in found for index in each):
            return []
        return [np.array(each, np.int32) for each in found]

    def _drawn_orders(self, workload: str, concurrency: int) -> Orders:
        name = None if workload == ALL else workload
        options = self.options
        return draw_orders(self.player.tape, name, concurrency, options.seed, options.orders)

    def _play(self, spec: str, concurrency: int, orders: Orders) -> list[Result]:
        """A run of each order; nothing where the trace cannot replay the policy."""
        try:
            contender = parse_contender(spec)
        except AdaspecError:
            return []
        if self.player.refusal(contender) is not None:
            return []
        return self.player.play_rounds(contender, orders, concurrency)


def _tokens_per_s(runs: Sequence[Result]) -> float:
    """Of all runs together."""
    return sum(run.tokens for run in runs) / sum(run.time_s for run in runs)


def rank_settings(
    traces: Sequence[Path],
    trained: frozenset[str],
    cost: CostModel,
    concurrency: Sequence[int],
    max_tokens: int,
    seed: int,
    report: Progress,
) -> RankedSettings:
    """Every method's settings, ranked at each load over requests that no policy was trained on."""
    selection = select(traces, Wanted(seen=trained))
    requests = [shortened(request, max(max_tokens, 2)) for request in selection.requests]
    options = Options(concurrency=tuple(concurrency), seed=seed, prefill=True)
    tape = build_tape(requests, selection.neural_cap).with_prefill(cost)
    prompts = {tuple(request.prompt_tokens.tolist()): at for at, request in enumerate(requests)}
    found = RankedSettings(Player(tape, cost, options.cap), options, prompts)
    grid = grid_of(found.player)
    cells: list[Cell] = [(None, each) for each in concurrency]
    orders = {cell: draw_orders(tape, None, cell[1], seed, options.orders) for cell in cells}
    speeds = grid_speeds(found.player, grid, orders, options, report)
    ngram = [
        f"fixed:ngram-vllm:{k}:{low}:{high}" for k in VLLM_LENGTHS for low, high in VLLM_MATCHES
    ]
    for at, (_, load) in enumerate(cells):
        ranks = {
            NONE: [NONE],
            NGRAM: sorted(ngram, key=lambda spec: -found.speed(spec, load))[:2],
            TABLE: [best_table(grid, speeds, cells, None)] if tape.neural_cap else [],
        }
        for method, head in ((NEURAL, "fixed:neural:"), (STATIC, "hybrid-splice:")):
            members = [i for i, setting in enumerate(grid) if setting.spec.startswith(head)]
            members.sort(key=lambda i: -speeds[i, at])
            ranks[method] = [grid[i].spec for i in members[:2]]
        found.ranks |= {(method, load): specs for method, specs in ranks.items()}
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


def candidates_at(
    concurrency: int,
    options: BenchmarkOptions,
    absent: Mapping[str, str],
    settings: UsualSettings,
    drafter: Drafter | None,
) -> list[Candidate]:
    """Every method at its best settings at a load; no speculation is always there, and first."""
    found: list[Candidate] = []
    for method in (NONE, *(name for name in options.methods if name != NONE)):
        if method in absent:
            continue
        if method == SUFFIX:
            found += suffix_candidates()
        elif method == ADASPEC:
            found += [
                adaspec_candidate(policy, drafter, options.cost, at > 0)
                for at, policy in enumerate(options.policies or (None,))
            ]
        else:
            found += [
                candidate_of(method, spec, drafter, at > 0)
                for at, spec in enumerate(settings.ranked(method, concurrency))
            ]
    return found

"""The setting at which each method runs at each load, and the speed-up that is expected of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    BenchmarkOptions,
    Candidate,
    Drafter,
    adaspec_candidate,
    candidate_of,
)
from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.errors import AdaspecError
from adaspec.evaluate.hindsight import search
from adaspec.evaluate.options import ALL, Cell, Options, Progress
from adaspec.evaluate.selection import Wanted, select
from adaspec.replay.contender import parse_contender
from adaspec.replay.orders import draw_orders
from adaspec.replay.player import Player
from adaspec.replay.recording import build_recording
from adaspec.replay.result import Result
from adaspec.trace.schema import Request

Rounds = Sequence[Sequence[Call]]
Orders = Sequence[NDArray[np.int32]]

USUAL = {
    NONE: ("none",),
    NGRAM: ("fixed:ngram-vllm:5:2:5",),
    NEURAL: ("fixed:neural:3",),
    STATIC: ("hybrid-splice:4:20:2:2:5",),
    SUFFIX: ("suffix", "suffix:0.5"),
}
"""Settings where no trace tells what would be best."""
VLLM_LENGTHS = (3, 5, 8, 12, 16)
VLLM_MATCHES = ((1, 3), (2, 5), (3, 7), (5, 10))
"""vLLM's own look-up: draft lengths, and the shortest and longest match."""


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

    Answers are as long as in the benchmark. Where the trace holds all prompts of a round, exactly
    these requests are replayed for its expected speed-up.
    """

    player: Player
    options: Options
    prompts: Mapping[tuple[int, ...], int]
    """Each prompt's place among the recorded requests."""
    ranks: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def ranked(self, method: str, concurrency: int) -> list[str]:
        """Best first."""
        return self.ranks[method, concurrency][:2]

    def expected(
        self, spec: str | None, workload: str, concurrency: int, rounds: Rounds = ()
    ) -> float | None:
        """By replay; None for what a trace cannot replay, or a workload that it does not hold.

        Tokens and seconds are summed over rounds, as those measured are.
        """
        if spec is None or (workload != ALL and workload not in self.player.recording.workloads):
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
        if not all(call.prompt in self.prompts for calls in rounds for call in calls):
            return []
        return [
            np.array([self.prompts[call.prompt] for call in calls], np.int32) for calls in rounds
        ]

    def _drawn_orders(self, workload: str, concurrency: int) -> Orders:
        name = None if workload == ALL else workload
        options = self.options
        return draw_orders(self.player.recording, name, concurrency, options.seed, options.orders)

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
    """The throughput of all runs together."""
    return sum(run.tokens for run in runs) / sum(run.time_s for run in runs)


def find_settings(
    options: BenchmarkOptions, trained: frozenset[str], report: Progress
) -> UsualSettings:
    """Every method's settings, ranked at each load over requests that no policy was trained on."""
    if not options.traces:
        return UsualSettings()
    cost, concurrency = load_cost(options.cost or DEFAULT), options.concurrency
    selection = select(options.traces, Wanted(seen=trained))
    requests = [shortened(request, max(options.max_tokens, 2)) for request in selection.requests]
    replayed = Options(concurrency=concurrency, seed=options.seed)
    recording = build_recording(requests, selection.neural_cap).with_prefill(cost)
    prompts = {tuple(each.prompt_tokens.tolist()): place for place, each in enumerate(requests)}
    settings = RankedSettings(Player(recording, cost, replayed.cap), replayed, prompts)
    cells: list[Cell] = [(None, each) for each in concurrency]
    orders = {
        cell: draw_orders(recording, None, cell[1], options.seed, replayed.orders) for cell in cells
    }
    grid, speeds = search(settings.player, orders, replayed, report)
    ngram = [
        f"fixed:ngram-vllm:{k}:{low}:{high}" for k in VLLM_LENGTHS for low, high in VLLM_MATCHES
    ]
    for column, load in enumerate(concurrency):
        settings.ranks[NONE, load] = [NONE]
        settings.ranks[NGRAM, load] = sorted(ngram, key=lambda spec: -settings.speed(spec, load))
        settings.ranks[SUFFIX, load] = list(USUAL[SUFFIX])
        ranked = [grid[place].spec for place in np.argsort(-speeds[:, column], kind="stable")]
        for method, prefix in ((NEURAL, "fixed:neural:"), (STATIC, "hybrid-splice:")):
            settings.ranks[method, load] = [spec for spec in ranked if spec.startswith(prefix)]
        report("settings by load", column + 1, len(cells))
    return settings


def shortened(request: Request, tokens: int) -> Request:
    """A request whose answer was cut off after so many tokens."""
    names = ("output_tokens", "neural_accepted", "drafted_tokens", "confidences", "ngram_accepted")
    cut: dict[str, Any] = {
        name: column[:tokens] for name in names if (column := getattr(request, name)) is not None
    }
    return replace(request, **cut)


def candidates_at(
    concurrency: int,
    options: BenchmarkOptions,
    absent: Mapping[str, str],
    settings: UsualSettings,
    drafter: Drafter | None,
) -> list[Candidate]:
    """Every method at its best settings at a load; no speculation is always there, and first."""
    candidates: list[Candidate] = []
    for method in (NONE, *(name for name in options.methods if name != NONE)):
        if method in absent:
            continue
        if method == ADASPEC:
            found = [
                adaspec_candidate(policy, drafter, options.cost)
                for policy in options.policies or (None,)
            ]
        else:
            specs = settings.ranked(method, concurrency)
            found = [candidate_of(method, spec, drafter) for spec in specs]
        candidates += [replace(each, runner_up=rank > 0) for rank, each in enumerate(found)]
    return candidates

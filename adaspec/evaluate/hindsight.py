"""The rows of a report that are the best of several settings in hindsight, and how they are found.

From each of the best starts, one number of the spec after another takes the fastest value of its
ladder, until none changes. Then all combinations of neighbouring values around the best are tried,
and again around the best of those, until there is none better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from adaspec.draft.matches import LONGEST_MATCH
from adaspec.evaluate.options import Cell, Options, Progress
from adaspec.evaluate.traffic import draw_orders
from adaspec.policy.static import LONGEST_BUDGET, Baseline, StaticPolicy, parse_policy, rule_spec
from adaspec.replay.loop import Result
from adaspec.replay.player import Contender, Player, Traffic
from adaspec.replay.rules import ByLoad

VLLM_BEST, TRTLLM, ONLINE, STATIC_BEST = "vllm:best", "trtllm:K", "online:K", "static:best"
STATIC_BY_LOAD = "static:by-load"
"""The row of an open loop that has a rule for each load, which nobody can run."""
_FIXED = ("none", "fixed:ngram", "fixed:neural")
BEST_OF = {
    VLLM_BEST: (*_FIXED, "budget", "online"),
    TRTLLM: ("trtllm",),
    ONLINE: ("online",),
    STATIC_BEST: (*_FIXED, "hybrid", "hybrid-splice"),
}
"""The rows, and the kinds of settings of which each shows the fastest, for every cell anew."""

Values = tuple[int, ...]
Trials = Callable[[Baseline], Sequence[Result]]

NEURAL = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
COPIED = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40, 48)
LEARNED = (4, 8, 16, 32)
MATCHES = (1, 2, 3, 4, 5, 6, 8, 10, 14, 20, LONGEST_MATCH)
NO_MATCH = LONGEST_MATCH + 1
LOADS_OF_RULES = (1, 4, 16, 64, 256)
CLIMBED = 4
"""The search climbs from so many starts, the fastest."""


def hindsight(
    player: Player,
    runs: Mapping[Cell, Sequence[Traffic]],
    options: Options,
    progress: Progress,
) -> tuple[dict[Cell, dict[str, Contender]], int]:
    """The winner of each row of `BEST_OF` in each cell, and how many settings were run in all."""
    known, tried = families(player.recording.neural_cap), 0

    def search(cell: Cell) -> dict[str, Fastest]:
        tried = player.trials(runs[cell])

        def score_of(policy: Baseline) -> float:
            return float(np.mean([options.score(run) for run in tried(policy)]))

        return {family.head: fastest(family, score_of) for family in known}

    winners: dict[Cell, dict[str, Contender]] = {}
    progress("hindsight", 0, len(runs))
    pool = ThreadPoolExecutor(options.workers)
    try:
        for cell, found in zip(runs, pool.map(search, runs), strict=True):
            winners[cell] = {}
            for row, heads in BEST_OF.items():
                some = [found[head] for head in heads if head in found]
                if some:
                    winners[cell][row] = max(some, key=attrgetter("score")).policy
            tried += sum(each.tried for each in found.values())
            progress("hindsight", len(winners), len(runs))
    finally:
        # Without this, a user who interrupts would wait for all cells.
        pool.shutdown(cancel_futures=True)
    return winners, tried


def best_by_load(player: Player, options: Options) -> ByLoad:
    """The fastest static rule of each of some loads, in a closed loop of one order."""
    known = {family.head: family for family in families(player.recording.neural_cap)}
    loads = sorted({min(load, options.max_num_seqs) for load in LOADS_OF_RULES})
    rules = []
    for load in loads:
        orders = draw_orders(player.recording, None, load, options.seed, 1)
        tried = player.trials([Traffic(order, load) for order in orders])

        def speed_of(policy: Baseline, tried: Trials = tried) -> float:
            return tried(policy)[0].tokens_per_s

        some = [fastest(known[head], speed_of) for head in BEST_OF[STATIC_BEST] if head in known]
        best = max(some, key=attrgetter("score")).policy
        if isinstance(best, StaticPolicy):
            rules.append((load, best))
    return ByLoad(tuple(rules))


@dataclass(frozen=True, slots=True)
class Family:
    """The settings of one kind of spec."""

    head: str
    ladders: tuple[Values, ...] = ()
    """The values of each number of the spec, ascending."""
    starts: tuple[Values, ...] = ((),)

    def policy(self, values: Values) -> Baseline:
        """One of the settings."""
        return parse_policy(rule_spec(self.head, *values))


class Fastest(NamedTuple):
    """The best setting that a search has found, and how many it ran."""

    score: float
    policy: Baseline
    tried: int


def families(neural_cap: int) -> list[Family]:
    """The families whose neural drafts have at most so many tokens; 0 says that there are none."""
    known = [
        Family("none"),
        Family("fixed:ngram", (COPIED, MATCHES), ((8, 3),)),
        Family("online", (LEARNED,), ((8,),)),
    ]
    neural = tuple(length for length in NEURAL if length <= neural_cap)
    if neural:
        few, some = 1, min(3, neural_cap)
        budgets = tuple(length for length in neural if length <= LONGEST_BUDGET)
        matches = (*MATCHES, NO_MATCH)
        splices = [
            (least, copied, *rest)
            for copied in (5, 12, 32)
            for least, *rest in ((2, few, 1, 5), (2, some, 3, 10), (5, few, 1, 10), (5, some, 3, 5))
        ]
        known += [
            Family("fixed:neural", (neural,), ((some,),)),
            Family("budget", (budgets,), ((some,),)),
            Family("trtllm", (neural,), ((some,),)),
            Family("hybrid", (matches, COPIED, neural), ((3, 8, few), (3, 20, some))),
            Family("hybrid-splice", (matches, COPIED, neural, matches, COPIED), tuple(splices)),
        ]
    return known


def fastest(family: Family, score_of: Callable[[Baseline], float]) -> Fastest:
    """The family's best setting by their scores."""
    speeds: dict[Values, float] = {}

    def speed(values: Values) -> float:
        if values not in speeds:
            speeds[values] = score_of(family.policy(values))
        return speeds[values]

    def climbed(start: Values) -> Values:
        at, before = start, None
        while at != before:
            before = at
            for number, ladder in enumerate(family.ladders):
                others = ((*at[:number], value, *at[number + 1 :]) for value in ladder)
                at = max([at, *others], key=speed)
        return at

    starts = sorted(family.starts, key=speed, reverse=True)[:CLIMBED]
    best, around = max(map(climbed, starts), key=speed), None
    while best != around:
        around = best
        near = [_neighbours(*each) for each in zip(family.ladders, around, strict=True)]
        best = max([around, *product(*near)], key=speed)
    return Fastest(speeds[best], family.policy(best), len(speeds))


def _neighbours(ladder: Values, value: int) -> Values:
    """The value and those next to it."""
    at = ladder.index(value)
    return ladder[max(at - 1, 0) : at + 2]

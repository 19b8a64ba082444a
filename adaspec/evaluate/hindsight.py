"""What the rows of a report stand for that are the best of several settings in hindsight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

from adaspec.draft.match import Ints
from adaspec.evaluate.options import Cell, Options, Progress
from adaspec.evaluate.search import Fastest, families, fastest
from adaspec.policy.spec import Baseline
from adaspec.replay.player import Contender, Player

VLLM_BEST, TRTLLM, STATIC_BEST = "vllm:best", "trtllm:K", "static:best"
_FIXED = ("none", "fixed:ngram", "fixed:neural")
BEST_OF = {
    VLLM_BEST: (*_FIXED, "budget"),
    TRTLLM: ("trtllm",),
    STATIC_BEST: (*_FIXED, "hybrid", "hybrid-splice"),
}
"""The rows, and the kinds of settings of which each shows the fastest, for every cell anew."""


def hindsight(
    player: Player,
    orders: Mapping[Cell, Sequence[Ints]],
    options: Options,
    progress: Progress,
) -> tuple[dict[Cell, dict[str, Contender]], int]:
    """The winner of each row of `BEST_OF` in each cell, and how many settings were run in all."""
    known, tried = families(player.recording.neural_cap), 0

    def search(cell: Cell) -> dict[str, Fastest]:
        def speed_of(policy: Baseline) -> float:
            return player.mean_speed(policy, orders[cell], cell[1])

        return {family.head: fastest(family, speed_of) for family in known}

    winners: dict[Cell, dict[str, Contender]] = {}
    progress("hindsight", 0, len(orders))
    pool = ThreadPoolExecutor(options.workers)
    try:
        for cell, found in zip(orders, pool.map(search, orders), strict=True):
            winners[cell] = {}
            for row, heads in BEST_OF.items():
                some = [found[head] for head in heads if head in found]
                if some:
                    winners[cell][row] = max(some, key=attrgetter("tokens_per_s")).policy
            tried += sum(each.tried for each in found.values())
            progress("hindsight", len(winners), len(orders))
    finally:
        # Without this, a user who interrupts would wait for all cells.
        pool.shutdown(cancel_futures=True)
    return winners, tried

"""The ablation table: lifts of policies that lack one part each, and of two simpler families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.evaluate.grids import GRIDS
from adaspec.evaluate.hindsight import STATIC_BEST, budgets_of, search
from adaspec.evaluate.options import ALL, Cell, Options, Progress
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import KNOBS
from adaspec.replay.crossfit import CrossfitPolicy
from adaspec.replay.loop import run_policy
from adaspec.replay.orders import draw_orders
from adaspec.replay.player import Contender, Player
from adaspec.replay.recording import Recording
from adaspec.train.ablations import ABLATIONS, Ablation
from adaspec.train.metrics import rounded

Learned = LearnedPolicy | CrossfitPolicy
Row = dict[str, Any]
Order = NDArray[np.int32]
Orders = Mapping[int, list[Order]]
"""The orders in which requests enter, by concurrency."""
Play = Callable[[Order, int], float]
"""Tokens per second of one run in an order at a concurrency."""


def ablation_table(
    recording: Recording,
    report: Mapping[str, Any],
    policy: Learned,
    retrained: Callable[[Ablation], Learned],
    cost: CostModel,
    options: Options,
    progress: Progress,
) -> dict[str, Any]:
    """Lift over the report's `static:best` on all workloads mixed, in the report's own orders.

    `retrained` trains without a part; its policy, too, is judged on requests that it never saw.
    """
    orders = {
        concurrency: draw_orders(recording, None, concurrency, options.seed, options.orders)
        for concurrency in options.concurrency
    }
    best = _speeds(report, STATIC_BEST)
    if options.free_decisions:
        cost = cost.without_deciding()
    if options.prefill:
        recording = recording.with_prefill(cost)
    player = Player(recording, cost, options.cap)

    def row(name: str, without: str, speeds: Mapping[int, float]) -> Row:
        lifts = {
            str(concurrency): rounded(speeds[concurrency] / best[concurrency] - 1)
            if concurrency in speeds
            else None
            for concurrency in options.concurrency
        }
        return {"name": name, "without": without, "lift": lifts}

    rows = [row("the policy", "nothing", _speeds(report, policy.name))]
    for index, ablation in enumerate(ABLATIONS):
        progress("ablations", index, len(ABLATIONS))
        play: Play | None = None
        if not ablation.applies(recording):
            pass
        elif ablation.played is None:
            other = Player(ablation.shown(recording), cost, options.cap)
            play = partial(_tokens_per_s, other, retrained(ablation))
        elif isinstance(policy, LearnedPolicy):
            play = _played_as(ablation.played, recording, policy, cost, options.cap)
        speeds = {} if play is None else _means(play, orders)
        rows.append(row(ablation.name, ablation.missing, speeds))
    progress("ablations", len(ABLATIONS), len(ABLATIONS))
    if recording.neural_cap:
        learning = "learning: the best in hindsight at each concurrency"
        rows.append(row("budget:K", learning, _best_budget(player, orders)))
        splice = _best_splice(player, orders, options, progress)
        rows.append(row("hybrid-splice", learning, splice))
    return {"concurrency": list(options.concurrency), "rows": rows}


def _speeds(report: Mapping[str, Any], name: str) -> dict[int, float]:
    return {
        row["concurrency"]: row["tokens_per_s"]
        for row in report["rows"]
        if row["workload"] == ALL and row["policy"] == name
    }


def _means(play: Play, orders: Orders) -> dict[int, float]:
    return {
        concurrency: float(np.mean([play(order, concurrency) for order in drawn]))
        for concurrency, drawn in orders.items()
    }


def _tokens_per_s(player: Player, contender: Contender, order: Order, concurrency: int) -> float:
    return player.play(contender, order, concurrency).tokens_per_s


def _played_as(
    kind: type[LearnedPolicy],
    recording: Recording,
    policy: LearnedPolicy,
    cost: CostModel,
    cap: int,
) -> Play:
    """Plays a variant of the policy by the generic loop, as it is not compiled."""
    knobs = dict(zip(KNOBS, policy.knobs.tolist(), strict=True))
    other = kind(policy.name, policy.model, knobs, policy.cap, policy.neural_cap)
    return lambda order, at: run_policy(recording, other, order, at, cost, cap).tokens_per_s


def _best_budget(player: Player, orders: Orders) -> dict[int, float]:
    speeds = [_means(partial(_tokens_per_s, player, each), orders) for each in budgets_of(player)]
    return {at: max(each[at] for each in speeds) for at in orders} if speeds else {}


def _best_splice(
    player: Player, orders: Orders, options: Options, progress: Progress
) -> dict[int, float]:
    cells: dict[Cell, list[Order]] = {(None, at): drawn for at, drawn in orders.items()}
    grids = [grid for grid in GRIDS if grid.head == "hybrid-splice"]
    best = search(player, cells, options, progress, grids)[1].max(axis=0)
    return dict(zip(orders, best.tolist(), strict=True))

"""The ablation table: lifts of policies that lack one part each, and of two simpler families."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.evaluate.hindsight import STATIC_BEST, grid_of, grid_speeds
from adaspec.evaluate.options import ALL, Cell, Options, Progress
from adaspec.policy.adaptive import BUDGET_DEPTH
from adaspec.policy.learned import LearnedPolicy
from adaspec.policy.planner.memory import KNOBS
from adaspec.policy.spec import parse_policy
from adaspec.replay.contender import Contender, Player
from adaspec.replay.crossfit import CrossfitPolicy
from adaspec.replay.loop import run_policy
from adaspec.replay.orders import draw_orders
from adaspec.replay.recording import Recording
from adaspec.train.ablations import ABLATIONS, Ablation
from adaspec.train.metrics import rounded

Learned = LearnedPolicy | CrossfitPolicy
Row = dict[str, Any]
Order = NDArray[np.int32]


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
    orders: dict[Cell, list[Order]] = {
        (None, concurrency): draw_orders(recording, None, concurrency, options.seed, options.orders)
        for concurrency in options.concurrency
    }
    best = _speeds(report, STATIC_BEST)
    player = Player(recording, cost, options.cap)

    def lift(speeds: Mapping[int, float]) -> dict[str, float | None]:
        return {
            str(concurrency): rounded(speeds[concurrency] / best[concurrency] - 1)
            if concurrency in speeds
            else None
            for concurrency in options.concurrency
        }

    rows: list[Row] = [
        {"name": "the policy", "without": "nothing", "lift": lift(_speeds(report, policy.name))}
    ]
    for index, ablation in enumerate(ABLATIONS):
        progress("ablations", index, len(ABLATIONS))
        speeds: dict[int, float] = {}
        if ablation.applies(recording) and ablation.played is not None:
            if isinstance(policy, LearnedPolicy):
                speeds = _played_as(ablation.played, recording, policy, orders, cost, options)
        elif ablation.applies(recording):
            other = Player(ablation.shown(recording), cost, options.cap)
            variant = retrained(ablation)
            speeds = {
                concurrency: _mean(other, variant, orders[None, concurrency], concurrency)
                for concurrency in options.concurrency
            }
        rows.append({"name": ablation.name, "without": ablation.missing, "lift": lift(speeds)})
    progress("ablations", len(ABLATIONS), len(ABLATIONS))
    if recording.neural_cap:
        rows += [
            {
                "name": name,
                "without": "learning: the best in hindsight at each concurrency",
                "lift": lift(speeds),
            }
            for name, speeds in (
                ("budget:K", _best_budget(player, orders)),
                ("hybrid-splice", _best_splice(player, orders, options, progress)),
            )
        ]
    return {"concurrency": list(options.concurrency), "rows": rows}


def _speeds(report: Mapping[str, Any], name: str) -> dict[int, float]:
    return {
        row["concurrency"]: row["tokens_per_s"]
        for row in report["rows"]
        if row["workload"] == ALL and row["policy"] == name
    }


def _mean(player: Player, contender: Contender, orders: Sequence[Order], at: int) -> float:
    return float(np.mean([player.play(contender, order, at).tokens_per_s for order in orders]))


def _played_as(
    kind: type[LearnedPolicy],
    recording: Recording,
    policy: LearnedPolicy,
    orders: Mapping[Cell, Sequence[Order]],
    cost: CostModel,
    options: Options,
) -> dict[int, float]:
    """Speeds of a variant of the policy, replayed by the generic loop, as it is not compiled."""
    knobs = dict(zip(KNOBS, policy.knobs.tolist(), strict=True))
    other = kind(policy.name, policy.model, knobs, policy.cap, policy.neural_cap)
    return {
        concurrency: float(
            np.mean(
                [
                    run_policy(recording, other, order, concurrency, cost, options.cap).tokens_per_s
                    for order in orders[None, concurrency]
                ]
            )
        )
        for concurrency in options.concurrency
    }


def _best_budget(player: Player, orders: Mapping[Cell, Sequence[Order]]) -> dict[int, float]:
    most = min(player.recording.neural_cap, BUDGET_DEPTH)
    budgets = [parse_policy(f"budget:{k}") for k in range(2, most + 1)]
    playable = [budget for budget in budgets if player.refusal(budget) is None]
    if not playable:
        return {}
    return {
        concurrency: max(_mean(player, budget, drawn, concurrency) for budget in playable)
        for (_, concurrency), drawn in orders.items()
    }


def _best_splice(
    player: Player, orders: Mapping[Cell, Sequence[Order]], options: Options, progress: Progress
) -> dict[int, float]:
    grid = [
        setting
        for setting in grid_of(player.recording)
        if setting.spec.startswith("hybrid-splice:")
    ]
    if not grid:
        return {}
    speeds = grid_speeds(player, grid, orders, options, progress)
    return {
        concurrency: float(best)
        for (_, concurrency), best in zip(orders, speeds.max(axis=0), strict=True)
    }

"""The ablation table: lifts of policies without a part each, and of two simpler families."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import CostModel
from adaspec.evaluate.grids import settings
from adaspec.evaluate.hindsight import STATIC_BEST, grid_speeds
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

    `retrained` trains without a part, and judges as `policy` was: on requests that it never saw.
    """
    orders: dict[Cell, list[Order]] = {
        (None, at): draw_orders(recording, None, at, options.seed, options.orders)
        for at in options.concurrency
    }
    best = _speeds(report, STATIC_BEST)
    player = Player(recording, cost, options.cap)

    def lift(speeds: Mapping[int, float]) -> dict[str, float | None]:
        return {
            str(at): rounded(speeds[at] / best[at] - 1) if at in speeds else None
            for at in options.concurrency
        }

    rows: list[Row] = [
        {"name": "the policy", "without": "nothing", "lift": lift(_speeds(report, policy.name))}
    ]
    for done, ablation in enumerate(ABLATIONS):
        progress("ablations", done, len(ABLATIONS))
        speeds: dict[int, float] = {}
        if ablation.applies(recording) and ablation.played is not None:
            if isinstance(policy, LearnedPolicy):
                speeds = _played_as(ablation.played, recording, policy, orders, cost, options)
        elif ablation.applies(recording):
            other = Player(ablation.shown(recording), cost, options.cap)
            found = retrained(ablation)
            speeds = {at: _mean(other, found, orders[None, at], at) for at in options.concurrency}
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
    """Only the generic loop plays what is no compiled stage."""
    knobs = dict(zip(KNOBS, policy.knobs.tolist(), strict=True))
    other = kind(policy.name, policy.model, knobs, policy.cap, policy.neural_cap)
    return {
        at: float(
            np.mean(
                [
                    run_policy(recording, other, order, at, cost, options.cap).tokens_per_s
                    for order in orders[None, at]
                ]
            )
        )
        for at in options.concurrency
    }


def _best_budget(player: Player, orders: Mapping[Cell, Sequence[Order]]) -> dict[int, float]:
    most = min(player.recording.neural_cap, BUDGET_DEPTH)
    budgets = [parse_policy(f"budget:{k}") for k in range(2, most + 1)]
    playable = [each for each in budgets if player.refusal(each) is None]
    if not playable:
        return {}
    return {
        at: max(_mean(player, each, drawn, at) for each in playable)
        for (_, at), drawn in orders.items()
    }


def _best_splice(
    player: Player, orders: Mapping[Cell, Sequence[Order]], options: Options, progress: Progress
) -> dict[int, float]:
    grid = [each for each in settings(player.recording) if each.spec.startswith("hybrid-splice:")]
    if not grid:
        return {}
    speeds = grid_speeds(player, grid, orders, options, progress)
    return {at: float(best) for (_, at), best in zip(orders, speeds.max(axis=0), strict=True)}

"""What a policy loses in an async engine, part by part.

    python eval/late_decisions.py TRACES --policy DIR -o eval/reports/late-decisions/NAME

replays the requests that the policy never saw, with the costs of an async engine throughout, so
that nothing differs but what is decided when. Lifts are over `static:fresh`: the static rule tuned
on the policy's training requests, decided at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from written_report import write_report

from adaspec.cost.builtin import DEFAULT
from adaspec.cost.engine import ASYNC, SYNC
from adaspec.cost.load import load_cost
from adaspec.cost.model import CostModel
from adaspec.errors import AdaspecError, EvaluationError
from adaspec.evaluate.selection import Wanted, select
from adaspec.policy.learned import LearnedPolicy, load_policy
from adaspec.policy.planner import stages
from adaspec.policy.planner.late import decide_forwards, enter_late, new_late
from adaspec.policy.protocol import Batch, Drafts, Proposal
from adaspec.policy.spec import parse_policy
from adaspec.replay.learned import run_learned
from adaspec.replay.loop import run_policy
from adaspec.replay.orders import draw_orders
from adaspec.replay.player import Player
from adaspec.replay.recording import Recording, build_recording

CAP = 48
Order = NDArray[np.int32]
Play = Callable[[Recording, LearnedPolicy, Order, int, CostModel], float]


class _Variant(LearnedPolicy):
    """The same policy, deciding otherwise."""

    def __init__(self, other: LearnedPolicy) -> None:
        self.__dict__.update(other.__dict__)

    def proceed(self, batch: Batch, drafts: Drafts) -> bool:
        super().proceed(batch, drafts)
        return True


class NoEarlyStop(_Variant):
    """Plans its forwards when all is known, and runs them all."""

    def plan(self, batch: Batch) -> int:
        """So many as would pay if their tokens told nothing."""
        return stages.forwards_unread(self.address) if super().plan(batch) else 0


class ForwardsLate(_Variant):
    """Runs the forwards of an async engine, and decides all else at once."""

    def plan(self, batch: Batch) -> int:
        """Those of the policy's table."""
        super().plan(batch)
        if not batch.holds_neural.any():
            return 0
        late = new_late(1, self.forwards)
        if (batch.position == 1).any():
            enter_late(late, 0)
        return min(decide_forwards(late, len(batch)), self._neural_cap)


class BudgetLate(_Variant):
    """Decides the budget as in an async engine, and its forwards when all is known."""

    def plan(self, batch: Batch) -> int:
        """So many as would pay if their tokens told nothing."""
        super().plan(batch)
        return stages.forwards_unread(self.address)


class NoSlack(_Variant):
    """As in an async engine, without slack."""

    def settle(self, batch: Batch, drafts: Drafts) -> Proposal:
        """Forgets the slack after each choice."""
        proposal = super().settle(batch, drafts)
        self.planner.late.kinds["slack"] = 0.0
        return proposal


def _compiled(engine: str) -> Play:
    def play(
        recording: Recording, policy: LearnedPolicy, order: Order, load: int, cost: CostModel
    ) -> float:
        return run_learned(recording, policy, order, load, cost, CAP, engine=engine).tokens_per_s

    return play


def _played(kind: type[_Variant], engine: str) -> Play:
    def play(
        recording: Recording, policy: LearnedPolicy, order: Order, load: int, cost: CostModel
    ) -> float:
        variant = kind(policy)
        return run_policy(recording, variant, order, load, cost, CAP, engine=engine).tokens_per_s

    return play


PARTS: dict[str, Play] = {
    "everything decided at once": _compiled(SYNC),
    "no early stop": _played(NoEarlyStop, SYNC),
    "forwards by load, two steps before": _played(ForwardsLate, SYNC),
    "budget one step before, forwards at once": _played(BudgetLate, ASYNC),
    "both, as in an async engine": _compiled(ASYNC),
    "the same without slack": _played(NoSlack, ASYNC),
}


def main() -> None:
    """Replay each part, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--policy", required=True, help="a folder, or a shipped one's name")
    parser.add_argument("--cost", default=DEFAULT)
    parser.add_argument("--concurrency", default="1,8,32,128")
    parser.add_argument("--orders", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    try:
        _write(options)
    except AdaspecError as error:
        sys.exit(f"late_decisions: {error}")


def _write(options: argparse.Namespace) -> None:
    policy, cost = load_policy(options.policy), load_cost(options.cost).under(ASYNC)
    manifest = policy.manifest
    assert manifest is not None
    selection = select([options.traces], Wanted(seen=frozenset(manifest.training_requests)))
    recording = build_recording(selection.requests, selection.neural_cap).with_prefill(cost)
    player = Player(recording, cost, CAP)
    loads = [int(load) for load in options.concurrency.split(",")]
    lifts: dict[str, dict[str, float]] = {name: {} for name in PARTS}
    for load in loads:
        orders = draw_orders(recording, None, load, options.seed, options.orders)
        below = [each for each in manifest.static_tuned if each <= load]
        if not below:
            raise EvaluationError(
                f"no static rule was tuned for {load} requests at once or fewer: leave it out"
            )
        rule = parse_policy(manifest.static_tuned[max(below)])
        fresh = np.mean([player.play(rule, order, load).tokens_per_s for order in orders])
        for name, play in PARTS.items():
            speeds = [play(recording, policy, order, load, cost) for order in orders]
            lifts[name][str(load)] = round(float(np.mean(speeds) / fresh - 1), 6)
            print(f"{name}, at {load}: {lifts[name][str(load)]:+.1%}", file=sys.stderr)
    document = {
        "policy": policy.name,
        "cost": cost.name,
        "requests": len(recording),
        "orders": options.orders,
        "seed": options.seed,
        "forwards": policy.forwards.tolist(),
        "lift_over_static_fresh": lifts,
    }
    heads = ["", *(f"at {load}" for load in loads)]
    rows = [[name, *(f"{lifts[name][str(load)]:+.1%}" for load in loads)] for name in lifts]
    lines = [heads, ["---", *("--:" for _ in loads)], *rows]
    said = (
        f"Lift of `{policy.name}` over `static:fresh`, {len(recording)} unseen requests, "
        f"costs `{cost.name}` of an async engine, {options.orders} order(s):"
    )
    table = [f"| {' | '.join(line)} |" for line in lines]
    print(said, *table, sep="\n")
    write_report(options.out, "eval/late_decisions.py", document, [said], table)


if __name__ == "__main__":
    main()

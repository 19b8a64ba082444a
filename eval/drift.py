"""What a policy recovers by itself on traffic that it was not trained on.

    python eval/drift.py TRACES --before DIR --after DIR -o eval/reports/drift/NAME

On the requests of TRACES are replayed: `before`, trained on other traffic, with its predictions
left as they were trained; the same policy as it serves, recalibrated by what comes; `after`,
trained on this traffic; and the static rule that was tuned when `before` was trained. Gains are in
tokens per second over the first of these, behind the steps in which the policy adapts. Neither
policy was trained on a request that is replayed; with `--trained-on`, where the traces of `before`
answer the same prompts otherwise, nor on its prompt. Prompts are not charged.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from written_report import write_report

from adaspec.cost.builtin import DEFAULT
from adaspec.cost.load import load_cost
from adaspec.cost.model import CostModel
from adaspec.errors import AdaspecError, EvaluationError
from adaspec.evaluate.selection import Wanted, select
from adaspec.policy.learned import LearnedPolicy, load_policy
from adaspec.policy.planner.memory import RECALIBRATE
from adaspec.policy.protocol import Policy, Report
from adaspec.policy.spec import parse_policy
from adaspec.replay.loop import run_policy
from adaspec.replay.recording import Recording, build_recording

CAP = 48
STEPS = {1: (2000, 4000), 8: (2000, 3500), 32: (1000, 2000), 128: (500, 900)}
"""By load: the steps in which a policy adapts, and those of the whole run."""
WORTH, GOAL = 0.01, 0.8
"""Where training on the traffic gains so much, such a share of it shall be recovered."""
SERVING, TRAINED, STATIC = "serving", "trained on it", "static rule of before"


class _Enough(Exception):
    """A run has taken the steps that it shall take."""


class _Watched:
    """A policy, of whose first steps it is noted how long each took and what it emitted."""

    def __init__(self, policy: Policy, last: int) -> None:
        self.policy, self.last = policy, last
        self.steps: list[tuple[float, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def learn(self, report: Report) -> None:
        """Note the step, and let the policy learn of it."""
        self.steps.append((report.step_s, int(report.emitted_tokens.sum())))
        if len(self.steps) == self.last:
            raise _Enough
        self.policy.learn(report)


def unadapted(policy: LearnedPolicy) -> LearnedPolicy:
    """The same policy, with its predictions left as they were trained."""
    policy.knobs = policy.knobs.copy()
    policy.knobs[RECALIBRATE] = 0.0
    return policy


def fresh_requests(options: argparse.Namespace, policies: list[LearnedPolicy]) -> Recording:
    """The requests that no policy was trained on."""
    trained: set[str] = set()
    for policy in policies:
        assert policy.manifest is not None
        trained.update(policy.manifest.training_requests)
    wanted = Wanted(options.workload, seen=frozenset(trained))
    found = select([options.traces], wanted)
    asked: set[tuple[str, str]] = set()
    if options.trained_on is not None:
        everything = select([options.trained_on], Wanted(options.workload)).requests
        unseen = select([options.trained_on], wanted).requests
        asked = {(each.workload, each.id) for each in everything}
        asked -= {(each.workload, each.id) for each in unseen}
    fresh = [each for each in found.requests if (each.workload, each.id) not in asked]
    if not fresh:
        raise EvaluationError(f"{options.traces}: one of the policies was trained on every request")
    return build_recording(fresh, found.neural_cap)


def tokens_per_s(
    recording: Recording, policy: Policy, load: int, cost: CostModel, order: int
) -> float:
    """What a policy emits behind the first steps, in one random order of the requests."""
    first, last = STEPS[load]
    watched = _Watched(policy, last)
    rng = np.random.default_rng([order, load])
    # A request takes a step or more, so that requests do not run out.
    rounds = -(-last * load // len(recording)) + 1
    entries = np.concatenate([rng.permutation(len(recording)) for _ in range(rounds)])
    with suppress(_Enough):
        run_policy(recording, watched, entries.astype(np.int32), load, cost, CAP)
    counted = np.array(watched.steps[first:])
    return float(counted[:, 1].sum() / counted[:, 0].sum())


def main() -> None:
    """Replay all, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, help="the traffic that the policy meets")
    parser.add_argument("--before", required=True, help="the policy trained on other traffic")
    parser.add_argument("--after", required=True, help="the one trained on this traffic")
    parser.add_argument("--workload", help="replay this one alone")
    parser.add_argument("--trained-on", type=Path, help="other answers to the same prompts")
    parser.add_argument("--cost", default=DEFAULT)
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    try:
        _write(options)
    except AdaspecError as error:
        sys.exit(f"drift: {error}")


def _write(options: argparse.Namespace) -> None:
    before, after, cost = (
        load_policy(options.before),
        load_policy(options.after),
        load_cost(options.cost),
    )
    assert before.manifest is not None
    tuned = before.manifest.static_tuned
    if not STEPS.keys() <= tuned.keys():
        raise EvaluationError(
            f"{options.before}: its static rules are for {', '.join(map(str, tuned))} requests at "
            f"once, not for {', '.join(map(str, STEPS))}: train it with --concurrency 1,8,32,128"
        )
    recording = fresh_requests(options, [before, after])
    as_trained = unadapted(load_policy(options.before))
    cells = []
    for load in STEPS:
        spec = tuned[load]
        policies = {"": as_trained, SERVING: before, TRAINED: after, STATIC: parse_policy(spec)}
        rates = {
            name: statistics.fmean(
                tokens_per_s(recording, policy, load, cost, order)
                for order in range(options.orders)
            )
            for name, policy in policies.items()
        }
        gains = {name: round(rates[name] / rates[""] - 1, 6) for name in (SERVING, TRAINED, STATIC)}
        worth = gains[TRAINED] >= WORTH
        share = round(gains[SERVING] / gains[TRAINED], 4) if worth else None
        cells.append({"load": load, **gains, "recovered": share, "rule": spec})
        print(cells[-1], file=sys.stderr)
    document = {
        "before": before.name,
        "after": after.name,
        "cost": cost.name,
        "requests": len(recording),
        "orders": options.orders,
        "cells": cells,
    }
    heads = ["at once", SERVING, TRAINED, "recovered", STATIC]
    rows = [
        [
            str(cell["load"]),
            f"{cell[SERVING]:+.1%}",
            f"{cell[TRAINED]:+.1%}",
            "" if cell["recovered"] is None else f"{cell['recovered']:.0%}",
            f"{cell[STATIC]:+.1%}",
        ]
        for cell in cells
    ]
    said = (
        f"Gain over `{before.name}` with its predictions left as trained, behind the first steps: "
        f"{len(recording)} requests that no policy was trained on, costs `{cost.name}`, "
        f"{options.orders} orders. Where training on this traffic gains {WORTH:.0%} or more, "
        f"{GOAL:.0%} of that shall be recovered."
    )
    table = [f"| {' | '.join(row)} |" for row in (heads, ["--:"] * len(heads), *rows)]
    print(said, *table, sep="\n")
    write_report(options.out, "eval/drift.py", document, [said], table)


if __name__ == "__main__":
    main()

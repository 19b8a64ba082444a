"""Replay a policy whose step costs are wrong, and see what it gains by refitting them.

    python eval/learning/bench.py -o eval/reports/learning          # or: make bench-learning

A policy weighs the builtin H100's step costs, but steps take something else. It is replayed four
times, on the same requests: with the costs that it believes, with the true ones, and learning from
what steps take, by a good clock and by a bad one. What counts is what each emits per second behind
the first steps, in which it learns. Requests are public recordings in `../shared` that the policy
was not trained on, in random orders; prompts are not charged.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "guard"))

from bench import LLAMA, PAIR_COST, PUBLIC, public_recording
from written_report import write_report

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.load import load_cost
from adaspec.cost.model import CostModel, StepShape
from adaspec.errors import AdaspecError
from adaspec.policy.learned import LearnedPolicy, load_policy
from adaspec.replay.loop import SeenStep, run_policy
from adaspec.replay.recording import Recording

CAP, ORDERS = 48, 3
STEPS = {1: (2000, 4000), 8: (2000, 3500), 32: (1000, 2000), 128: (500, 900)}
"""By load: the steps in which a policy learns, and those of the whole run."""
WORTH = 0.01
"""What the true costs gain at least where it is said which share of that is learned."""
GOAL = 0.8


class Learner(LearnedPolicy):
    """A policy whose clock may be a bad one."""

    chance: np.random.Generator | None = None

    def timed(self, shape: StepShape, seconds: float) -> object:
        """With a bad clock, steps take 15% more or less, and one in a hundred takes ten times."""
        if self.chance is not None:
            seconds *= float(np.exp(0.15 * self.chance.standard_normal()))
            seconds *= 10 if self.chance.random() < 0.01 else 1
        return super().timed(shape, seconds)


class _Enough(Exception):
    """A run has taken the steps that it shall take."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Tokens per second behind the first steps, at one load under one error of the costs."""

    load: int
    costs: str
    believed: float
    told: float
    learned: float
    bad_clock: float
    factors: tuple[float, ...]
    """What was learned in the last order, of a step, a token and a forward."""

    def gain(self, rate: float) -> float:
        """Over the costs as believed."""
        return rate / self.believed - 1

    def recovered(self, rate: float) -> float | None:
        """Of what the true costs gain; None where that is next to nothing."""
        gain = self.gain(self.told)
        return self.gain(rate) / gain if gain >= WORTH else None


def true_costs() -> dict[str, CostModel]:
    """What steps really take, by name."""
    given = H100_LLAMA_3_1_8B
    return {
        "as believed": given,
        "tokens 3x": scaled(given, 3, 1),
        "tokens 1/3": scaled(given, 1 / 3, 1),
        "forwards 3x": scaled(given, 1, 3),
        "forwards 1/3": scaled(given, 1, 1 / 3),
        "both 3x": scaled(given, 3, 3),
        "a CPU's": load_cost(str(PAIR_COST)),
    }


def scaled(cost: CostModel, tokens: float, forwards: float) -> CostModel:
    """Costs with other ones of tokens and forwards."""
    return replace(
        cost,
        per_token_s=cost.per_token_s * tokens,
        draft_fixed_s=cost.draft_fixed_s * forwards,
        draft_per_kv_s=cost.draft_per_kv_s * forwards,
    )


def run(
    recording: Recording, load: int, order: int, weighed: CostModel, true: CostModel, learns: str
) -> tuple[float, tuple[float, ...]]:
    """Tokens per second behind the first steps, and what was learned."""
    policy = load_policy(LLAMA)
    policy.__class__ = Learner
    assert isinstance(policy, Learner)
    if learns == "bad clock":
        policy.chance = np.random.default_rng([order, 1])
    first, last = STEPS[load]
    seen: list[tuple[float, int]] = []

    def watch(step: SeenStep) -> None:
        seen.append((step.step_s, int(step.verified.emitted_tokens.sum())))
        if len(seen) == last:
            raise _Enough

    rng = np.random.default_rng([order, load])
    entries = np.concatenate([rng.permutation(len(recording)) for _ in range(20)])
    try:
        run_policy(
            recording,
            policy,
            entries.astype(np.int32),
            load,
            weighed,
            CAP,
            observer=watch,
            true_cost=true,
            learns=bool(learns),
        )
        raise AdaspecError(f"requests ran out after {len(seen)} steps at load {load}")
    except _Enough:
        pass
    counted = np.array(seen[first:])
    factors = () if policy.refit is None else tuple(policy.refit.factors.tolist())
    return float(counted[:, 1].sum() / counted[:, 0].sum()), factors


def cells(public: Path) -> Iterator[Cell]:
    """All cells, one after another."""
    recording, given = public_recording(public), H100_LLAMA_3_1_8B
    for load in STEPS:
        for name, true in true_costs().items():
            rates, factors = [], ()
            for order in range(ORDERS):
                found = [
                    run(recording, load, order, weighed, true, learns)
                    for weighed, learns in (
                        (given, ""),
                        (true, ""),
                        (given, "clock"),
                        (given, "bad clock"),
                    )
                ]
                rates.append([rate for rate, _ in found])
                factors = found[2][1]
            mean = [statistics.fmean(each) for each in zip(*rates, strict=True)]
            yield Cell(load, name, *mean, factors)


HEADS = ("load", "true costs", "told them", "learned", "share", "learned, bad clock", "share")


def line(cell: Cell) -> str:
    """A cell as a row of a table."""
    values = [str(cell.load), cell.costs, f"{cell.gain(cell.told):+.1%}"]
    for rate in (cell.learned, cell.bad_clock):
        share = cell.recovered(rate)
        values += [f"{cell.gain(rate):+.1%}", "" if share is None else f"{share:.0%}"]
    return f"| {' | '.join(values)} |"


def main() -> None:
    """Replay all cells; write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--public", type=Path, default=PUBLIC, help="the public recordings")
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    began, found = time.monotonic(), []
    heads = [f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    print("\n".join(heads))
    for cell in cells(options.public):
        found.append(cell)
        print(line(cell), flush=True)
    said = ["Gains over the costs that the policy believes, behind the first steps."]
    for name, rate in (("a good", "learned"), ("a bad", "bad_clock")):
        shares = [share for cell in found if (share := cell.recovered(getattr(cell, rate)))]
        least = min(cell.gain(getattr(cell, rate)) for cell in found)
        said.append(
            f"By {name} clock {sum(share >= GOAL for share in shares)} of {len(shares)} cells "
            f"where the true costs gain {WORTH:.0%} or more recover {GOAL:.0%} of it; the worst "
            f"cell of all {len(found)}: {least:+.1%}."
        )
    print("\n".join(said), f"{time.monotonic() - began:.0f} s", sep="\n")
    document = {
        "orders": ORDERS,
        "steps": {str(load): steps for load, steps in STEPS.items()},
        "said": said,
        "cells": [asdict(cell) for cell in found],
    }
    write_report(options.out, "eval/learning/bench.py", document, said, [*heads, *map(line, found)])


if __name__ == "__main__":
    main()

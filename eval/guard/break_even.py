"""What a policy costs where no draft is ever accepted, with the guard and without, in replays.

    python eval/guard/break_even.py eval/traces/reference-pair -o eval/reports/guard/break-even.md

Prompts, lengths, what the drafter drafted and how sure it was are as recorded; what the target says
is drawn at random, so that neither the drafter nor a copy is ever right. Speed relative to none is
given over the whole run, and over the steps that follow the first 200.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from guarded_run import GuardedRun

from adaspec.cost.load import load_cost
from adaspec.cost.model import plain_seconds
from adaspec.evaluate.traffic import draw_orders
from adaspec.policy.budget import LONGEST_DRAFT
from adaspec.policy.guard import Guard
from adaspec.policy.protocol import ServedPolicy, load_policy
from adaspec.policy.static import parse_policy
from adaspec.replay.loop import goes_on
from adaspec.replay.recording import build_recording
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request

LOADS = (1, 8, 32, 128)
FIRST_STEPS = 200
VOCABULARY = 40_000
"""Random token ids are below it."""


class Speed(NamedTuple):
    """Tokens per second of a run, and of what follows its first steps."""

    whole: float
    later: float


def never_accepted(requests: Iterable[Request]) -> Iterator[Request]:
    """The same requests, whose targets say nothing that was drafted."""
    chance = np.random.default_rng(0)
    for each in requests:
        assert each.neural_accepted is not None and each.drafted_tokens is not None
        said = chance.integers(0, VOCABULARY, len(each.output_tokens)).astype(np.int32)
        said[1:] += said[1:] == each.drafted_tokens[1:, 0]
        accepted = np.minimum(each.neural_accepted, 0)
        yield replace(each, output_tokens=said, neural_accepted=accepted)


def speed_of(run: GuardedRun) -> Speed:
    """Run to the end."""
    steps, before = 0, np.zeros(2)
    totals = run.loop.totals[0]
    while goes_on(run.loop):
        run.step()
        steps += 1
        if steps == FIRST_STEPS:
            before = np.array([totals["tokens"], totals["time_s"]])
    whole = np.array([totals["tokens"], totals["time_s"]])
    later = whole - before
    return Speed(float(whole[0] / whole[1]), float(later[0] / later[1]))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--policy", default="general")
    parser.add_argument("--cost", default="h100-llama-3.1-8b")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    cost, policy = load_cost(options.cost), load_policy(options.policy)
    cap = max(LONGEST_DRAFT.values())
    recording = build_recording([*never_accepted(TraceReader(options.traces).requests())], cap)
    none = parse_policy("none")

    def run(served: ServedPolicy, load: int, is_guarded: bool) -> Speed:
        order = draw_orders(recording, None, load, 0, 1)[0]
        guard = Guard(plain_seconds(cost)) if is_guarded else None
        return speed_of(GuardedRun(recording, served, order, load, cost, cap, guard, cost))

    lines = [
        f"Where no draft is accepted, policy {options.policy}, costs {cost.name}, a sync engine:",
        "speed over none, of the whole run and behind its first 200 steps.",
        "",
        "| at once | without a guard | behind 200 steps | with the guard | behind 200 steps |",
        "|--:|--:|--:|--:|--:|",
    ]
    for load in LOADS:
        plain = run(none, load, False)
        found = [run(policy, load, is_guarded) for is_guarded in (False, True)]
        cells = [
            f"{part / base:.3f}x" for each in found for part, base in zip(each, plain, strict=True)
        ]
        lines.append(f"| {load} | {' | '.join(cells)} |")
    command = shlex.join(["python", "eval/guard/break_even.py", *sys.argv[1:]])
    options.out.write_text("\n".join([*lines, "", f"    {command}", ""]), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

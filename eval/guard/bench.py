"""Replay policies with and without the guard where it has to work: one table of cells.

    python eval/guard/bench.py -o eval/reports/guard          # or: make bench-guard

Every cell is a workload at a load, under costs that the policy does not know of: drafting takes
three times what it believes, or a third. All times are relative to a replay without speculation
under the same costs. Made-up workloads are those of `made_up.py`; `public` are recordings in
`../shared`, left out, and said to be, where they are not there.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))

from guarded_run import GuardedRun
from made_up import CAP as MADE_UP_CAP
from made_up import IN_TURN, WORKLOADS, made_up

from adaspec.cost.load import H100_LLAMA_3_1_8B, load_cost
from adaspec.cost.model import CostModel, plain_seconds
from adaspec.evaluate.selection import Wanted, select
from adaspec.evaluate.traffic import draw_orders
from adaspec.policy.guard import HOLD, KEEP, PROBE, STATES, Guard, GuardDecision
from adaspec.policy.protocol import ServedPolicy, load_policy
from adaspec.policy.static import FIRST_WORDS, StaticPolicy, parse_policy
from adaspec.replay.player import Player
from adaspec.replay.recording import Recording, build_recording
from adaspec.trace.importers import import_trace

CHECKOUT = Path(__file__).resolve().parents[2]
PUBLIC = CHECKOUT.parent / "shared" / "traces" / "specdecode-bench"
PAIR = CHECKOUT / "eval" / "traces" / "reference-pair"
PAIR_COST = CHECKOUT / "training" / "reference-pair-cpu" / "cost.json"

CAP, SEED = 48, 0
WRONG = {"as believed": 1.0, "drafting 3x": 3.0, "drafting 1/3": 1 / 3}
NOISY = "as believed, noisy clock"
LLAMA, PAIR_POLICY = "llama-3.1-8b-instruct-h100", "reference-pair-cpu"
POLICIES = (LLAMA, "hybrid-splice:4:20:2:2:5", "fixed:neural:5")
JUMPS = (1, 128, 1, 128, 1)
LEAST, LEAST_OF_RIGHT = 0.98, 0.99

Order = NDArray[np.int32]


class Watched(Guard):
    """A guard that counts what it says; its clock may be a bad one."""

    def __init__(self, cost: CostModel, noisy: bool = False) -> None:
        super().__init__(plain_seconds(cost))
        self.steps = dict.fromkeys(("all", *STATES), 0)
        self._chance = np.random.default_rng(SEED) if noisy else None

    def decide(self, rows: int, context_tokens: int, prompt_tokens: int = 0) -> GuardDecision:
        """As the guard decides."""
        decision = super().decide(rows, context_tokens, prompt_tokens)
        self.steps["all"] += 1
        self.steps[decision.state] += 1
        return decision

    def note(self, decision: GuardDecision, seconds: float, tokens: int, emitting: int) -> None:
        """With a noisy clock, steps take 30% more or less, and one in a hundred takes ten times."""
        if self._chance is not None:
            seconds *= float(np.exp(0.3 * self._chance.standard_normal()))
            seconds *= 10 if self._chance.random() < 0.01 else 1
        super().note(decision, seconds, tokens, emitting)


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of one policy, workload, load and error of the costs."""

    workload: str
    load: str
    costs: str
    policy: str
    unguarded: float
    """Tokens per second over those without speculation."""
    guarded: float
    held_share: float
    """Of the steps."""
    probed_share: float
    switches: int
    steady: bool
    """Whether the workload is the same from the first request to the last."""

    @property
    def holds(self) -> bool:
        """Whether the guard does what it promises."""
        right = self.steady and self.unguarded > 1
        return self.guarded >= (max(LEAST, LEAST_OF_RIGHT * self.unguarded) if right else LEAST)


@dataclass(frozen=True, slots=True)
class Part:
    """Requests that are replayed at one load."""

    recording: Recording
    order: Order
    load: int


def wrong(cost: CostModel, by: float) -> CostModel:
    """Costs at which drafting and verifying drafts take so many times as long."""
    return structs.replace(
        cost,
        seconds=tuple(cost.seconds[0] + by * (each - cost.seconds[0]) for each in cost.seconds),
        forward_s=cost.forward_s * by,
        forward_per_row_s=cost.forward_per_row_s * by,
        forward_context_s=cost.forward_context_s * by,
    )


@cache
def policy_of(name: str) -> ServedPolicy:
    """A spec's policy, or a shipped one."""
    if name.partition(":")[0] not in FIRST_WORDS:
        return load_policy(name)
    policy = parse_policy(name)
    assert isinstance(policy, StaticPolicy)
    return policy


def play(
    workload: str, load: str, parts: Sequence[Part], policy: str, cost: CostModel, costs: str
) -> Cell:
    """One cell: the parts one after another, under the same guard."""
    true = wrong(cost, WRONG.get(costs, 1.0))
    guard, none = Watched(cost, costs == NOISY), parse_policy("none")
    seconds, tokens = np.zeros(3), np.zeros(3)
    for part in parts:
        player = Player(part.recording, true, CAP)
        results = [player.play(none, part.order, part.load)]
        for each in (None, guard):
            run = (part.recording, policy_of(policy), part.order, part.load, cost, CAP)
            results.append(GuardedRun(*run, each, true).result())
        seconds += [each.time_s for each in results]
        tokens += [each.tokens for each in results]
    rates = tokens / seconds
    steps = guard.steps["all"]
    return Cell(
        workload,
        load,
        costs,
        policy,
        round(float(rates[1] / rates[0]), 4),
        round(float(rates[2] / rates[0]), 4),
        round((guard.steps[KEEP] + guard.steps[HOLD]) / steps, 4),
        round(guard.steps[PROBE] / steps, 4),
        guard.switches,
        workload not in IN_TURN,
    )


def shuffled(recording: Recording, load: int) -> Order:
    """As in an evaluation, but no more requests than it takes."""
    return draw_orders(recording, None, load, SEED, 1)[0][: max(200, 8 * load)]


def made_up_parts(workload: str, loads: Sequence[int]) -> Iterator[tuple[str, list[Part]]]:
    """Each load with as many requests as make some thousand steps of it."""
    for load in loads:
        count = max(8, 4 * load) if workload.startswith("long") else max(60, 20 * load)
        recording = build_recording(made_up(workload, count, SEED), MADE_UP_CAP)
        yield str(load), [Part(recording, np.arange(count, dtype=np.int32), load)]


def costs_for(policy: str) -> Sequence[str]:
    """Costs under which a policy is replayed; one policy has a noisy clock as well."""
    return (*WRONG, NOISY) if policy == POLICIES[1] else tuple(WRONG)


def jumps_of(recording: Recording) -> list[Part]:
    """The load jumps up and down, as often as requests run out."""
    return [Part(recording, shuffled(recording, load), load) for load in JUMPS]


def cells(public: Path) -> Iterator[Cell]:
    """All cells, one after another."""
    h100 = H100_LLAMA_3_1_8B
    for workload in WORKLOADS:
        loads = (1, 8, 32) if workload.startswith("long") else (1, 8, 32, 128)
        for load, parts in made_up_parts(workload, loads):
            for policy in POLICIES:
                for costs in costs_for(policy):
                    yield play(workload, load, parts, policy, h100, costs)
    unmatched = build_recording(made_up("unmatched", 240, SEED), MADE_UP_CAP)
    recordings = {"unmatched": unmatched}
    if public.is_dir():
        recordings["public"] = public_recording(public)
    for name, recording in recordings.items():
        for policy in POLICIES:
            for costs in WRONG:
                load = " to ".join(map(str, JUMPS))
                yield play(name, load, jumps_of(recording), policy, h100, costs)
    for load in (1, 8, 32, 128) if public.is_dir() else ():
        recording = recordings["public"]
        for policy in POLICIES:
            for costs in costs_for(policy):
                part = Part(recording, shuffled(recording, load), load)
                yield play("public", str(load), [part], policy, h100, costs)
    pair = select([PAIR], Wanted(seen=seen_by(PAIR_POLICY)))
    recording = build_recording(pair.requests, pair.neural_cap)
    cpu = load_cost(str(PAIR_COST))
    for load in (1, 4, 16):
        part = Part(recording, shuffled(recording, load), load)
        for policy in (PAIR_POLICY, *POLICIES[1:]):
            for costs in costs_for(policy):
                yield play("reference pair", str(load), [part], policy, cpu, costs)


def seen_by(policy: str) -> frozenset[str]:
    """The requests that a shipped policy was trained on."""
    manifest = load_policy(policy).manifest
    assert manifest is not None
    return frozenset(manifest.training_requests)


def public_recording(folder: Path) -> Recording:
    """The public recordings that the shipped policy never saw."""
    with tempfile.TemporaryDirectory() as imported:
        import_trace("specdecode-bench", [folder], Path(imported) / "traces")
        found = select([Path(imported) / "traces"], Wanted(seen=seen_by(LLAMA)))
    return build_recording(found.requests, found.neural_cap)


HEADS = (
    "workload",
    "load",
    "costs",
    "policy",
    "without guard",
    "with guard",
    "held off",
    "switches",
)


def line(cell: Cell) -> str:
    """A cell as a row of a table."""
    values = (
        cell.workload,
        cell.load,
        cell.costs,
        cell.policy,
        f"{cell.unguarded:.3f}x",
        f"{cell.guarded:.3f}x",
        f"{cell.held_share:.0%}",
        str(cell.switches),
        "" if cell.holds else "MISSED",
    )
    return f"| {' | '.join(values)} |"


def main() -> None:
    """Replay all cells; write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--public", type=Path, default=PUBLIC, help="the public recordings")
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    began, found = time.monotonic(), []
    left_out = [] if options.public.is_dir() else [f"public recordings: no {options.public.name}"]
    for why in left_out:
        print(f"left out: {why}", file=sys.stderr)
    heads = [f"| {' | '.join((*HEADS, ''))} |", "|" + "---|" * (len(HEADS) + 1)]
    print("\n".join(heads))
    for cell in cells(options.public):
        found.append(cell)
        print(line(cell), flush=True)
    missed = [cell for cell in found if not cell.holds]
    said = [
        f"{len(found)} cells; {len(missed)} of them are below {LEAST}x of no speculation, or, in "
        f"steady workloads, below {LEAST_OF_RIGHT}x of the policy without guard where that is "
        "faster than none.",
        f"Least of all: {min(cell.guarded for cell in found):.3f}x; without guard "
        f"{min(cell.unguarded for cell in found):.3f}x.",
        *(f"Left out: {why}." for why in left_out),
    ]
    print("\n".join(said), f"{time.monotonic() - began:.0f} s", sep="\n")
    document = {
        "seed": SEED,
        "least": {
            "guarded": min(cell.guarded for cell in found),
            "unguarded": min(cell.unguarded for cell in found),
        },
        "missed": len(missed),
        "left_out": left_out,
        "cells": [asdict(cell) for cell in found],
        "command": shlex.join(["python", "eval/guard/bench.py", *sys.argv[1:]]),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.json").write_text(json.dumps(document, indent=1) + "\n")
    print("\n\n".join([*said, "\n".join([*heads, *map(line, found)])]))


if __name__ == "__main__":
    main()

"""The guard by chance alone: arms whose truth is known, and clocks that are not exact.

    python eval/guard/chances.py --seeds 4 -o eval/reports/guard/chances.md
    python eval/guard/chances.py --guard FILE          # of another guard

A case is an arm that emits `accepted` more tokens per row and step, in bursts of six on average,
and whose steps take `slower` times as long, at a load, under a clock. Rates are over those of the
better of it and none; holds are counted per 30,000 steps where it is the better one.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PLAIN_S, STEPS = 0.01, 30_000
LOADS = (1, 8, 32, 128)
CLOCKS = {"exact": (0.0, 0.0), "30%": (0.3, 0.0), "stalls": (0.05, 0.02)}
"""Their spread, and the share of steps that take two to four times as long."""


@dataclass(frozen=True, slots=True)
class Phase:
    """So many steps of an arm."""

    steps: int
    slower: float
    accepted: float

    @property
    def lift(self) -> float:
        """What the arm delivers over none."""
        return (1 + self.accepted) / self.slower


CASES = {
    "gains 5%": (Phase(STEPS, 1.3, 0.365),),
    "gains 15%": (Phase(STEPS, 1.3, 0.495),),
    "gains 50%": (Phase(STEPS, 1.3, 0.95),),
    "gains 100%, short": (Phase(2000, 1.3, 1.6),),
    "loses 3%": (Phase(12_000, 1.2, 0.164),),
    "loses 10%": (Phase(4000, 1.3, 0.17),),
    "loses 50%": (Phase(4000, 2.0, 0.0),),
    "loses 80%": (Phase(4000, 5.0, 0.0),),
    "collapses": (Phase(3000, 1.3, 1.2), Phase(6000, 1.3, 0.0)),
    "comes back": (Phase(3000, 1.3, 0.0), Phase(6000, 1.3, 1.2)),
    "comes back late": (Phase(12_000, 1.3, 0.0), Phase(8000, 1.3, 1.2)),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    ratios: tuple[float, ...]
    """By phase, over the better arm."""
    holds: int
    probed: float


def play(guard: Any, phases: tuple[Phase, ...], rows: int, clock: str, seed: int) -> Outcome:
    """Serve the phases under a guard; a step in fifty reads a prompt."""
    chance = np.random.default_rng(seed)
    spread, stalls = CLOCKS[clock]
    ratios, probed, steps = [], 0, 0
    for phase in phases:
        seconds = without = 0.0
        took = np.exp(spread * chance.standard_normal(phase.steps))
        stalled = chance.random(phase.steps) < stalls
        took *= np.where(stalled, chance.uniform(2, 4, phase.steps), 1.0)
        hits = chance.binomial(rows, phase.accepted / 6, phase.steps)
        most = 2 * 6 - 1
        for step in range(phase.steps):
            decision = guard.decide(rows, rows * 1000, 0)
            plain_s, emitted = PLAIN_S * (1 + rows / 100), rows
            step_s = plain_s
            if decision.state == "plan":
                step_s *= phase.slower
                emitted += int(chance.integers(1, most + 1, int(hits[step])).sum())
            probed += decision.state == "probe"
            seconds += step_s
            without += plain_s * emitted / rows
            guard.note(decision, step_s * float(took[step]), emitted, rows)
        steps += phase.steps
        ratios.append(without / seconds / max(phase.lift, 1.0))
    return Outcome(tuple(ratios), guard.switches, probed / steps)


def outcomes(make: Any, loads: tuple[int, ...], seeds: int, lag: int, cases: str) -> Iterator[str]:
    """All cases, a line each, and the summary."""
    worst, below, cells, most = 9.0, 0, 0, 0.0
    for name, phases in CASES.items():
        if not name.startswith(cases):
            continue
        for rows in loads:
            for clock in CLOCKS:
                found = [
                    play(
                        make(lambda rows, *_: PLAIN_S * (1 + rows / 100), lag),
                        phases,
                        rows,
                        clock,
                        each,
                    )
                    for each in range(seeds)
                ]
                ratios = np.mean([each.ratios for each in found], axis=0)
                holds = float(np.mean([each.holds for each in found]))
                probed = float(np.mean([each.probed for each in found]))
                cells += 1
                below += bool(ratios.min() < 0.97)
                worst = min(worst, float(ratios.min()))
                if name.startswith("gains"):
                    holds *= STEPS / phases[0].steps
                    most = max(most, holds)
                shown = " ".join(f"{each:.3f}" for each in ratios)
                yield f"| {name} | {rows} | {clock} | {shown} | {holds:.1f} | {probed:.1%} |"
    yield (
        f"{cells} cells; {below} below 0.97x of the better arm; worst {worst:.3f}x; at most "
        f"{most:.1f} false holds in 30,000 steps."
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--guard", default="adaspec/policy/guard.py", help="the guard's file")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--lag", type=int, default=1)
    parser.add_argument("--loads", type=int, nargs="+", default=LOADS)
    parser.add_argument("--cases", default="", help="what their names begin with")
    parser.add_argument("-o", "--out", type=Path, help="a file for what is printed")
    options = parser.parse_args()
    spec = importlib.util.spec_from_file_location("guard_under_test", Path(options.guard))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["guard_under_test"] = module
    spec.loader.exec_module(module)
    lines = ["| case | at once | clock | rate, by phase | holds | probes |", "|" + " -- |" * 6]
    for line in outcomes(
        module.Guard, tuple(options.loads), options.seeds, options.lag, options.cases
    ):
        lines.append(line)
        print(line, flush=True)
    if options.out is not None:
        *table, summary = lines
        options.out.write_text(f"{summary}\n\n" + "\n".join(table) + "\n")


if __name__ == "__main__":
    main()

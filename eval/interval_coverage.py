"""How often the 95% intervals of `adaspec eval` hold the truth, by simulation on recorded requests.

    python eval/interval_coverage.py TRACES -o FOLDER

The requests of TRACES are the population. Samples of a few requests of each workload are drawn from
it with replacement; each is evaluated as `adaspec eval` would, and its intervals are held against
what the whole population says. FOLDER gets `report.json`, and the table is printed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

import numpy as np

from adaspec.cost.load import DEFAULT, load_cost
from adaspec.evaluate.cell_result import CellResult, measure
from adaspec.evaluate.intervals import replicate_speeds, variance_ratio
from adaspec.evaluate.options import Options, silent
from adaspec.evaluate.selection import Wanted, select
from adaspec.evaluate.traffic import draw_orders, pools_of
from adaspec.replay.contender import parse_contender
from adaspec.replay.player import Contender, Player
from adaspec.replay.recording import build_recording

SPECS = ("none", "fixed:neural:2", "hybrid-splice:4:20:2:2:5")
FIGURES = {"speedup": (SPECS[2], SPECS[0]), "lift": (SPECS[2], SPECS[1])}
"""Of the first over the second."""
TRUTH_ORDERS = 200


def main() -> None:
    """Draw the samples, count, and write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--requests", type=int, default=40, help="of each workload in a sample")
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 128])
    asked = parser.parse_args()
    selection = select([asked.traces], Wanted())
    cost, loads = load_cost(DEFAULT), asked.concurrency
    contenders = {spec: parse_contender(spec) for spec in SPECS}
    population = build_recording(selection.requests, selection.neural_cap)
    player = Player(population, cost, Options().cap)
    truth = {}
    for load in loads:
        orders = draw_orders(population, None, load, 1, TRUTH_ORDERS)
        truth[load] = {
            spec: np.mean([player.play(each, order, load).tokens_per_s for order in orders])
            for spec, each in contenders.items()
        }
    held = {(load, figure): 0 for load in loads for figure in FIGURES}
    width = dict.fromkeys(held, 0.0)
    rng = np.random.default_rng(0)
    for sample in range(asked.samples):
        drawn = [
            selection.requests[at]
            for workload in population.workloads
            for at in rng.choice(population.members(workload), asked.requests)
        ]
        options = Options(tuple(loads), resamples=asked.resamples, seed=sample, jobs=1)
        player = Player(build_recording(drawn, selection.neural_cap), cost, options.cap)
        cells = _evaluated(player, contenders, options)
        for load, figure in held:
            mine, other = FIGURES[figure]
            ends = cells[load].ratio(mine, other)[1]
            assert ends is not None
            true = truth[load][mine] / truth[load][other]
            held[load, figure] += bool(ends[0] <= true <= ends[1])
            width[load, figure] += ends[1] - ends[0]
    rows = [
        {
            "concurrency": load,
            "figure": figure,
            "truth": truth[load][FIGURES[figure][0]] / truth[load][FIGURES[figure][1]],
            "mean_width": width[load, figure] / asked.samples,
            "held": held[load, figure] / asked.samples,
        }
        for load, figure in held
    ]
    report = {
        "schema": 1,
        "command": shlex.join(["python", *sys.argv]),
        "population": selection.counts,
        "samples": asked.samples,
        "requests": asked.requests,
        "resamples": asked.resamples,
        "specs": dict(FIGURES),
        "held": sum(held.values()) / len(held) / asked.samples,
        "rows": rows,
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(_table(report))


def _evaluated(
    player: Player, contenders: dict[str, Contender], options: Options
) -> dict[int, CellResult]:
    """What `adaspec eval` measures and replicates of the contenders on the mix, by load."""
    mix = {(None, load): list(contenders.values()) for load in options.concurrency}
    replicates = replicate_speeds(player, mix, options, silent)
    sizes = [len(pool) for pool in pools_of(player.recording, None)]
    results = {}
    for load in options.concurrency:
        orders = draw_orders(player.recording, None, load, options.seed, options.orders)
        results[load] = CellResult(
            winners={},
            contenders=contenders,
            measures={
                spec: measure([player.play(each, order, load) for order in orders], options)
                for spec, each in contenders.items()
            },
            replicates=dict(zip(contenders, replicates[None, load].T, strict=True)),
            variance_ratio=variance_ratio(sizes, load, options.orders),
        )
    return results


def _table(report: dict) -> str:
    """The report as a page."""
    lines = [
        "# Coverage of the 95% intervals",
        "",
        f"    {report['command']}",
        "",
        f"{report['samples']} samples of {report['requests']} requests of each workload, drawn "
        f"with replacement; {report['resamples']} replicates each, on the mix. Held: in so many "
        "samples the interval held what the whole population says; "
        f"{report['held']:.1%} over all rows.",
        "",
        "| concurrency | figure | over | truth | mean width | held |",
        "|--:|---|---|--:|--:|--:|",
    ]
    for row in report["rows"]:
        mine, other = report["specs"][row["figure"]]
        lines.append(
            f"| {row['concurrency']} | {row['figure']} of `{mine}` | `{other}` "
            f"| {row['truth']:.3f}x | {row['mean_width']:.3f} | {row['held']:.1%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

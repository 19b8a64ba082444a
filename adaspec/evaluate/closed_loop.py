"""The closed-loop evaluation: every cell's winners, rows, intervals and headline.

A cell is a workload, or the mix of all, at a concurrency. All static settings run in every cell's
orders; their winners, the named policies and the oracles then run once more for their rows, and
over resampled requests for the intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaspec.evaluate.headline import headline_entry
from adaspec.evaluate.hindsight import (
    ADAPTIVE_BEST,
    Winner,
    adaptive_winners,
    grid_of,
    grid_speeds,
    static_winners,
)
from adaspec.evaluate.intervals import Interval, Speeds, interval, replicate_speeds, variance_ratio
from adaspec.evaluate.measures import Measure, measure
from adaspec.evaluate.options import Cell, Options, Progress, cells
from adaspec.evaluate.tuned import is_hidden, tuned_rows, tuned_winners
from adaspec.policy.spec import parse_policy
from adaspec.replay.contender import Contender, Player
from adaspec.replay.oracles import LOOPS, Oracle
from adaspec.replay.orders import draw_orders, pools_of

ALL = "all"
NONE = "none"
DP_ORACLES = ("dp", "dp-splice")


@dataclass(slots=True)
class CellResult:
    """All contenders of one cell by the name of their row."""

    winners: dict[str, Winner]
    contenders: dict[str, Contender]
    measures: dict[str, Measure] = field(default_factory=dict)
    replicates: dict[str, Speeds] = field(default_factory=dict)
    variance_ratio: float = 1.0
    """The variance of what is measured over that of its replicates."""
    tuned: dict[str, str] = field(default_factory=dict)
    """By policy, the row of the static rule tuned on its training requests."""

    def speed(self, name: str) -> float | None:
        """Tokens per second of a row, None where it was not run."""
        return self.measures[name].tokens_per_s if name in self.measures else None

    def ratio(self, name: str, other: str) -> float | None:
        """Throughput of one row over that of another."""
        mine, theirs = self.speed(name), self.speed(other)
        return mine / theirs if mine is not None and theirs else None

    def ratio_interval(self, name: str, other: str) -> Interval | None:
        """Paired interval of that ratio."""
        point = self.ratio(name, other)
        if point is None or name not in self.replicates or other not in self.replicates:
            return None
        ratios = self.replicates[name] / self.replicates[other]
        return interval(point, ratios, self.variance_ratio)


def evaluate_closed_loop(
    player: Player, named: Sequence[Contender], options: Options, progress: Progress
) -> dict[str, Any]:
    """`rows` and `headline` of a report, and the number of settings tried."""
    tape = player.tape
    for contender in named:
        player.check(contender)
    wanted = cells(tape.workloads, options)
    orders = {
        cell: draw_orders(tape, cell[0], cell[1], options.seed, options.orders) for cell in wanted
    }
    grid = grid_of(player)
    speeds = grid_speeds(player, grid, orders, options, progress)
    winners = static_winners(grid, speeds, wanted)
    if tape.neural_cap:
        adaptive = adaptive_winners(player, grid, speeds, orders, progress)
        for cell in wanted:
            winners[cell][ADAPTIVE_BEST] = adaptive[cell]
    for cell in wanted:
        winners[cell] |= tuned_winners(player, named, cell[1])
    results = {
        cell: CellResult(
            winners[cell],
            contenders_of(player, named, winners[cell], cell),
            tuned=tuned_rows(named),
        )
        for cell in wanted
    }
    for done, cell in enumerate(wanted):
        progress("policies and bounds", done, len(wanted))
        result = results[cell]
        for name, contender in result.contenders.items():
            runs = [player.play(contender, order, cell[1]) for order in orders[cell]]
            result.measures[name] = measure(runs)
    progress("policies and bounds", len(wanted), len(wanted))
    _add_replicates(player, results, options, progress)
    return report_parts(results, named, tape.workloads) | {"settings": len(grid)}


def report_parts(
    results: dict[Cell, CellResult], named: Sequence[Contender], workloads: Sequence[str]
) -> dict[str, Any]:
    """The report's `rows` and `headline`."""
    names = dict.fromkeys(contender.name for contender in named)
    headline = []
    for (workload, concurrency), result in results.items():
        alone = [results[name, concurrency] for name in workloads]
        headline += [
            headline_entry(_label(workload), concurrency, name, result, alone)
            for name in names
            if name in result.measures
        ]
    return {
        "rows": [row for cell, result in results.items() for row in _rows(cell, result)],
        "headline": headline,
    }


def contenders_of(
    player: Player,
    named: Sequence[Contender],
    winners: dict[str, Winner],
    cell: Cell,
    lockstep: bool = False,
) -> dict[str, Contender]:
    """Everything that has a row in a cell: none, the named, the winners, the oracles."""

    def runs(contender: Contender) -> bool:
        """A dynamic programme holds for one request; at concurrency 1 they do not interact."""
        programme = isinstance(contender, Oracle) and contender.kind in DP_ORACLES
        return lockstep or cell[1] == 1 or not programme

    found: dict[str, Contender] = {NONE: parse_policy(NONE)}
    found |= {contender.name: contender for contender in named if runs(contender)}
    found |= {name: winner.contender for name, winner in winners.items()}
    kinds = [*LOOPS, *DP_ORACLES]
    for oracle in (Oracle(kind) for kind in kinds):
        if player.refusal(oracle) is None and runs(oracle):
            found.setdefault(oracle.name, oracle)
    return found


def _add_replicates(
    player: Player, results: dict[Cell, CellResult], options: Options, progress: Progress
) -> None:
    if options.resamples < 2:
        return

    def key(contender: Contender) -> tuple[str, bool]:
        return contender.name, player.charges(contender)

    # One run per distinct spec and cell: a named policy may also be a winner, or win twice.
    distinct = {
        cell: {key(contender): contender for contender in result.contenders.values()}
        for cell, result in results.items()
    }
    replicates = replicate_speeds(
        player, {cell: list(by.values()) for cell, by in distinct.items()}, options, progress
    )
    for cell, result in results.items():
        sizes = [len(pool) for pool in pools_of(player.tape, cell[0])]
        result.variance_ratio = variance_ratio(sizes, cell[1], options.orders)
        column = {each: at for at, each in enumerate(distinct[cell])}
        result.replicates = {
            name: replicates[cell][:, column[key(contender)]]
            for name, contender in result.contenders.items()
        }


def _label(workload: str | None) -> str:
    return ALL if workload is None else workload


def _rows(cell: Cell, result: CellResult) -> list[dict[str, Any]]:
    rows = []
    for name, found in result.measures.items():
        if is_hidden(name):
            continue
        detail: dict[str, Any] = {
            "latency_s": {"median": found.token_s_median, "p95": found.token_s_p95},
        }
        if name in result.winners:
            detail["spec"] = result.winners[name].spec
            detail["edge"] = list(result.winners[name].edge)
        rows.append(
            {
                "workload": _label(cell[0]),
                "concurrency": cell[1],
                "policy": name,
                "tokens_per_s": found.tokens_per_s,
                "speedup": result.ratio(name, NONE),
                "ci95": _listed(result.ratio_interval(name, NONE)),
                "accepted_per_step": found.accepted_per_step,
                "drafted_per_step": found.drafted_per_step,
                "neural_steps_share": found.neural_steps_share,
                "detail": detail,
            }
        )
    return rows


def _listed(found: Interval | None) -> list[float] | None:
    return None if found is None else [float(np.float64(end)) for end in found]

"""The measurements of one cell for all its contenders, and the report's rows and headline of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.evaluate.hindsight import STATIC_BEST, VLLM_BEST
from adaspec.evaluate.intervals import Speeds, interval
from adaspec.evaluate.options import ALL, MIN_GAP, NONE, Cell, Options
from adaspec.policy.static import parse_policy
from adaspec.replay.loop import Result, gap_seconds
from adaspec.replay.oracles import Oracle
from adaspec.replay.player import Contender, Player
from adaspec.replay.suffix import SuffixDecoding

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
"""As `vllm bench serve` counts them: to a request's first token, per token behind it, between two
deliveries to it, and to its end."""
QUANTILES, LOADS = (0.5, 0.95, 0.99), (0.05, 0.5, 0.95)
"""Of latencies, and of the requests that run at once, by time."""
BOUNDS = ("combine", "plan-splice")
FORESIGHT = "oracle:plan-splice"


@dataclass(frozen=True, slots=True)
class Measure:
    """One contender's figures in one cell, over the runs of all orders of that cell."""

    score: float
    """What contenders are compared by: tokens per second, or goodput where requests have a goal."""
    tokens_per_s: float
    accepted_per_step: float
    drafted_per_step: float
    neural_steps_share: float
    decision_share: float
    load: NDArray[np.float64]
    """(LOADS) requests that ran at once, by time."""
    latencies: NDArray[np.float64]
    """(LATENCIES, QUANTILES) in seconds."""


def measure(runs: Sequence[Result], options: Options) -> Measure:
    """One measure of several runs: speeds are means over runs, all else is pooled."""
    row_steps = sum(run.row_steps for run in runs)
    each_s = (
        np.concatenate([getattr(run, name) for run in runs])
        for name in ("first_s", "token_s", "request_s")
    )
    first_s, token_s, request_s = (np.quantile(some, QUANTILES) for some in each_s)
    gaps = np.cumsum(sum(run.gaps for run in runs))
    load_s = np.cumsum(sum(run.load_s for run in runs))
    gap_s = gap_seconds()[np.searchsorted(gaps, np.array(QUANTILES) * gaps[-1])]
    return Measure(
        score=float(np.mean([options.score(run) for run in runs])),
        tokens_per_s=float(np.mean([run.tokens_per_s for run in runs])),
        accepted_per_step=sum(run.accepted for run in runs) / row_steps,
        drafted_per_step=sum(run.drafted for run in runs) / row_steps,
        neural_steps_share=sum(run.neural_steps for run in runs) / sum(run.steps for run in runs),
        decision_share=sum(run.deciding_s for run in runs) / sum(run.time_s for run in runs),
        load=np.searchsorted(load_s, np.array(LOADS) * load_s[-1]).astype(np.float64),
        latencies=np.stack([first_s, token_s, gap_s, request_s]),
    )


@dataclass(slots=True)
class CellResult:
    """All contenders of one cell and their figures, by the name of their row in the report."""

    winners: Mapping[str, str]
    """By row, the spec of the setting that was best in hindsight."""
    contenders: Mapping[str, Contender]
    measures: dict[str, Measure] = field(default_factory=dict)
    replicates: dict[str, Speeds] = field(default_factory=dict)
    """The score in each bootstrap replicate."""
    variance_ratio: float = 1.0
    """The variance of a measured score, divided by the variance of its replicates."""

    def speed(self, name: str) -> float | None:
        """The score of a row, or None if the row was not run."""
        return self.measures[name].score if name in self.measures else None

    @property
    def best_suffix(self) -> str:
        """Suffix decoding at the best of the settings that were named, in hindsight; "" if none."""
        named = [name for name, each in self.contenders.items() if _is_suffix(each)]
        return max(named, key=lambda name: self.measures[name].score, default="")

    @property
    def best_of_vllm(self) -> str:
        """The best that vLLM offers; suffix decoding, where it was named, is of that."""
        return max(VLLM_BEST, self.best_suffix, key=lambda name: self.speed(name) or 0.0)

    def resampled(self) -> dict[str, Contender]:
        """The contenders that get intervals; of suffix decoding, which is slow, the best alone."""
        best = self.best_suffix
        return {n: each for n, each in self.contenders.items() if n == best or not _is_suffix(each)}

    def ratio(self, name: str, other: str) -> tuple[float | None, list[float] | None]:
        """The throughput of a row divided by that of another, and its paired interval."""
        speed, other_speed = self.speed(name), self.speed(other)
        if speed is None or not other_speed:
            return None, None
        point = speed / other_speed
        if name not in self.replicates or other not in self.replicates:
            return point, None
        ratios = self.replicates[name] / self.replicates[other]
        return point, interval(point, ratios, self.variance_ratio)

    def lift(self, name: str, other: str) -> tuple[float | None, list[float] | None]:
        """The same, minus 1."""
        ratio, ends = self.ratio(name, other)
        if ratio is None:
            return None, None
        return ratio - 1, None if ends is None else [end - 1 for end in ends]

    def gap_closed(self, name: str) -> float | None:
        """(policy - vllm:best) / (foresight - vllm:best); None if there is hardly a gap to close.

        Under `MIN_GAP` of none's throughput the quotient is noise, and greedy foresight may even
        lie under vllm:best.
        """
        bound, start, plain = map(self.speed, (FORESIGHT, self.best_of_vllm, NONE))
        if bound is None or start is None or plain is None:
            return None
        if bound - start < MIN_GAP * (plain or start):  # goodput may be 0
            return None
        return (self.measures[name].score - start) / (bound - start)

    def rows(self, cell: Cell) -> list[dict[str, Any]]:
        """The report's rows of this cell."""
        rows = []
        for name, measured in self.measures.items():
            detail: dict[str, Any] = {"score": measured.score, "load": measured.load.tolist()}
            if name in self.winners:
                detail["spec"] = self.winners[name]
            speedup, ends = self.ratio(name, NONE)
            rows.append(
                {
                    "workload": cell[0] or ALL,
                    "concurrency": cell[1],
                    "policy": name,
                    "tokens_per_s": measured.tokens_per_s,
                    "speedup": speedup,
                    "ci95": ends,
                    "accepted_per_step": measured.accepted_per_step,
                    "drafted_per_step": measured.drafted_per_step,
                    "neural_steps_share": measured.neural_steps_share,
                    "latencies": {
                        kind: {
                            f"p{100 * q:.0f}": s for q, s in zip(QUANTILES, seconds, strict=True)
                        }
                        for kind, seconds in zip(
                            LATENCIES, measured.latencies.tolist(), strict=True
                        )
                    },
                    "detail": detail,
                }
            )
        return rows

    def headline(self, cell: Cell, name: str, workloads: Sequence[CellResult]) -> dict[str, Any]:
        """A policy's headline; `workloads` has each workload's cell at the same concurrency."""
        alone = (each.lift(name, STATIC_BEST)[0] for each in workloads)
        over_static, static_ends = self.lift(name, STATIC_BEST)
        over_vllm, vllm_ends = self.lift(name, self.best_of_vllm)
        over_suffix, suffix_ends = self.lift(name, self.best_suffix)
        return {
            "workload": cell[0] or ALL,
            "concurrency": cell[1],
            "policy": name,
            "lift_over_static_best": over_static,
            "lift_ci95": static_ends,
            "lift_over_vllm_best": over_vllm,
            "lift_over_vllm_best_ci95": vllm_ends,
            "lift_over_suffix": over_suffix,
            "lift_over_suffix_ci95": suffix_ends,
            "gap_closed": self.gap_closed(name),
            "worst_workload_lift": min((x for x in alone if x is not None), default=None),
            "decide_share_of_step": self.measures[name].decision_share,
        }


def _is_suffix(contender: Contender) -> bool:
    return isinstance(contender, SuffixDecoding)


def new_results(
    player: Player,
    named: Sequence[Contender],
    winners: Mapping[Cell, Mapping[str, Contender]],
) -> dict[Cell, CellResult]:
    """A result per cell, with all contenders that get a row there; none of them has run yet."""
    bounds = [each for each in map(Oracle, BOUNDS) if player.refusal(each) is None]
    shown = {each.name: each for each in (parse_policy(NONE), *named, *bounds)}
    return {
        cell: CellResult({row: each.name for row, each in best.items()}, shown | dict(best))
        for cell, best in winners.items()
    }


def average(folds: Sequence[CellResult]) -> CellResult:
    """The mean of one cell over folds, each replayed by itself: speedups are ratios of means."""
    first = folds[0]
    rows = [name for name in first.measures if all(name in each.measures for each in folds)]
    paired = [name for name in rows if all(name in each.replicates for each in folds)]
    return CellResult(
        {
            row: ", ".join(dict.fromkeys(each.winners[row] for each in folds))
            for row in first.winners
            if row in rows
        },
        first.contenders,
        {name: _mean([each.measures[name] for each in folds]) for name in rows},
        {name: np.mean([each.replicates[name] for each in folds], axis=0) for name in paired},
        max(each.variance_ratio for each in folds),
    )


def _mean(measures: Sequence[Measure]) -> Measure:
    def mean(name: str) -> Any:
        return np.mean([getattr(each, name) for each in measures], axis=0)

    return Measure(**{each.name: mean(each.name) for each in fields(Measure)})

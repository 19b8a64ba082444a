"""What a report says of one contender in one cell, from its runs over the cell's orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaspec.replay.result import Result


@dataclass(frozen=True, slots=True)
class Measure:
    """Means over runs of the same cell."""

    tokens_per_s: float
    accepted_per_step: float | None
    drafted_per_step: float | None
    neural_steps_share: float | None
    token_s_median: float | None
    token_s_p95: float | None
    decision_share: float | None = None

    def with_speed(self, tokens_per_s: float) -> Measure:
        """The same, but for a throughput that was weighted otherwise."""
        return replace(self, tokens_per_s=tokens_per_s)


def measure(runs: Sequence[Result]) -> Measure:
    """Throughput as the mean over runs, everything else pooled."""
    row_steps = sum(run.row_steps for run in runs)
    steps = sum(run.steps for run in runs)
    token_s = np.concatenate([run.token_s for run in runs])
    decided = [run.decision_s for run in runs]
    clocked = None not in decided
    return Measure(
        tokens_per_s=float(np.mean([run.tokens_per_s for run in runs])),
        accepted_per_step=_share(sum(run.accepted for run in runs), row_steps),
        drafted_per_step=_share(sum(run.drafted for run in runs), row_steps),
        neural_steps_share=_share(sum(run.neural_steps for run in runs), steps),
        token_s_median=float(np.median(token_s)) if len(token_s) else None,
        token_s_p95=float(np.quantile(token_s, 0.95)) if len(token_s) else None,
        decision_share=(
            sum(s for s in decided if s is not None) / sum(run.time_s for run in runs)
            if clocked
            else None
        ),
    )


def _share(part: float, whole: float) -> float | None:
    """None where the bound that was run has no steps to speak of."""
    return part / whole if whole else None

"""Whether a machine was quiet enough for what was timed on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_SPREAD = 0.15
"""Interquartile range over median, of one kind of step: the median of ten or more such steps is
then off by some 4% (one standard error), well inside the error that a profile may have."""
MOST_REFERENCE_SPREAD = 0.30
"""10th to 90th percentile over median, of a fixed loop: more means that others took the cores."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How far repeats of the same thing lay apart."""

    step_spread: float
    """Median over kinds of step of the interquartile range over the median."""
    reference_spread: float
    reference_s: float
    """Median of the fixed loop."""

    @property
    def complaint(self) -> str | None:
        """Why what was measured is not to be trusted; None where it is."""
        found = []
        if np.isnan(self.step_spread):
            return "no step was repeated, so nothing says how noisy it is: give --rounds more"
        if self.step_spread > MOST_SPREAD:
            found.append(
                f"repeats of one step lie {self.step_spread:.0%} of their median apart "
                f"(at most {MOST_SPREAD:.0%})"
            )
        if self.reference_spread > MOST_REFERENCE_SPREAD:
            found.append(
                f"a fixed loop took times {self.reference_spread:.0%} of their median apart "
                f"(at most {MOST_REFERENCE_SPREAD:.0%})"
            )
        if not found:
            return None
        return f"{' and '.join(found)}: stop what else runs here, or give --rounds more"


def noise_of(kinds: Sequence[Sequence[float]], reference_s: Sequence[float]) -> Noise:
    """The noise of repeats of several kinds of step, and of the loop timed among them."""
    spreads = [_spread(times, 0.25, 0.75) for times in kinds if len(times) > 1]
    return Noise(
        step_spread=float(np.median(spreads)) if spreads else float("nan"),
        reference_spread=_spread(reference_s, 0.1, 0.9),
        reference_s=float(np.median(reference_s)),
    )


def _spread(times: Sequence[float], low: float, high: float) -> float:
    ends = np.quantile(times, [low, high])
    return float((ends[1] - ends[0]) / np.median(times))

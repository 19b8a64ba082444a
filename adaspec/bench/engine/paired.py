"""One method over another in the same rounds, and how far chance alone could have moved that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaspec.bench.engine.traffic import Timing

FEWEST_ROUNDS = 8
"""Below, no interval is given: rounds drawn again from so few say little."""
RESAMPLES = 4_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Throughput of one method over another's."""

    ratio: float
    range: tuple[float, float]
    """The worst and the best round."""
    interval: tuple[float, float] | None
    """95%, from rounds drawn again with replacement."""


def paired_ratio(mine: Mapping[int, Timing], theirs: Mapping[int, Timing]) -> Ratio | None:
    """Over the rounds that both ran; None where there are none."""
    both = sorted(turn for turn in mine if turn in theirs)
    if not both:
        return None
    ours, others = (_table([rounds[turn] for turn in both]) for rounds in (mine, theirs))
    each = _rates(ours) / _rates(others)
    return Ratio(
        ratio=float(_rates(ours.sum(0)) / _rates(others.sum(0))),
        range=(float(each.min()), float(each.max())),
        interval=_interval(ours, others) if len(both) >= FEWEST_ROUNDS else None,
    )


def _interval(ours: NDArray[np.float64], others: NDArray[np.float64]) -> tuple[float, float]:
    """The same draws for both, so that a slow minute is slow for both."""
    rounds = len(ours)
    draws = np.random.default_rng(0).integers(rounds, size=(RESAMPLES, rounds))
    found = _rates(ours[draws].sum(1)) / _rates(others[draws].sum(1))
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def _table(timings: list[Timing]) -> NDArray[np.float64]:
    """Tokens and seconds, a row per round."""
    return np.array([(each.tokens, each.seconds) for each in timings], np.float64)


def _rates(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Tokens per second; nothing was timed where no second passed."""
    seconds = np.where(table[..., 1] > 0, table[..., 1], np.nan)
    return np.asarray(table[..., 0] / seconds, np.float64)

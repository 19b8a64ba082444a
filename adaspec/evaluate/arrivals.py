"""When requests come in an open loop: at a rate, in bursts, or at the times that a file has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaspec.errors import EvaluationError, nearest, shown

Seconds = NDArray[np.float64]
KINDS = {"poisson": "poisson:RATE", "bursts": "bursts:LOW:HIGH:SECONDS"}


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests come."""

    spec: str
    draw: Callable[[int, np.random.Generator], Seconds]
    """(requests, generator) -> when each comes, at most so many."""


def parse_arrivals(spec: str, scale: float = 1.0) -> Arrivals:
    """The arrivals of a spec: `poisson:RATE`, `bursts:LOW:HIGH:SECONDS`, or a file of seconds.

    In bursts the rate is LOW for so many seconds, then HIGH for as many, and so on. `scale`
    multiplies all rates. An `EvaluationError` says what is wrong.
    """
    kind, _, rest = spec.partition(":")
    if kind not in KINDS:
        return Arrivals(spec, _from_file(spec, scale))
    try:
        numbers = [float(each) for each in rest.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) != KINDS[kind].count(":") or not all(0 < each < np.inf for each in numbers):
        raise EvaluationError(f"--arrivals {shown(spec)}: write {KINDS[kind]}, each above 0")
    low, high, seconds = numbers if kind == "bursts" else (numbers[0], numbers[0], 1.0)

    def draw(count: int, rng: np.random.Generator) -> Seconds:
        # A Poisson process of rate 1, stretched: so many requests come in a calm and its burst.
        passed = rng.exponential(size=count).cumsum() / scale
        calm = low * seconds
        whole, left = np.divmod(passed, calm + high * seconds)
        within = np.where(left < calm, left / low, seconds + (left - calm) / high)
        return np.asarray(2 * seconds * whole + within)

    return Arrivals(spec, draw)


def _from_file(spec: str, scale: float) -> Callable[[int, np.random.Generator], Seconds]:
    """What draws the times that a file has, one a line, counted from the first."""
    path = Path(spec)
    if not path.is_file():
        known = nearest(spec.partition(":")[0], KINDS) or f": write {' or '.join(KINDS.values())}"
        raise EvaluationError(f"--arrivals {shown(spec)} is neither a file nor a kind{known}")
    times: list[float] = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        try:
            times.append(float(line))
        except ValueError:
            times.append(np.nan)
        if not np.isfinite(times[-1]) or times[-1] < times[max(len(times) - 2, 0)]:
            raise EvaluationError(
                f"{path}, line {number}: {shown(line)} is no time in seconds at or behind the last"
            )
    if not times:
        raise EvaluationError(f"{path}: holds no times: give one a line, in seconds")
    seconds = (np.array(times) - times[0]) / scale
    return lambda count, rng: seconds[:count]

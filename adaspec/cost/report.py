"""How well a fitted cost model reproduces steps it was not fitted to."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Self

from adaspec.errors import CostError, nearest


@dataclass(frozen=True, slots=True)
class FitReport:
    """Relative errors of fitted step times on held-out points, and what the points left open."""

    points: int
    """Measured steps, held-out ones included."""
    held_out_points: int
    """Of those, how many the fit never saw; no kind of step is both fitted and held out."""
    mean_error: float
    """Mean of |predicted - measured| / measured over the held-out points."""
    median_error: float
    p95_error: float
    standard_errors_s: dict[str, float]
    """Per constant that was fitted above 0: one standard error, in the constant's own unit."""
    not_identified: dict[str, str]
    """Constants left at 0 because no point tells them apart, with why and where their share is."""
    at_zero: tuple[str, ...]
    """Constants that could be told apart and came out at 0: a free fit would have made them 0 or
    negative."""
    seed: int

    def document(self) -> dict[str, Any]:
        """The report in JSON's own types."""
        return {**dataclasses.asdict(self), "at_zero": list(self.at_zero)}

    @classmethod
    def from_document(cls, document: object, where: str) -> Self:
        """The report that `document` wrote; anything else is a `CostError`."""
        if not isinstance(document, dict):
            raise CostError(f"{where}: must be an object")
        known = [item.name for item in dataclasses.fields(cls)]
        for key in document:
            if key not in known:
                raise CostError(f"{where}: unknown key '{key}'{nearest(key, known)}")
        for key in known:
            if key not in document:
                raise CostError(f"{where}: '{key}' is missing")
        for key in ("points", "held_out_points", "seed"):
            if isinstance(document[key], bool) or not isinstance(document[key], int):
                raise CostError(f"{where}: {key}={document[key]!r} must be a whole number")
        for key in ("mean_error", "median_error", "p95_error"):
            _check_error(document[key], f"{where}: {key}")
        for key in ("standard_errors_s", "not_identified"):
            if not isinstance(document[key], dict):
                raise CostError(f"{where}: {key}={document[key]!r} must be an object")
        for name, value in document["standard_errors_s"].items():
            _check_error(value, f"{where}: standard_errors_s '{name}'")
        if not isinstance(document["at_zero"], list):
            raise CostError(f"{where}: at_zero={document['at_zero']!r} must be a list")
        return cls(**{**document, "at_zero": tuple(document["at_zero"])})


def _check_error(value: object, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CostError(f"{where}={value!r} is no number")
    if not value >= 0 or value == math.inf:
        raise CostError(f"{where}={value} must be finite and at least 0")

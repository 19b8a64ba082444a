"""Whether a cost model's numbers can be those of a machine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from adaspec.cost.model import CostModel
from adaspec.errors import CostError, nearest

SECONDS = ("fixed_s", "per_token_s", "per_kv_s", "overhead_s", "draft_fixed_s", "draft_per_kv_s")
"""The constants of a step, in the formula's order."""

MEASURED = (*SECONDS, "draft_prompt_s")
"""And the one of an entry."""

LONGEST_S = 100.0
"""More than any constant of a real step; a larger number is in another unit."""

MOST_FORWARDS = 1_000
MOST_TOKENS = 10_000_000


def check_cost(cost: CostModel, where: str) -> None:
    """Raise a `CostError` that begins with `where` for the first number that cannot be right."""
    for name in MEASURED:
        value = getattr(cost, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise CostError(f"{where}: {name}={value!r} is no number: give seconds")
        # Not isfinite: it fails on whole numbers that no float can hold.
        if not value >= 0 or value == math.inf:
            raise CostError(f"{where}: {name}={value} must be finite and at least 0")
        if value > LONGEST_S:
            raise CostError(
                f"{where}: {name}={value!s:.12} is over {LONGEST_S:.0f} s: is it another unit?"
            )
    if cost.fixed_s + cost.overhead_s + cost.per_token_s <= 0:
        raise CostError(
            f"{where}: a step would cost nothing (fixed_s, overhead_s and per_token_s are 0)"
        )
    forwards = cost.keep_alive_forwards
    if not _whole(forwards) or not 0 <= forwards <= MOST_FORWARDS:
        raise CostError(
            f"{where}: keep_alive_forwards={forwards!r} must be a whole number"
            f" from 0 to {MOST_FORWARDS}"
        )
    before = 0
    for at, size in enumerate(cost.captured_sizes):
        if not _whole(size) or not 1 <= size <= MOST_TOKENS:
            raise CostError(
                f"{where}: captured_sizes[{at}]={size!r} must be a whole number"
                f" from 1 to {MOST_TOKENS}"
            )
        if size <= before:
            raise CostError(
                f"{where}: captured_sizes[{at}]={size} after {before}: sizes must increase"
            )
        before = size


def scaled(cost: CostModel, factors: Mapping[str, float], name: str | None = None) -> CostModel:
    """The cost model with each named constant times its factor, for stress tests."""
    for constant in factors:
        if constant not in MEASURED:
            close = nearest(constant, MEASURED)
            raise CostError(f"cost model '{cost.name}' has no constant '{constant}'{close}")
    changes = {constant: getattr(cost, constant) * by for constant, by in factors.items()}
    said = ", ".join(f"{by:g} {constant}" for constant, by in factors.items())
    label = name if name is not None else f"{cost.name} x ({said})" if said else cost.name
    result = dataclasses.replace(cost, name=label, **changes)
    check_cost(result, f"cost model '{label}'")
    return result


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

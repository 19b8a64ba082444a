"""Refits what steps cost while an engine is clocked, as far as plans depend on it.

A plan weighs three groups of constants against each other: what a step takes in any case, what a
verified token adds, and what a forward of the drafter adds. Each group is scaled by a factor, by
load: a ridge regression of the seconds that steps took on what the costs say of each group. Until
steps tell otherwise, all groups are wrong by the same factor, which changes no plan. Old steps
fade, one that took unusually long or short counts little, and no factor is ever more than five
times that of the whole step, or less than a fifth of it.

No clock is read here: ranks that are told the same seconds refit alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaspec.cost.model import Costs, StepShape, drafting_s, padded, step_s, verified_tokens
from adaspec.jit import compiled

Array = NDArray[np.float64]

GROUPS = {
    "step": ("fixed_s", "overhead_s", "per_kv_s", "decide_s", "decide_per_row_s"),
    "token": ("per_token_s",),
    "forward": (
        "draft_fixed_s",
        "draft_per_kv_s",
        "draft_prompt_s",
        "revise_s",
        "revise_per_row_s",
    ),
}
"""The constants that share a factor."""
PERIOD = 16
"""The costs change after so many steps of a load."""
WARM = 4
"""Steps of a load that are not looked at at first: they may compile something."""
_MOST_APART = 5.0
_FADE = 1 - 1 / 700
"""What is kept of earlier steps at each one."""
_DOUBT = 1.0
"""The standard deviation of a group's factor, over that of the whole, before any step was seen."""
_USUAL = 2.0
"""A residual of more than so many usual ones counts as so many."""
_LEAST_SPREAD, _FIRST_SPREAD = 0.01, 0.3
"""Of the residuals, as a share of a step: at least, and before any is known."""

_LOAD = np.dtype(
    [
        ("seen", "f8"),
        ("level", "f8"),
        ("spread", "f8"),
        ("factors", "f8", 3),
        ("moments", "f8", (3, 3)),
        ("target", "f8", 3),
    ]
)
"""What is known at one load. The level is what steps took over what the costs say, 0 if unknown;
moments and target are the sums of the regression."""


class CostRefit:
    """The costs of one engine, refitted."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        """Those that were given."""
        self._loads: dict[int, NDArray[Any]] = {}
        self._key: int | None = None
        self.factors = np.ones(len(GROUPS))
        """Of the groups, at the load of the last step."""
        self._waiting: list[tuple[float, ...]] = []
        """Shapes and seconds of steps that are not yet taken in, all of the same load."""
        # Compiled before it is needed.
        _take_in(_new_load(None), costs, np.ones((1, len(StepShape._fields) + 1)))

    def note(self, shape: StepShape, seconds: float) -> Costs | None:
        """Take in what a step took; the costs of steps like it, if they have changed."""
        if not 0 < seconds < math.inf or shape.rows <= 0:
            return None
        key = self._key_of(shape.rows)
        changed = key != self._key
        if changed:
            self._take_in()
            self._key = key
            if key not in self._loads:
                self._loads[key] = _new_load(self._nearest(key))
        self._waiting.append((*shape, seconds))
        if len(self._waiting) == PERIOD:
            self._take_in()
            changed = True
        if not changed:
            return None
        self.factors = self._loads[key]["factors"][0].copy()
        return self.scaled()

    def _take_in(self) -> None:
        if self._waiting and self._key is not None:
            load = self._loads[self._key]
            _take_in(load, self.costs, np.array(self._waiting, np.float64))
            _solve(load)
            self._waiting = []

    def scaled(self) -> Costs:
        """The costs at the load of the last step."""
        changed: dict[str, Any] = {
            name: getattr(self.costs, name) * factor
            for names, factor in zip(GROUPS.values(), self.factors.tolist(), strict=True)
            for name in names
        }
        return self.costs._replace(**changed)

    def state(self) -> dict[str, list[float]]:
        """What is known, as JSON can hold it: the numbers of each load's record."""
        return {str(key): load.view(np.float64).tolist() for key, load in self._loads.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Know what another one knew; a `ValueError` if that is not sound."""
        loads = {}
        for key, values in state.items():
            flat = np.array(values, np.float64)
            if flat.shape != (_LOAD.itemsize // 8,) or not np.isfinite(flat).all():
                raise ValueError(f"load {key} is not as it was written")
            loads[int(key)] = flat.view(_LOAD)
        self._loads, self._key = loads, None

    def _key_of(self, rows: int) -> int:
        """The load's place, two per doubling; it stays until it is clearly another."""
        place = 2 * math.log2(rows)
        if self._key is not None and abs(place - self._key) <= 0.75:
            return self._key
        return round(place)

    def _nearest(self, key: int) -> NDArray[Any] | None:
        known = [each for each, load in self._loads.items() if load["seen"][0] >= PERIOD]
        return self._loads[min(known, key=lambda each: abs(each - key))] if known else None


def _new_load(nearest: NDArray[Any] | None) -> NDArray[Any]:
    """A load of which no step was seen, with the factors of the nearest one."""
    load = np.zeros(1, _LOAD)
    load["factors"], load["spread"] = 1.0, _FIRST_SPREAD
    if nearest is not None:
        load["factors"], load["level"] = nearest["factors"], nearest["level"]
    return load


@compiled
def _take_in(loads: NDArray[Any], costs: Costs, steps: Array) -> None:
    """Add steps to the sums of their load, each the fields of its shape and its seconds."""
    load, said = loads[0], np.zeros(3)
    for each in steps:
        load.seen += 1.0
        if load.seen <= WARM:
            continue
        shape = StepShape(
            int(each[0]),
            int(each[1]),
            int(each[2]),
            int(each[3]),
            int(each[4]),
            int(each[5]),
            each[6] > 0,
            int(each[7]),
        )
        said[1] = costs.per_token_s * padded(costs, verified_tokens(shape))
        said[2] = drafting_s(costs, shape)
        whole = step_s(costs, shape)
        said[0] = whole - said[1] - said[2]
        shares, took = said / whole, each[8] / whole
        if load.level == 0:
            load.level = took
            load.factors[:] = took
        expected = 0.0
        for group in range(3):
            expected += load.factors[group] * shares[group]
        residual = abs(took - expected) / load.level
        usual = _USUAL * max(load.spread, _LEAST_SPREAD)
        weight = 1.0 if residual <= usual else usual / residual
        load.spread += (min(residual, 2 * usual) - load.spread) / min(load.seen, 64.0)
        load.level += (min(took, 4 * load.level) - load.level) / min(load.seen, 256.0)
        for group in range(3):
            load.target[group] = _FADE * load.target[group] + weight * took * shares[group]
            for other in range(3):
                added = weight * shares[group] * shares[other]
                load.moments[group, other] = _FADE * load.moments[group, other] + added


def _solve(load: NDArray[Any]) -> None:
    """The factors by all that was seen."""
    level = load["level"][0]
    if level == 0:
        return
    ridge = (1.25 * max(load["spread"][0], _LEAST_SPREAD) / _DOUBT) ** 2
    factors = np.linalg.solve(
        load["moments"][0] + ridge * np.eye(3), load["target"][0] + ridge * level
    )
    load["factors"][0] = np.clip(factors, level / _MOST_APART, level * _MOST_APART)

"""Repeats of one step, together: what a fit and a breakdown are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from adaspec.bench.profile.cells import Cell
from adaspec.cost.fit import MeasuredStep
from adaspec.vllm.forced import Plan
from adaspec.vllm.stopwatch import TimedStep

FEWEST = 3
"""Repeats of which a median is worth fitting to."""

PARTS = ("draft", "verify", "sample", "other")


@dataclass(frozen=True, slots=True)
class Kind:
    """Steps of one cell and plan that verified and drafted as much."""

    cell: Cell
    plan: Plan
    tokens: int
    forwards: int
    timed: list[TimedStep] = field(default_factory=list)
    parts: list[TimedStep] = field(default_factory=list)
    """Of these, or of others of the kind, those whose parts are true."""

    @property
    def context_tokens(self) -> int:
        """Of all requests together, at the median step."""
        return int(np.median([step.context_tokens for step in self.timed]))

    @property
    def step_s(self) -> float:
        """Of the median step."""
        return float(np.median([step.step_s for step in self.timed]))

    def measured(self) -> MeasuredStep:
        """What the fit is told."""
        return MeasuredStep(self.tokens, self.context_tokens, self.forwards, self.step_s)

    def part_s(self, part: str) -> float:
        """The median of one part of the step."""
        return float(np.median([getattr(step, f"{part}_s") for step in self.parts]))


class Kinds:
    """Every kind of step that was seen."""

    def __init__(self) -> None:
        self._found: dict[tuple[Cell, Plan, int, int], Kind] = {}

    def add(
        self,
        cell: Cell,
        steps: Iterable[tuple[Plan, TimedStep]],
        whole: bool = True,
        parts: bool = True,
    ) -> None:
        """Take steps in: `whole` where their total may be believed, `parts` where those may."""
        for plan, step in steps:
            key = (cell, plan, step.tokens, step.forwards)
            kind = self._found.setdefault(key, Kind(cell, plan, step.tokens, step.forwards))
            if whole:
                kind.timed.append(step)
            if parts:
                kind.parts.append(step)

    def sound(self) -> list[Kind]:
        """Kinds that were seen often enough, in the order of their cells and plans."""
        often = [kind for kind in self._found.values() if len(kind.timed) >= FEWEST]
        return sorted(often, key=lambda kind: (kind.cell, kind.plan, kind.tokens))

"""Which steps are measured, and the repeats of one step together: what a fit is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from adaspec.cost.fit import MeasuredStep
from adaspec.vllm.profiling import Plan
from adaspec.vllm.stopwatch import TimedStep

ON_CPU = (1, 2, 4, 8, 16)
ON_GPU = (1, 4, 16, 64, 128)
"""Batches where none are named."""
CONTEXTS = (128, 512, 1024)
NEURAL_LENS = (1, 2, 4, 8)
NGRAM_LENS = (3, 8, 16)
TOKENS_PER_STEP_ROOM = 4
"""Tokens that a request may come to per step, on average, before its text reaches the end."""
FEWEST = 3
"""Repeats of which a median is worth fitting to."""

PARTS = ("draft", "verify", "sample", "other")


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """Requests that decode together from a context of so many tokens."""

    requests: int
    context_tokens: int
    holds: bool
    """Whether they hold the neural drafter, and with it pay its keep-alive."""


def cells_of(batches: Sequence[int], contexts: Sequence[int], drafter: bool) -> list[Cell]:
    """Every batch at every context, without and (where there is one) with the drafter held."""
    held = (False, True) if drafter else (False,)
    return [
        Cell(requests, context, holds)
        for context in sorted(contexts)
        for requests in sorted(batches)
        for holds in held
    ]


def plans_of(cell: Cell, neural_lens: Sequence[int], ngram_lens: Sequence[int]) -> list[Plan]:
    """The plans of a cell.

    A draft that is taken whole makes forwards and verified tokens grow together, and no fit could
    tell their prices apart: so drafts are also trimmed, and dropped for copied tokens.
    """
    copies = [Plan(ngram_len=length) for length in ngram_lens]
    if not cell.holds:
        return [Plan(), *copies]
    longest = max(neural_lens)
    return [
        Plan(),
        *copies[-1:],
        *(Plan(forwards=k, neural_len=k) for k in neural_lens),
        Plan(forwards=longest, neural_len=1),
        Plan(forwards=min(neural_lens), ngram_len=max(ngram_lens)),
        Plan(forwards=longest, ngram_len=min(ngram_lens)),
        Plan(forwards=neural_lens[0], neural_len=neural_lens[0], ngram_len=min(ngram_lens)),
    ]


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

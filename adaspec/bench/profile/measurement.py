"""What is measured for a profile: kinds of step, their repeats in interleaved rounds.

A cell is visited again in every round, so that a busy moment falls on all kinds of step alike.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from adaspec.bench.machine import reference_loop_s, without_garbage_collection
from adaspec.errors import CostError
from adaspec.evaluate.options import Progress
from adaspec.vllm.profiling import Plan, ProfiledEngine, PromptStep, TimedStep

CPU_BATCHES = (1, 2, 4, 8, 16)
GPU_BATCHES = (1, 4, 16, 64, 128)
"""Batches where none are named."""
PARTS = ("draft", "verify", "sample", "other")
MIN_REPEATS = 3
"""Repeats of which a median is worth fitting to."""
_STEPS = 2
"""Timed steps of a plan per visit of its cell."""
_MIN_ROUNDS = 2
"""With two steps each, a median has enough to be one of."""
_TOKENS_PER_STEP = 4
"""Tokens that a request may come to per step, on average, before its text reaches the end."""
_REFERENCE_TURNS = 20_000


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured, and how often."""

    batches: tuple[int, ...] | None = None
    """Requests that decode together; None: what suits the device."""
    contexts: tuple[int, ...] = (128, 512, 1024)
    neural_lens: tuple[int, ...] = (1, 2, 4, 8)
    ngram_lens: tuple[int, ...] = (3, 8, 16)
    rounds: int = 5
    seed: int = 0
    max_s: float = math.inf
    """Seconds after which no further round is begun, once there are enough for a fit."""

    @property
    def longest_draft(self) -> int:
        """The most tokens that any plan has verified per request."""
        spliced = min(self.neural_lens) + min(self.ngram_lens)
        return max(*self.neural_lens, *self.ngram_lens, spliced)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """Requests that decode together from a context of so many tokens."""

    requests: int
    context_tokens: int
    holds: bool
    """Whether they hold the neural drafter, and with it pay its keep-alive."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Steps of one cell and plan that verified and drafted as much."""

    cell: Cell
    plan: Plan
    tokens: int
    forwards: int
    timed: list[TimedStep] = field(default_factory=list)
    """Repeats whose total may be believed."""
    parts: list[TimedStep] = field(default_factory=list)
    """Repeats whose parts may be believed."""

    @property
    def context_tokens(self) -> int:
        """Context tokens of all requests together, at the median step."""
        return int(np.median([step.context_tokens for step in self.timed]))

    @property
    def step_s(self) -> float:
        """Seconds of the median step."""
        return float(np.median([step.step_s for step in self.timed]))

    def part_s(self, part: str) -> float:
        """Median seconds of one part of the step."""
        return float(np.median([getattr(step, f"{part}_s") for step in self.parts]))


@dataclass(frozen=True, slots=True)
class Measurement:
    """All kinds of step, and the times by which their noise is judged."""

    kinds: list[Kind]
    reference_s: list[float]
    """Seconds of a fixed loop, before every visit of a cell."""
    prompts: list[PromptStep] = field(default_factory=list)
    """Steps in which prompts were read, with parts that may be believed."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Cells that do not fit this engine, with why."""


def measure(
    engine: ProfiledEngine, grid: Grid, batches: Sequence[int], has_drafter: bool, report: Progress
) -> Measurement:
    """Visit every cell that fits in every round; cells and plans in a new order each time."""
    order = random.Random(grid.seed)
    found: dict[tuple[Cell, Plan, int, int], Kind] = {}
    prompts, reference_s = [], []
    plans, skipped = _fitting_cells(engine, grid, batches, has_drafter)
    reference_loop_s(1)
    # A GPU's parts are true only where it is awaited around each, which slows the step: that is a
    # round of its own, of which only the parts count.
    rounds = grid.rounds if engine.runs_on_cpu else grid.rounds + 1
    done, total = 0, (rounds + 1) * len(plans)
    start_s = time.monotonic()
    with without_garbage_collection():
        # The first round is thrown away: memory is touched, kernels are compiled, caches fill.
        for turn in range(rounds + 1):
            synchronises = not engine.runs_on_cpu and turn == rounds
            overdue = time.monotonic() - start_s > grid.max_s
            if overdue and turn > _MIN_ROUNDS and not synchronises:
                continue
            for cell in order.sample(list(plans), len(plans)):
                reference_s.append(reference_loop_s(_REFERENCE_TURNS))
                steps = engine.run(
                    cell.requests,
                    cell.context_tokens,
                    cell.holds,
                    order.sample(plans[cell], len(plans[cell])),
                    _STEPS,
                    synchronises,
                )
                prompt_steps = engine.prompts()
                parts_count = synchronises or engine.runs_on_cpu
                for plan, step in steps if turn > 0 else ():
                    key = (cell, plan, step.tokens, step.forwards)
                    kind = found.setdefault(key, Kind(*key))
                    if not synchronises:
                        kind.timed.append(step)
                    if parts_count:
                        kind.parts.append(step)
                prompts += prompt_steps if turn > 0 and parts_count else []
                done += 1
                report("measuring", done, total)
            gc.collect()
    kinds = [kind for kind in found.values() if len(kind.timed) >= MIN_REPEATS]
    kinds.sort(key=lambda kind: (kind.cell, kind.plan, kind.tokens))
    return Measurement(kinds, reference_s, prompts, skipped)


def _fitting_cells(
    engine: ProfiledEngine, grid: Grid, batches: Sequence[int], has_drafter: bool
) -> tuple[dict[Cell, list[Plan]], dict[str, str]]:
    """The plans of every cell that fits the engine, and why the others do not."""
    plans, skipped = {}, {}
    cells = itertools.product(sorted(grid.contexts), sorted(batches), sorted({False, has_drafter}))
    for context_tokens, requests, holds in cells:
        cell = Cell(requests, context_tokens, holds)
        wanted = plans_of(cell, grid.neural_lens, grid.ngram_lens)
        room = len(wanted) * (_STEPS + 1) * _TOKENS_PER_STEP
        why = engine.refusal(requests, context_tokens, room)
        if why is None:
            plans[cell] = wanted
        else:
            skipped[f"batch {requests} at {context_tokens:,} tokens"] = why
    if not plans:
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise CostError(f"nothing that was asked for fits this engine: {reasons}")
    return plans, skipped


def plans_of(cell: Cell, neural_lens: Sequence[int], ngram_lens: Sequence[int]) -> list[Plan]:
    """The plans of a cell.

    Where every drafted token is verified, forwards and verified tokens grow together, and no fit
    could tell their prices apart: so drafts are also trimmed, and dropped for copied tokens.
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

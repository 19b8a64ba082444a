"""Rounds over all cells, interleaved, so that a busy moment falls on all kinds of step alike."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from adaspec.bench.machine import reference_loop
from adaspec.bench.profile.steps import (
    CONTEXTS,
    NEURAL_LENS,
    NGRAM_LENS,
    TOKENS_PER_STEP_ROOM,
    Cell,
    Kind,
    Kinds,
    cells_of,
    plans_of,
)
from adaspec.errors import CostError
from adaspec.vllm.profiling import Plan
from adaspec.vllm.stopwatch import PromptStep, TimedStep

STEPS = 2
"""Timed steps of a plan per visit of its cell."""
_REFERENCE_TURNS = 20_000
_FEWEST_ROUNDS = 2
"""That count: with two steps each, a median has enough to be one of."""

Report = Callable[[str, int, int], None]


class Measured(Protocol):
    """An engine that runs forced plans; `adaspec.vllm.profiling` has the real one."""

    @property
    def runs_on_cpu(self) -> bool:
        """Whether every timed part is over when its call returns."""

    def refusal(self, requests: int, context_tokens: int, room: int) -> str | None:
        """Why a cell does not fit, if so."""

    def run(
        self,
        requests: int,
        context_tokens: int,
        holds: bool,
        plans: Sequence[Plan],
        steps: int,
        synchronises: bool = False,
    ) -> list[tuple[Plan, TimedStep]]:
        """Time steps of every plan in turn."""

    def prompts(self) -> list[PromptStep]:
        """Steps that read prompts since this was last asked."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """All kinds of step, and what their times are judged by."""

    kinds: list[Kind]
    reference_s: list[float]
    """A fixed loop, timed before every visit of a cell."""
    prompts: list[PromptStep] = field(default_factory=list)
    """Steps in which prompts were read, their parts true."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Cells that do not fit this engine, with why."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured, and how often."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...] = CONTEXTS
    neural_lens: tuple[int, ...] = NEURAL_LENS
    ngram_lens: tuple[int, ...] = NGRAM_LENS
    rounds: int = 5
    seed: int = 0
    most_s: float = math.inf
    """After so long no further round is begun, once there are enough for a fit."""

    @property
    def longest_draft(self) -> int:
        """The most tokens that any plan has verified per request."""
        spliced = min(self.neural_lens) + min(self.ngram_lens)
        return max(*self.neural_lens, *self.ngram_lens, spliced)


def measure(engine: Measured, grid: Grid, drafter: bool, report: Report) -> Measurement:
    """Visit every cell that fits in every round; cells and plans in a new order each time."""
    order = random.Random(grid.seed)
    kinds, prompts, skipped, reference_s = Kinds(), [], {}, []
    todo: list[tuple[Cell, list[Plan]]] = []
    for cell in cells_of(grid.batches, grid.contexts, drafter):
        plans = plans_of(cell, grid.neural_lens, grid.ngram_lens)
        room = len(plans) * (STEPS + 1) * TOKENS_PER_STEP_ROOM
        why = engine.refusal(cell.requests, cell.context_tokens, room)
        if why is None:
            todo.append((cell, plans))
        else:
            skipped[f"batch {cell.requests} at {cell.context_tokens:,} tokens"] = why
    if not todo:
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise CostError(f"nothing that was asked for fits this engine: {reasons}")
    reference_loop(1)
    # A GPU's parts are true only where it is awaited around each, which slows the step: that is a
    # round of its own, of which only the parts count.
    rounds = grid.rounds if engine.runs_on_cpu else grid.rounds + 1
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        done, total = 0, (rounds + 1) * len(todo)
        start_s = time.monotonic()
        # The first round is thrown away: memory is touched, kernels are compiled, caches fill.
        for turn in range(rounds + 1):
            synchronises = not engine.runs_on_cpu and turn == rounds
            overdue = time.monotonic() - start_s > grid.most_s
            if overdue and turn > _FEWEST_ROUNDS and not synchronises:
                continue
            for cell, plans in order.sample(todo, len(todo)):
                began_s = time.perf_counter()
                reference_loop(_REFERENCE_TURNS)
                reference_s.append(time.perf_counter() - began_s)
                steps = engine.run(
                    cell.requests,
                    cell.context_tokens,
                    cell.holds,
                    order.sample(plans, len(plans)),
                    STEPS,
                    synchronises,
                )
                read = engine.prompts()
                if turn > 0:
                    parts = synchronises or engine.runs_on_cpu
                    kinds.add(cell, steps, whole=not synchronises, parts=parts)
                    prompts += read if parts else []
                done += 1
                report("measuring", done, total)
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    return Measurement(kinds.sound(), reference_s, prompts, skipped)

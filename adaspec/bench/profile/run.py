"""From a model's name to its profile: the engine opened, measured, closed, the model fitted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from adaspec.bench.profile.measurement import Grid, Report, measure
from adaspec.bench.profile.profile import Profile, fit_profile
from adaspec.bench.profile.steps import CONTEXTS, NEURAL_LENS, NGRAM_LENS, ON_CPU, ON_GPU
from adaspec.vllm.machine import hardware
from adaspec.vllm.profiling import ProfiledEngine, Subject


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What to profile, and over what."""

    subject: Subject
    batches: tuple[int, ...] | None = None
    """None: what suits the device."""
    contexts: tuple[int, ...] = CONTEXTS
    neural_lens: tuple[int, ...] = NEURAL_LENS
    ngram_lens: tuple[int, ...] = NGRAM_LENS
    rounds: int = 5
    seed: int = 0
    most_s: float = math.inf
    """Measuring ends with the round in which so much time is over."""


def profile_machine(options: ProfileOptions, report: Report = lambda *_: None) -> Profile:
    """Measure and fit; an `AdaspecError` says what stands in the way."""
    report("starting vLLM", 0, 1)
    on_cpu = hardware().startswith("CPU ")
    grid = Grid(
        batches=options.batches or (ON_CPU if on_cpu else ON_GPU),
        contexts=options.contexts,
        neural_lens=options.neural_lens,
        ngram_lens=options.ngram_lens,
        rounds=options.rounds,
        seed=options.seed,
        most_s=options.most_s,
    )
    subject = options.subject
    has_drafter = subject.draft is not None
    with ProfiledEngine(subject, max(grid.batches), grid.longest_draft, grid.seed) as engine:
        report("starting vLLM", 1, 1)
        measurement = measure(engine, grid, has_drafter, report)
        named = Path(subject.model).name or subject.model
        return fit_profile(
            measurement,
            grid,
            name=f"{named} on {engine.hardware}",
            target=subject.model,
            hardware=engine.hardware,
            captured_sizes=engine.captured_sizes,
            engine={
                "vllm": engine.version,
                "dtype": engine.dtype,
                "drafter": subject.draft,
                "arguments": subject.engine,
            },
        )

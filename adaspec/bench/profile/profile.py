"""A profile: the cost model fitted to measured steps, where their time goes, and the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adaspec.bench.decide import bench_decide, deciding_constants, find_benched
from adaspec.bench.profile.measurement import (
    CPU_BATCHES,
    GPU_BATCHES,
    PARTS,
    Grid,
    Kind,
    Measurement,
    measure,
)
from adaspec.cost.fit import MeasuredStep, fit_cost
from adaspec.cost.load import FitReport, cost_document
from adaspec.cost.model import CostModel, Deciding, StepShape
from adaspec.evaluate.options import Progress, silent
from adaspec.vllm.compatibility import installed_version
from adaspec.vllm.machine import hardware
from adaspec.vllm.profiling import ProfiledEngine, PromptStep, Subject

SCHEMA = 1
GOAL = 0.10
"""Mean error on held-out kinds of step that a profile should stay within."""
_LONG_PROMPT = 64
"""Prompt tokens in a step from which on the drafter's reading of them shows in its drafting."""
_CONTEXT, _DECISIONS = 4096, 100
"""The length of the requests on which decisions are timed, and how many decisions."""
KEEP_ALIVE = "keep-alive"
"""Nothing is drafted; the drafter runs so that its KV cache has no holes."""
COPIED = "ngram + drafter"
"""Copied tokens are verified, and the drafter ran all the same."""
MAX_STEP_SPREAD = 0.15
"""Interquartile range over median, of one kind of step: the median of ten or more such steps is
then off by some 4% (one standard error), well inside the error that a profile may have."""
MAX_REFERENCE_SPREAD = 0.30
"""10th to 90th percentile over median, of a fixed loop: more means that others took the cores."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How far repeats of the same thing lay apart."""

    step_spread: float
    """Interquartile range over the median, the median kind of step's."""
    reference_spread: float
    reference_s: float
    """Median of the fixed loop."""

    @property
    def complaint(self) -> str | None:
        """Why the measured times cannot be relied on; None where they can."""
        if np.isnan(self.step_spread):
            return "no step was repeated, so nothing says how noisy it is: give --rounds more"
        if self.step_spread <= MAX_STEP_SPREAD and self.reference_spread <= MAX_REFERENCE_SPREAD:
            return None
        return (
            f"repeats of one step lie {self.step_spread:.0%} of their median apart (at most "
            f"{MAX_STEP_SPREAD:.0%}), those of a fixed loop {self.reference_spread:.0%} (at most "
            f"{MAX_REFERENCE_SPREAD:.0%}): stop what else runs here, or give --rounds more"
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """A cost model of this machine, and what it was fitted to."""

    cost: CostModel
    fit: FitReport
    noise: Noise
    kinds: list[Kind]
    skipped: dict[str, str]
    engine: dict[str, Any]
    """Version, arithmetic and drafter of the engine that was measured."""

    def predicted_s(self, kind: Kind) -> float:
        """Seconds of a kind of step by the fitted model."""
        rows, drafted = kind.cell.requests, kind.tokens - kind.cell.requests
        shape = StepShape(rows, kind.context_tokens, drafted, kind.forwards)
        return self.cost.charged_to(Deciding.NOTHING).step_s(shape)

    def errors(self) -> dict[str, float]:
        """Mean relative error per source over all kinds, fitted ones included."""
        errors: dict[str, list[float]] = {}
        for kind in self.kinds:
            error = abs(self.predicted_s(kind) / kind.step_s - 1.0)
            errors.setdefault(source_of(kind), []).append(error)
        return {source: float(np.mean(values)) for source, values in errors.items()}

    @property
    def complaints(self) -> list[str]:
        """What speaks against using it, worst first."""
        complaints = []
        if self.noise.complaint is not None:
            complaints.append(
                f"this machine was too noisy to trust the profile: {self.noise.complaint}"
            )
        if self.fit.mean_error > GOAL:
            complaints.append(
                f"the fit is off by {self.fit.mean_error:.1%} on held-out steps, the goal is "
                f"{GOAL:.0%}: errors by source say where"
            )
        return complaints

    def document(self) -> dict[str, Any]:
        """The profile as `adaspec profile --json` prints it."""
        return {
            "schema": SCHEMA,
            "cost": cost_document(self.cost),
            "fit": asdict(self.fit),
            "errors_by_source": self.errors(),
            "noise": asdict(self.noise) | {"trusted": self.noise.complaint is None},
            "complaints": self.complaints,
            "steps": [self._step_document(kind) for kind in self.kinds],
            "skipped": self.skipped,
            "engine": self.engine,
        }

    def _step_document(self, kind: Kind) -> dict[str, Any]:
        return {
            "batch": kind.cell.requests,
            "source": source_of(kind),
            "neural_len": kind.plan.neural_len,
            "ngram_len": kind.plan.ngram_len,
            "tokens": kind.tokens,
            "context_tokens": kind.context_tokens,
            "forwards": kind.forwards,
            "repeats": len(kind.timed),
            "step_s": kind.step_s,
            "predicted_s": self.predicted_s(kind),
            **{f"{part}_s": kind.part_s(part) if kind.parts else None for part in PARTS},
        }


def profile_machine(subject: Subject, grid: Grid, report: Progress = silent) -> Profile:
    """Run vLLM, measure and fit; an `AdaspecError` says what stands in the way."""
    report("starting vLLM", 0, 1)
    device = hardware()
    on_cpu = device.startswith("CPU ")
    batches = grid.batches or (CPU_BATCHES if on_cpu else GPU_BATCHES)
    with ProfiledEngine(subject, max(batches), grid.longest_draft, grid.seed) as engine:
        report("starting vLLM", 1, 1)
        measurement = measure(engine, grid, batches, subject.draft is not None, report)
        name, sizes = (
            f"{Path(subject.model).name or subject.model} on {device}",
            engine.captured_sizes,
        )
        facts = {
            "vllm": installed_version(),
            "dtype": engine.dtype,
            "drafter": subject.draft,
            "arguments": subject.engine,
        }
    profile = fit_profile(measurement, name, sizes, grid.seed, facts)
    profile = replace(profile, cost=replace(profile.cost, target=subject.model, hardware=device))
    # What deciding takes is a line over the batch, and needs two.
    sizes = batches if len(batches) > 1 else tuple(sorted({1, max(*batches, 8)}))
    rows = bench_decide(find_benched(()), (_CONTEXT,), sizes, _DECISIONS, report, cold=on_cpu)
    return replace(profile, cost=profile.cost.with_deciding(deciding_constants(rows)))


def fit_profile(
    measurement: Measurement,
    name: str,
    captured_sizes: Sequence[int],
    seed: int,
    engine: dict[str, Any],
) -> Profile:
    """The profile whose cost model explains these steps best."""
    kinds = measurement.kinds
    # No step does without its overhead: the least of what is no draft, verification or sampling.
    other_s = [kind.part_s("other") for kind in kinds if kind.parts]
    cost, fit = fit_cost(
        [
            MeasuredStep(
                kind.cell.requests, kind.tokens, kind.context_tokens, kind.forwards, kind.step_s
            )
            for kind in kinds
        ],
        name,
        captured_sizes,
        overhead_s=max(0.0, min(other_s, default=0.0)),
        seed=seed,
    )
    return Profile(
        cost=replace(cost, draft_prompt_s=_draft_prompt_s(measurement.prompts)),
        fit=fit,
        noise=noise_of(
            [[step.step_s for step in kind.timed] for kind in kinds], measurement.reference_s
        ),
        kinds=kinds,
        skipped=measurement.skipped,
        engine=engine,
    )


def _draft_prompt_s(prompts: Sequence[PromptStep]) -> float:
    """Seconds per prompt token that drafting takes only where the drafter is held."""
    per_token: dict[bool, list[float]] = {True: [], False: []}
    for step in prompts:
        if step.tokens >= _LONG_PROMPT:
            per_token[step.held].append(step.draft_s / step.tokens)
    if not per_token[True]:
        return 0.0
    without = float(np.median(per_token[False])) if per_token[False] else 0.0
    return max(0.0, float(np.median(per_token[True])) - without)


def source_of(kind: Kind) -> str:
    """Where the verified tokens come from, and whether a drafter ran that gave none of them."""
    source = kind.plan.source
    return {"none": KEEP_ALIVE, "ngram": COPIED}.get(source, source) if kind.forwards else source


def noise_of(kinds: Sequence[Sequence[float]], reference_s: Sequence[float]) -> Noise:
    """The noise of repeats of several kinds of step, and of the loop timed among them."""
    spreads = [_spread(times, 0.25, 0.75) for times in kinds if len(times) > 1]
    return Noise(
        step_spread=float(np.median(spreads)) if spreads else float("nan"),
        reference_spread=_spread(reference_s, 0.1, 0.9),
        reference_s=float(np.median(reference_s)),
    )


def _spread(times: Sequence[float], low: float, high: float) -> float:
    ends = np.quantile(times, [low, high])
    return float((ends[1] - ends[0]) / np.median(times))

"""A whole profile: steps measured, a cost model fitted, and what there is to say of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaspec.bench.profile.breakdown import Share, break_down, source_of
from adaspec.bench.profile.kinds import PARTS, Kind
from adaspec.bench.profile.measurement import Grid, Measurement
from adaspec.bench.profile.noise import Noise, noise_of
from adaspec.cost.fit import fit_cost
from adaspec.cost.model import CostModel
from adaspec.cost.report import FitReport
from adaspec.vllm.stopwatch import PromptStep

SCHEMA = 1
GOAL = 0.10
"""Mean error on held-out kinds of step that a profile should stay within."""
FLOORS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Tokens up to which a step may take as long as for one, where nothing is captured."""
_LONG_PROMPT = 64
"""Prompt tokens in a step whose drafting is more than what any step's takes."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A cost model of this machine, and how it came to be."""

    cost: CostModel
    fit: FitReport
    noise: Noise
    breakdown: list[Share]
    kinds: list[Kind]
    skipped: dict[str, str]
    engine: dict[str, Any]
    """Version, arithmetic and drafter of the engine that was measured."""

    def predicted_s(self, kind: Kind) -> float:
        """What the fitted model says of a kind of step."""
        return self.cost.step_s(kind.tokens, kind.context_tokens, kind.forwards)

    def errors(self) -> dict[str, float]:
        """Mean relative error per source over all kinds, fitted ones included."""
        by: dict[str, list[float]] = {}
        for kind in self.kinds:
            error = abs(self.predicted_s(kind) / kind.step_s - 1.0)
            by.setdefault(source_of(kind), []).append(error)
        return {source: float(np.mean(found)) for source, found in by.items()}

    @property
    def complaints(self) -> list[str]:
        """What speaks against using it, worst first."""
        found = []
        if self.noise.complaint is not None:
            found.append(f"this machine was too noisy to trust the profile: {self.noise.complaint}")
        if self.fit.mean_error > GOAL:
            found.append(
                f"the fit is off by {self.fit.mean_error:.1%} on held-out steps, the goal is "
                f"{GOAL:.0%}: errors by source say where"
            )
        return found

    def document(self) -> dict[str, Any]:
        """What `adaspec profile --json` prints."""
        return {
            "schema": SCHEMA,
            "cost": {name: getattr(self.cost, name) for name in self.cost.__dataclass_fields__},
            "fit": self.fit.document(),
            "errors_by_source": self.errors(),
            "noise": {
                "step_spread": self.noise.step_spread,
                "reference_spread": self.noise.reference_spread,
                "reference_s": self.noise.reference_s,
                "trusted": self.noise.complaint is None,
            },
            "complaints": self.complaints,
            "breakdown": [share.document() for share in self.breakdown],
            "steps": [
                {
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
                    **(
                        {f"{part}_s": kind.part_s(part) for part in PARTS}
                        if kind.parts
                        else dict.fromkeys((f"{part}_s" for part in PARTS), None)
                    ),
                }
                for kind in self.kinds
            ],
            "skipped": self.skipped,
            "engine": self.engine,
        }


def fit_profile(
    measurement: Measurement,
    grid: Grid,
    *,
    name: str,
    target: str,
    hardware: str,
    captured_sizes: Sequence[int] = (),
    engine: dict[str, Any] | None = None,
) -> Profile:
    """The cost model that these steps are best explained by."""
    kinds = measurement.kinds
    cost, fit = fit_cost(
        [kind.measured() for kind in kinds],
        name=name,
        captured_sizes=captured_sizes,
        floors=() if captured_sizes else FLOORS,
        overhead_s=_overhead_s(kinds),
        target=target,
        hardware=hardware,
        seed=grid.seed,
    )
    cost = dataclasses.replace(cost, draft_prompt_s=_draft_prompt_s(measurement.prompts))
    return Profile(
        cost=cost,
        fit=fit,
        noise=noise_of(
            [[step.step_s for step in kind.timed] for kind in kinds], measurement.reference_s
        ),
        breakdown=break_down(kinds),
        kinds=kinds,
        skipped=measurement.skipped,
        engine=engine or {},
    )


def _draft_prompt_s(prompts: Sequence[PromptStep]) -> float:
    """Seconds per prompt token in drafting that only steps with the drafter held take."""
    per_token: dict[bool, list[float]] = {True: [], False: []}
    for step in prompts:
        if step.tokens >= _LONG_PROMPT:
            per_token[step.held].append(step.draft_s / step.tokens)
    if not per_token[True]:
        return 0.0
    bare = float(np.median(per_token[False])) if per_token[False] else 0.0
    return max(0.0, float(np.median(per_token[True])) - bare)


def _overhead_s(kinds: Sequence[Kind]) -> float:
    """What no step does without: the least of what is neither draft nor verify nor sample."""
    others = [kind.part_s("other") for kind in kinds if kind.parts]
    return max(0.0, min(others, default=0.0))

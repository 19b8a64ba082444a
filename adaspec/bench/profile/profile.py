"""A profile: the cost model fitted to measured steps, where their time goes, and the noise."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaspec.bench.profile.measurement import Grid, Measurement
from adaspec.bench.profile.steps import PARTS, Kind
from adaspec.cost.fit import fit_cost
from adaspec.cost.model import CostModel, StepShape
from adaspec.cost.report import FitReport
from adaspec.vllm.stopwatch import PromptStep

SCHEMA = 1
GOAL = 0.10
"""Mean error on held-out kinds of step that a profile should stay within."""
FLOORS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Tokens up to which a step may take as long as for one, where nothing is captured."""
_LONG_PROMPT = 64
"""Prompt tokens in a step whose drafting is more than what any step's takes."""
KEEP_ALIVE = "keep-alive"
"""Nothing is drafted, and the drafter runs to keep its KV whole."""
COPIED = "ngram + drafter"
"""What is verified was copied, and the drafter ran all the same."""
MOST_SPREAD = 0.15
"""Interquartile range over median, of one kind of step: the median of ten or more such steps is
then off by some 4% (one standard error), well inside the error that a profile may have."""
MOST_REFERENCE_SPREAD = 0.30
"""10th to 90th percentile over median, of a fixed loop: more means that others took the cores."""


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
        shape = StepShape(kind.tokens, kind.context_tokens, forwards=kind.forwards)
        return self.cost.step_s(shape)

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


@dataclass(frozen=True, slots=True)
class Share:
    """Mean seconds per part over the kinds of one source and batch."""

    source: str
    requests: int
    kinds: int
    seconds: dict[str, float]

    @property
    def step_s(self) -> float:
        """All parts together."""
        return sum(self.seconds.values())

    def document(self) -> dict[str, object]:
        """In JSON's own types."""
        return {
            "source": self.source,
            "batch": self.requests,
            "kinds": self.kinds,
            "step_s": self.step_s,
            **{f"{part}_s": value for part, value in self.seconds.items()},
        }


def source_of(kind: Kind) -> str:
    """Who drafts, with a drafter that ran for nothing verified told from none at all."""
    source = kind.plan.source
    return {"none": KEEP_ALIVE, "ngram": COPIED}.get(source, source) if kind.forwards else source


def break_down(kinds: Sequence[Kind]) -> list[Share]:
    """A row per source and batch; a kind without true parts counts nowhere."""
    groups: dict[tuple[str, int], list[Kind]] = defaultdict(list)
    for kind in kinds:
        if kind.parts and not _dropped(kind):
            groups[source_of(kind), kind.cell.requests].append(kind)
    order = ["none", KEEP_ALIVE, "ngram", COPIED, "neural", "splice"]
    return [
        Share(
            source,
            requests,
            len(members),
            {part: float(np.mean([kind.part_s(part) for kind in members])) for part in PARTS},
        )
        for (source, requests), members in sorted(
            groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
        )
    ]


def _dropped(kind: Kind) -> bool:
    """Whether the plan drafts what it does not verify: good for the fit, no picture of serving."""
    return kind.plan.forwards > kind.plan.neural_len


@dataclass(frozen=True, slots=True)
class Noise:
    """How far repeats of the same thing lay apart."""

    step_spread: float
    """Median over kinds of step of the interquartile range over the median."""
    reference_spread: float
    reference_s: float
    """Median of the fixed loop."""

    @property
    def complaint(self) -> str | None:
        """Why what was measured is not to be trusted; None where it is."""
        found = []
        if np.isnan(self.step_spread):
            return "no step was repeated, so nothing says how noisy it is: give --rounds more"
        if self.step_spread > MOST_SPREAD:
            found.append(
                f"repeats of one step lie {self.step_spread:.0%} of their median apart "
                f"(at most {MOST_SPREAD:.0%})"
            )
        if self.reference_spread > MOST_REFERENCE_SPREAD:
            found.append(
                f"a fixed loop took times {self.reference_spread:.0%} of their median apart "
                f"(at most {MOST_REFERENCE_SPREAD:.0%})"
            )
        if not found:
            return None
        return f"{' and '.join(found)}: stop what else runs here, or give --rounds more"


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

"""The options of a benchmark, and the vLLM config of each method at a setting."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaspec.errors import BenchError

NONE, NGRAM, NEURAL, SUFFIX = "none", "ngram", "neural", "suffix"
STATIC, ADASPEC = "hybrid-splice", "adaspec"
METHODS = (NONE, NGRAM, NEURAL, SUFFIX, STATIC, ADASPEC)

_NO_END = 1 << 20
"""A batch size beyond any server's, for the last range of a table that has no end."""


@dataclass(frozen=True, slots=True)
class BenchmarkOptions:
    """Everything that the user may say of a benchmark."""

    model: str
    prompts: tuple[Path, ...]
    out: Path
    draft: str | None = None
    draft_method: str | None = None
    traces: tuple[Path, ...] = ()
    cost: str | None = None
    policies: tuple[str, ...] = ()
    methods: tuple[str, ...] = METHODS
    concurrency: tuple[int, ...] = (1, 4, 16)
    rounds: int = 3
    requests: int = 8
    max_tokens: int = 128
    seed: int = 0
    near_tie: float | None = None
    """Log-probabilities no further apart are a tie; None: by the arithmetic's type."""
    workloads: bool = True
    """Whether every workload is also measured alone."""
    engine: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One method at one setting, which one server runs."""

    method: str
    setting: str
    config: dict[str, Any] | None = field(hash=False)
    """vLLM's speculative config; None is no speculation."""
    spec: str | None = None
    """The evaluator's spec of the same; None where it has none."""
    runner_up: bool = False

    @property
    def name(self) -> str:
        """A name that no other candidate has."""
        return self.method if self.method == NONE else f"{self.method} {self.setting}"


@dataclass(frozen=True, slots=True)
class Drafter:
    """The neural drafter: its model, and vLLM's method for it."""

    model: str
    method: str
    given_method: str | None = None
    """The method, if the user gave it."""

    @property
    def adaspec_config(self) -> dict[str, Any]:
        """The drafter's part of adaspec's config."""
        given = {"draft_method": self.given_method} if self.given_method else {}
        return {"model": self.model, **given}


def candidate_of(method: str, spec: str, drafter: Drafter | None) -> Candidate:
    """The candidate that runs a method at the setting that a spec of the evaluator names."""
    if method == NONE:
        return Candidate(NONE, "", None, NONE)
    setting = spec.partition(":")[2]
    config: dict[str, Any] = {"method": method}
    if method == SUFFIX:
        if setting:
            config["suffix_decoding_max_spec_factor"] = float(setting)
        setting = "half as long drafts" if setting else "vLLM's defaults"
    elif method == NGRAM:
        length, shortest, longest = (int(word) for word in spec.split(":")[2:])
        setting = f"{length}:{shortest}:{longest}"
        config |= {
            "num_speculative_tokens": length,
            "prompt_lookup_min": shortest,
            "prompt_lookup_max": longest,
        }
    elif drafter is None:
        raise BenchError(f"method '{method}' needs a neural drafter: name one by --draft")
    elif method == STATIC:
        config = {"method": "adaspec", **drafter.adaspec_config, "policy": spec}
    else:
        config = {"method": drafter.method, "model": drafter.model}
        length = int(spec.rpartition(":")[2])
        setting = f"{drafter.method} {length}"
        config["num_speculative_tokens"] = length
    return Candidate(method, setting, config, spec)


def adaspec_candidate(policy: str | None, drafter: Drafter | None, cost: str | None) -> Candidate:
    """adaspec with a policy; without one, with the policy that a server chooses."""
    config: dict[str, Any] = {"method": "adaspec"}
    if drafter is not None:
        config |= drafter.adaspec_config
    config |= {
        name: value for name, value in (("policy", policy), ("cost", cost)) if value is not None
    }
    return Candidate(ADASPEC, policy or "its own choice", config, policy)


def unavailable(methods: Sequence[str], drafter: Drafter | None) -> dict[str, str]:
    """Those of the methods that cannot run here, with why."""
    reasons = {}
    if SUFFIX in methods and importlib.util.find_spec("arctic_inference") is None:
        reasons[SUFFIX] = "needs arctic-inference, which is not installed"
    if drafter is None:
        for method in (NEURAL, STATIC):
            if method in methods:
                reasons[method] = "needs a neural drafter, and no --draft is given"
    return reasons

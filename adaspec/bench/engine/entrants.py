"""Who takes part: each method at a setting, as vLLM is told it and as the evaluator knows it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from adaspec.bench.lookup import BenchError
from adaspec.policy.adaptive import BatchTable
from adaspec.policy.spec import parse_policy

NONE, NGRAM, NEURAL, SUFFIX = "none", "ngram", "neural", "suffix"
TABLE, STATIC, ADASPEC = "batch-table", "hybrid-splice", "adaspec"
METHODS = (NONE, NGRAM, NEURAL, SUFFIX, TABLE, STATIC, ADASPEC)
STOCK = (NGRAM, NEURAL, SUFFIX, TABLE)
"""vLLM's own, without adaspec in any part of them."""

WITHOUT_TRACES = {
    NONE: ("none",),
    NGRAM: ("fixed:ngram-vllm:5:2:5",),
    NEURAL: ("fixed:neural:3",),
    TABLE: ("batch-table:1-8=3,9-=1",),
    STATIC: ("hybrid-splice:4:20:2:2:5",),
}
"""What is run where no trace says what would be best."""
SUFFIX_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "vLLM's defaults": ("suffix", {}),
    "half as long drafts": ("suffix:0.5", {"suffix_decoding_max_spec_factor": 0.5}),
}
"""Spec and vLLM's keys of each."""
_NO_END = 1 << 20
"""A batch size beyond any server's, where a table's last range has no end."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """One method at one setting."""

    method: str
    setting: str
    config: dict[str, Any] | None = field(hash=False)
    """vLLM's speculative config; None is no speculation."""
    spec: str | None = None
    """As the evaluator knows it; None where it does not."""
    runner_up: bool = False

    @property
    def name(self) -> str:
        """Tells it from every other."""
        return self.method if self.method == NONE else f"{self.method} {self.setting}"


@dataclass(frozen=True, slots=True)
class Drafter:
    """The neural drafter: what it is called, and vLLM's method for it."""

    model: str
    method: str
    asked: str | None = None
    """That method where the user said it, or else None."""

    @property
    def ours(self) -> dict[str, Any]:
        """What adaspec's config says of it."""
        return {"model": self.model} | ({"draft_method": self.asked} if self.asked else {})


def entrant_of(method: str, spec: str, drafter: Drafter | None, runner_up: bool = False) -> Entrant:
    """The entrant that runs a method at the setting that a spec of the evaluator's names."""
    if method == NONE:
        return Entrant(NONE, "", None, NONE)
    config: dict[str, Any]
    if method == NGRAM:
        length, low, high = (int(word) for word in spec.split(":")[2:])
        config = {
            "method": "ngram",
            "num_speculative_tokens": length,
            "prompt_lookup_min": low,
            "prompt_lookup_max": high,
        }
        return Entrant(method, f"{length}:{low}:{high}", config, spec, runner_up)
    if drafter is None:
        raise BenchError(f"method '{method}' needs a neural drafter: name one by --draft")
    stock: dict[str, Any] = {"method": drafter.method, "model": drafter.model}
    if method == NEURAL:
        length = int(spec.rpartition(":")[2])
        config = stock | {"num_speculative_tokens": length}
        return Entrant(method, f"{drafter.method} {length}", config, spec, runner_up)
    if method == TABLE:
        config = stock | _table(spec)
        return Entrant(method, spec.partition(":")[2], config, spec, runner_up)
    if method == STATIC:
        config = {"method": "adaspec", **drafter.ours, "policy": spec}
        return Entrant(method, spec.partition(":")[2], config, spec, runner_up)
    raise BenchError(f"no method '{method}' (known: {', '.join(METHODS)})")


def _table(spec: str) -> dict[str, Any]:
    policy = parse_policy(spec)
    assert isinstance(policy, BatchTable)
    ranges = [
        [each.low, _NO_END if each.high is None else each.high, each.length]
        for each in policy.ranges
    ]
    longest = max(each.length for each in policy.ranges)
    return {
        "num_speculative_tokens": max(1, longest),
        "num_speculative_tokens_per_batch_size": ranges,
    }


def adaspec_entrant(
    policy: str | None, drafter: Drafter | None, cost: str | None, runner_up: bool = False
) -> Entrant:
    """adaspec by a policy, or by what it would choose itself."""
    config: dict[str, Any] = {"method": "adaspec"}
    if drafter is not None:
        config |= drafter.ours
    if policy is not None:
        config["policy"] = policy
    if cost is not None:
        config["cost"] = cost
    return Entrant(ADASPEC, policy or "its own choice", config, policy, runner_up)


def suffix_entrants() -> list[Entrant]:
    """vLLM's suffix decoding, at its defaults and at one other setting."""
    return [
        Entrant(SUFFIX, setting, {"method": "suffix", **more}, spec, at > 0)
        for at, (setting, (spec, more)) in enumerate(SUFFIX_SETTINGS.items())
    ]


def missing(methods: Sequence[str], drafter: Drafter | None) -> dict[str, str]:
    """Of these methods, those that cannot run here, with why."""
    found = {}
    if SUFFIX in methods and importlib.util.find_spec("arctic_inference") is None:
        found[SUFFIX] = "needs arctic-inference, which is not installed"
    if drafter is None:
        for method in (NEURAL, TABLE, STATIC):
            if method in methods:
                found[method] = "needs a neural drafter, and no --draft is given"
    if TABLE in methods and TABLE not in found and not _has_table():
        found[TABLE] = "the installed vLLM has no num_speculative_tokens_per_batch_size"
    return found


def _has_table() -> bool:
    try:
        from vllm.config import SpeculativeConfig
    except ImportError:
        return False
    return hasattr(SpeculativeConfig, "num_speculative_tokens_per_batch_size") or (
        "num_speculative_tokens_per_batch_size" in SpeculativeConfig.__dataclass_fields__
    )

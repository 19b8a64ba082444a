"""The stages: what each measures, with which settings, and for how long at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines import CHECKOUT, write_shapes

from adaspec.cost.builtin import TARGET

PARTS = ("lossless", "costs")
LIMIT_S = 480.0
"""No stage takes longer by itself: it is ended, and its cells are kept."""
PAIR_HEAD = CHECKOUT / "training" / "reference_pair" / "eagle3"
TRACES = CHECKOUT / "eval" / "traces" / "reference-pair"
EXACT = "TRITON_ATTN"
"""The attention backend in vLLM's wheel that computes in float32."""


@dataclass(frozen=True)
class Stage:
    """One thing to measure, in a process of its own on a GPU."""

    name: str
    part: str
    kind: str
    """Which function does it (see `stage.KINDS`)."""
    runner: str
    settings: dict[str, Any]
    variables: dict[str, str] = field(default_factory=dict)
    """Set in the process's environment."""
    limit_s: float = LIMIT_S


@dataclass(frozen=True)
class Wanted:
    """What the command line says."""

    out: Path
    dry_run: bool
    target: Path
    """The reference pair's target."""
    policy: str
    backend: str
    cache: Path
    short: bool = False
    """For a GPU that is there for minutes: fewer requests and cells, the same stages."""


def stages(wanted: Wanted) -> list[Stage]:
    """All stages in their order."""
    return [*_lossless(wanted), *_costs(wanted)]


def _engine(wanted: Wanted, **more: Any) -> dict[str, Any]:
    """vLLM's arguments; on a GPU graphs are on unless a stage says otherwise."""
    if wanted.dry_run:
        sizes: dict[str, Any] = {"dtype": "float32", "max_model_len": 384, "max_num_seqs": 8}
        return {**sizes, "enforce_eager": True, "gpu_memory_utilization": 0.4} | more
    return {
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.85,
        "attention_backend": wanted.backend,
        # The same prompts come again and again here, which would flatter later visits.
        "enable_prefix_caching": False,
    } | more


def _lossless(wanted: Wanted) -> Iterator[Stage]:
    few = {"requests": 4, "output_tokens": 10, "seeds": [1, 2]}
    many = {"requests": 200, "output_tokens": 64, "seeds": [1, 2, 3]}
    if wanted.short:
        many = {"requests": 100, "output_tokens": 48, "seeds": [1, 2]}
    exact = _engine(wanted, skip_tokenizer_init=True)
    if not wanted.dry_run:
        exact |= {"dtype": "float32", "attention_backend": EXACT, "max_model_len": 384}
        exact |= {"max_num_seqs": 32}
    tiny = {
        "target": "tiny",
        "head": "tiny",
        "traces": "documents",
        "cache": str(wanted.cache),
        "policy": wanted.policy,
        "cap": 12,
        "engine": exact,
        **(few if wanted.dry_run else many),
    }
    yield from _checks("lossless-v2", tiny, no_sync=True)
    yield from _checks("lossless-v1", tiny)
    if wanted.dry_run:
        return
    pair = {
        "target": str(wanted.target),
        "head": str(PAIR_HEAD),
        "traces": str(TRACES),
        "prompt_tokens": 1500,
        "engine": _engine(wanted, skip_tokenizer_init=True, max_model_len=2048),
    }
    yield from _checks("lossless-v2-pair", tiny | pair)
    yield from _checks("lossless-v1-pair", tiny | pair)


def _checks(name: str, settings: dict[str, Any], no_sync: bool = False) -> Iterator[Stage]:
    """The outputs of no speculation, and the stages that are compared with them."""
    runner, expected = name.split("-")[1].upper(), f"{name}-none"
    yield Stage(expected, "lossless", "expected", runner, settings)
    settings = settings | {"expected": expected, "no_sync": False}
    yield Stage(name, "lossless", "lossless", runner, settings)
    if no_sync:
        settings = settings | {"no_sync": True, "seeds": [1]}
        variables = {"VLLM_GPU_SYNC_CHECK": "error"}
        yield Stage(f"{name}-no-sync", "lossless", "lossless", runner, settings, variables)


def _costs(wanted: Wanted) -> Iterator[Stage]:
    target, head = write_shapes(wanted.out / "models", wanted.dry_run)
    made = {"skip_tokenizer_init": True, "load_format": "dummy"}
    if wanted.dry_run:
        target, head, made = "tiny", "tiny", {"skip_tokenizer_init": True}
    shapes = {"target": target, "head": head, "policy": wanted.policy, "cache": str(wanted.cache)}
    shapes |= {"called": "a tiny model" if wanted.dry_run else TARGET}
    minutes = 0.1 if wanted.dry_run else 0.5 if wanted.short else 2.0
    engine = _engine(wanted, **made)
    ways = {"v2": engine, "v1": engine}
    if not wanted.dry_run:
        eager = engine | {"enforce_eager": True}
        ways |= {"v2-eager": eager, "v1-eager": eager}
    for name, arguments in ways.items():
        settings = shapes | {"minutes": minutes, "engine": arguments, "name": name}
        yield _profile(f"costs-{name}", settings)
    if not wanted.dry_run:
        pair = {"target": str(wanted.target), "head": str(PAIR_HEAD), "policy": wanted.policy}
        pair |= {"called": "HuggingFaceTB/SmolLM2-135M-Instruct"}
        engine = _engine(wanted, max_model_len=2048, skip_tokenizer_init=True)
        for name in ("v2-pair", "v1-pair"):
            settings = pair | {"minutes": minutes, "engine": engine, "name": name}
            yield _profile(f"costs-{name}", settings)


def _profile(name: str, settings: dict[str, Any]) -> Stage:
    return Stage(name, "costs", "profile", name.split("-")[1].upper(), settings)


def chosen(everything: Sequence[Stage], words: Sequence[str]) -> list[Stage]:
    """The stages of the named parts, the named ones, or else those that begin so; each once."""
    names = {stage.name for stage in everything}
    exact = {word for word in words if word in names or word in PARTS}
    found: dict[str, Stage] = {}
    for stage in everything:
        named = stage.part in exact or stage.name in exact
        begun = any(stage.name.startswith(word) for word in words if word not in exact)
        if not words or named or begun:
            found.setdefault(stage.name, stage)
    return list(found.values())

"""What a benchmark is asked to compare."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaspec.bench.engine import entrants


@dataclass(frozen=True, slots=True)
class Task:
    """What to compare, and on what."""

    model: str
    prompts: tuple[Path, ...]
    out: Path
    draft: str | None = None
    draft_method: str | None = None
    traces: tuple[Path, ...] = ()
    cost: str | None = None
    policies: tuple[str, ...] = ()
    methods: tuple[str, ...] = entrants.METHODS
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

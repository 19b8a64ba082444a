"""What must be the same for a benchmark to be gone on with, be it for more rounds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaspec.bench.engine.entrants import Entrant
from adaspec.bench.engine.task import Task
from adaspec.bench.engine.traffic import Call
from adaspec.errors import PolicyError
from adaspec.policy.artifact import CHECKSUMS
from adaspec.policy.shipped import find_policy


def fingerprint(
    task: Task,
    calls: Mapping[str, Sequence[Call]],
    lineups: Mapping[int, Sequence[Entrant]],
    vllm: str,
) -> dict[str, Any]:
    """Names, and what is behind them now: a policy may be trained anew in the same folder."""
    everything = [
        (c.workload, c.id, c.prompt, c.max_tokens) for each in calls.values() for c in each
    ]
    return {
        "model": task.model,
        "drafter": task.draft,
        "prompts": _digest([json.dumps(everything).encode()]),
        "entrants": {
            str(load): [[e.name, e.config] for e in lineup] for load, lineup in lineups.items()
        },
        "policies": [_policy(each) for each in task.policies],
        "head": None if task.draft is None else _content(Path(task.draft)),
        "costs": None if task.cost is None else _content(Path(task.cost)),
        "requests": task.requests,
        "max_tokens": task.max_tokens,
        "seed": task.seed,
        "workloads": task.workloads,
        "engine": task.engine,
        "vllm": vllm,
    }


def _policy(named: str) -> str | None:
    """What a policy's folder holds; None for a spec, which is all there is."""
    try:
        return _content(find_policy(named) / CHECKSUMS)
    except PolicyError:
        return None


def _content(path: Path) -> str | None:
    """Of a file, or of the files in a folder; None where nothing lies there, as for a hub id."""
    if path.is_file():
        return _digest([path.read_bytes()])
    if not path.is_dir():
        return None
    files = sorted(each for each in path.iterdir() if each.is_file())
    return _digest(part for each in files for part in (each.name.encode(), each.read_bytes()))


def _digest(parts: Iterable[bytes]) -> str:
    found = hashlib.blake2b(digest_size=12)
    for part in parts:
        found.update(part)
    return found.hexdigest()

"""Say what a path holds (a trace, policy or cost model), how large, and whether it is sound."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from adaspec.cost.load import BUILTIN, cost_document, read_cost
from adaspec.draft.index import accepted_runs, look_ups
from adaspec.draft.matches import START
from adaspec.errors import AdaspecError, nearest
from adaspec.evaluate.options import Progress, silent
from adaspec.files import AnyPath
from adaspec.policy.artifact import CHECKSUMS, NETWORK, load_artifact, shipped_policies
from adaspec.policy.protocol import policy_from
from adaspec.replay.recording import text_of
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request

SCHEMA = 1
NGRAM_CAP = 20
"""The cap on n-gram accepted counts; without it one runaway repetition would outweigh the rest."""


def inspect(path: AnyPath, progress: Progress = silent) -> dict[str, Any]:
    """Describe what is at `path`, as `adaspec inspect --json` prints it, and check all of it."""
    path = Path(path)
    if not path.exists():
        shipped = shipped_policies()
        if str(path) in BUILTIN:
            cost = cost_document(BUILTIN[str(path)])
            return _document("cost", None, 0, {"cost": cost, "fit": None})
        if str(path) in shipped:
            return _inspect_policy(shipped[str(path)])
        raise AdaspecError(
            f"{path}: there is nothing there{nearest(str(path), [*BUILTIN, *shipped])}: "
            "give the folder of a trace or policy, or a cost file"
        )
    if path.suffix == ".jsonl" and path.is_file():
        raise AdaspecError(
            f"{path}: JSON lines, not a trace's folder: 'adaspec import' makes a trace of them"
        )
    if path.is_file():
        model, fit = read_cost(path)
        known = {"cost": cost_document(model), "fit": None if fit is None else structs.asdict(fit)}
        return _document("cost", path, path.stat().st_size, known)
    if any((path / name).exists() for name in (CHECKSUMS, NETWORK)):  # a trace has neither file
        return _inspect_policy(path)
    reader = TraceReader(path)
    parts = {
        "manifest": json.loads(reader.manifest.to_json()),
        "shards": len(reader.shards),
        "rows": reader.rows,
        "workloads": _workloads(reader, progress),
    }
    size = sum(shard.stat().st_size for shard in reader.shards)
    return _document("trace", path, size, parts, reader.warnings)


def ngram_accepted(request: Request) -> NDArray[np.int64]:
    """Tokens that the default n-gram look-up would get accepted per position, up to NGRAM_CAP."""
    text, prompt = text_of(request), len(request.prompt_tokens)
    runs = accepted_runs(text, look_ups(text, prompt)[START, :, 0], prompt, text[:0])
    return np.minimum(runs, NGRAM_CAP).astype(np.int64)


def _workloads(reader: TraceReader, progress: Progress) -> list[dict[str, Any]]:
    """What each workload holds, and how much of each source's drafts was accepted from 1 on."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    accepted: dict[str, dict[str, list[NDArray[Any]]]] = defaultdict(lambda: defaultdict(list))
    for done, request in enumerate(reader.requests(), 1):
        count, by_source = counts[request.workload], accepted[request.workload]
        count["requests"] += 1
        count["paired"] += request.paired
        count["prompt_tokens"] += len(request.prompt_tokens)
        count["output_tokens"] += len(request.output_tokens)
        by_source["ngram"].append(ngram_accepted(request)[1:])
        if request.neural_accepted is not None:
            by_source["neural"].append(request.neural_accepted[1:])
        progress("reading the trace", done, reader.rows)
    return [
        {
            "workload": workload,
            **count,
            "sources": [_source(*each) for each in accepted[workload].items()],
        }
        for workload, count in counts.items()
    ]


def _source(name: str, parts: list[NDArray[Any]]) -> dict[str, Any]:
    accepted = np.concatenate(parts)
    return {
        "source": name,
        "drafts": len(accepted),
        "accepted_mean": float(accepted.mean()) if len(accepted) else None,
        "accepted_share_at_least_1": float((accepted > 0).mean()) if len(accepted) else None,
    }


def _inspect_policy(path: Path) -> dict[str, Any]:
    artifact = load_artifact(path)
    policy_from(artifact)
    files = {each.name: each.stat().st_size for each in sorted(path.iterdir())}
    parts = {"manifest": json.loads(artifact.manifest.to_json()), "files": files}
    return _document("policy", path, sum(files.values()), parts)


def _document(
    what: str, path: Path | None, size: int, parts: dict[str, Any], warnings: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "what": what,
        "path": None if path is None else str(path),
        "bytes": size,
        "sound": not warnings,
        "warnings": list(warnings),
        **parts,
    }

"""Say what a path holds (a trace, policy, report or cost model), how large, and if it is sound."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from adaspec.cost.builtin import BUILTIN
from adaspec.cost.load import cost_document, load_cost, read_cost
from adaspec.errors import AdaspecError, nearest
from adaspec.evaluate.acceptance import WorkloadAcceptance
from adaspec.evaluate.options import Progress, silent
from adaspec.evaluate.written_report import is_report, read_report
from adaspec.files import AnyPath
from adaspec.policy.artifact import CHECKSUMS, NETWORKS, load_artifact
from adaspec.policy.learned import policy_from
from adaspec.policy.shipped import shipped_policies
from adaspec.predict.fingerprint import feature_fingerprint
from adaspec.trace.reader import TraceReader

SCHEMA = 1


def inspect(path: AnyPath, progress: Progress = silent) -> dict[str, Any]:
    """Describe what is at `path`, as `adaspec inspect --json` prints it.

    Every row and checksum is checked; a path that cannot be used at all raises an `AdaspecError`.
    """
    path = Path(path)
    if not path.exists():
        shipped = shipped_policies()
        if str(path) in BUILTIN:
            cost = cost_document(load_cost(str(path)))
            return _document("cost", None, 0, [], {"cost": cost, "fit": None})
        if str(path) in shipped:
            return _inspect_policy(shipped[str(path)])
        raise AdaspecError(
            f"{path}: there is nothing there{nearest(str(path), [*BUILTIN, *shipped])}: "
            "give the folder of a trace, policy or report, or a cost file"
        )
    if path.suffix == ".jsonl" and path.is_file():
        raise AdaspecError(
            f"{path}: JSON lines, not a trace's folder: 'adaspec import' makes a trace of them"
        )
    if is_report(path):
        report = read_report(path)
        files = path.iterdir() if path.is_dir() else [path]
        size = sum(each.stat().st_size for each in files)
        return _document("report", path, size, [], {"report": report.document})
    if path.is_file():
        model, fit = read_cost(path)
        parts = {
            "cost": cost_document(model),
            "fit": None if fit is None else dataclasses.asdict(fit),
        }
        return _document("cost", path, path.stat().st_size, [], parts)
    if any((path / name).exists() for name in (CHECKSUMS, NETWORKS)):  # a trace has neither file
        return _inspect_policy(path)
    return _inspect_trace(path, progress)


def _inspect_trace(path: Path, progress: Progress) -> dict[str, Any]:
    reader = TraceReader(path)
    workloads: dict[str, WorkloadAcceptance] = {}

    def workload(name: str) -> WorkloadAcceptance:
        return workloads.setdefault(name, WorkloadAcceptance(name))

    if reader.manifest.kind == "dense":
        for done, request in enumerate(reader.requests(), 1):
            workload(request.workload).add_request(request, reader.manifest.neural_cap)
            progress("reading the trace", done, reader.rows)
    else:
        ids: dict[str, set[str]] = {}
        for done, step in enumerate(reader.steps(), 1):
            workload(step.workload).add_step(step)
            ids.setdefault(step.workload, set()).add(step.id)
            progress("reading the trace", done, reader.rows)
        for name, seen in ids.items():
            workloads[name].requests = len(seen)
    parts = {
        "manifest": json.loads(reader.manifest.to_json()),
        "shards": len(reader.shards),
        "rows": reader.rows,
        "workloads": [workload.document() for workload in workloads.values()],
    }
    return _document("trace", path, reader.bytes, list(reader.warnings), parts)


def _inspect_policy(path: Path) -> dict[str, Any]:
    artifact = load_artifact(path)
    # Only a policy for this build's features can be loaded completely.
    if artifact.manifest.fingerprint == feature_fingerprint():
        policy_from(artifact)
    counts = {}
    for name, arrays in (("networks", artifact.networks), ("tables", artifact.tables)):
        counts[f"{name}_arrays"] = len(arrays)
        counts[f"{name}_values"] = sum(array.size for array in arrays.values())
    parts = {
        "manifest": json.loads(artifact.manifest.to_json()),
        "files": artifact.files,
        "counts": counts,
    }
    return _document("policy", path, sum(artifact.files.values()), [], parts)


def _document(
    what: str, path: Path | None, size: int, warnings: list[str], parts: dict[str, Any]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "what": what,
        "path": None if path is None else str(path),
        "bytes": size,
        "sound": not warnings,
        "warnings": warnings,
        **parts,
    }
